"""Tests that back-translation, by the commands of its page, helps with little text."""

import json
import os
import statistics
import subprocess

import pages
import pytest

from experiments.data.sources.grammar import Grammar

PAIRS, MONOLINGUAL = 500, 2000
CONFIG = """
from configs import wmt_tiny

def get_config():
    config = wmt_tiny.get_config()
    config.tokenizer = 'sentencepiece(vocab_size=500)'
    config.train.steps = config.evaluation.every = config.checkpoint.every = 300
    config.evaluation.decode = 'greedy'
    return config
"""


def write(folder, name, pairs):
    folder.mkdir(exist_ok=True)
    for language, lines in zip(('en', 'de'), zip(*pairs, strict=True), strict=True):
        text = ''.join(f'{line}\n' for line in lines)
        (folder / f'{name}.{language}').write_text(text, 'utf-8')


@pytest.mark.slow
def test_back_translation_helps_with_little_parallel_text(tmp_path):
    grammar = Grammar(pairs=PAIRS + MONOLINGUAL)
    pairs = list(grammar.train())
    sets = grammar.evaluation()
    write(tmp_path / 'my_text', 'train', pairs[:PAIRS])
    write(tmp_path / 'my_text', 'val', sets['val'][:100])
    write(tmp_path / 'my_text', 'test', sets['test'][:200])
    mono = ''.join(f'{german}\n' for _, german in pairs[PAIRS:])
    (tmp_path / 'mono.de').write_text(mono, 'utf-8')
    (tmp_path / 'small.py').write_text(CONFIG)

    def run(command):
        command = command.replace('configs/wmt_small.py', 'small.py')
        command = command.replace('vocab_size=4000', 'vocab_size=500')
        paths = {'PYTHONPATH': str(pages.ROOT)}
        shell = ['bash', '-euo', 'pipefail', '-c', command]
        subprocess.run(shell, cwd=tmp_path, env=os.environ | paths, check=True)

    def score(command, name):
        """Returns the mean BLEU of two seeds on `test`."""
        found = []
        for seed in (0, 1):
            workdir = f'runs/{name},seed={seed}'
            one = command.replace('runs/en_de', workdir)
            run(f'{one} --config.train.seed={seed}')
            result = json.loads((tmp_path / workdir / 'result.json').read_text())
            found.append(result['evaluations']['test']['bleu'])
        return statistics.mean(found)

    reverse, translate, forward = pages.commands('docs/how_to/synthetic_data.md')[:3]
    run(reverse)
    run(translate)
    english = (tmp_path / 'with_bt/train.en').read_text('utf-8').splitlines()
    assert len(english) == len(pairs)
    assert all(line.startswith('<BT> ') for line in english[PAIRS:])
    gold = score(forward.replace('with_bt', 'my_text'), 'gold')
    with_bt = score(forward, 'with_bt')
    assert with_bt > gold + 2
