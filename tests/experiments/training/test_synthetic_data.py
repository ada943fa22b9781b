"""Tests that back-translation, by the commands of its page, helps with little text."""

import json
import os
import subprocess

import pages
import pytest

from experiments.data.sources.grammar import Grammar

PAIRS, MONOLINGUAL = 2000, 4000
LONGEST = 6  # words, so that a small model learns them in minutes
CONFIG = """
from configs import wmt_tiny

def get_config():
    config = wmt_tiny.get_config()
    config.tokenizer = 'sentencepiece(vocab_size=500)'
    config.train.steps = config.evaluation.every = config.checkpoint.every = 1500
    config.evaluation.decode = 'greedy'
    return config
"""


def short(pairs):
    return [x for x in pairs if max(len(side.split()) for side in x) <= LONGEST]


def write(folder, name, pairs):
    folder.mkdir(exist_ok=True)
    for language, lines in zip(('en', 'de'), zip(*pairs, strict=True), strict=True):
        text = ''.join(f'{line}\n' for line in lines)
        (folder / f'{name}.{language}').write_text(text, 'utf-8')


@pytest.mark.slow
def test_back_translation_helps_with_little_parallel_text(tmp_path):
    grammar = Grammar(pairs=60_000)
    pairs = short(grammar.train())[: PAIRS + MONOLINGUAL]
    sets = grammar.evaluation()
    write(tmp_path / 'my_text', 'train', pairs[:PAIRS])
    for name in ('val', 'test'):
        write(tmp_path / 'my_text', name, short(sets[name]))
    mono = ''.join(f'{german}\n' for _, german in pairs[PAIRS:])
    (tmp_path / 'mono.de').write_text(mono, 'utf-8')
    (tmp_path / 'small.py').write_text(CONFIG)

    def run(command):
        command = command.replace('configs/wmt_small.py', 'small.py')
        command = command.replace('vocab_size=4000', 'vocab_size=500')
        paths = {'PYTHONPATH': str(pages.ROOT)}
        shell = ['bash', '-euo', 'pipefail', '-c', command]
        subprocess.run(shell, cwd=tmp_path, env=os.environ | paths, check=True)

    def score(workdir):
        result = json.loads((tmp_path / workdir / 'result.json').read_text())
        return result['evaluations']['test']['bleu']

    reverse, translate, forward = pages.commands('docs/how_to/synthetic_data.md')[:3]
    run(reverse)
    run(translate)
    english = (tmp_path / 'with_bt/train.en').read_text('utf-8').splitlines()
    assert len(english) == len(pairs)
    assert all(line.startswith('<BT> ') for line in english[PAIRS:])
    for side in ('train.en', 'train.de'):  # three times the parallel text
        run(f'cat my_text/{side} my_text/{side} >>with_bt/{side}')
    # `duplicates` would remove the repeated pairs.
    forward = forward.replace(', duplicates', '')
    run(forward)
    run(forward.replace('with_bt', 'my_text').replace('runs/en_de', 'runs/parallel'))
    assert score('runs/en_de') > score('runs/parallel') + 2
