"""Tests that synthetic data help, by the commands of their page."""

import json
import os
import subprocess

import pages
import pytest

from parallel_grammar.source import Grammar

PAGE = 'docs/how_to/synthetic_data.md'
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


class Folder:
    """A folder with short sentences of the grammar, in which commands run."""

    def __init__(self, path, pairs, sets):
        self.path = path
        write(path / 'my_text', 'train', pairs)
        for name in ('val', 'test'):
            write(path / 'my_text', name, short(sets[name]))
        (path / 'small.py').write_text(CONFIG)

    def run(self, command):
        command = command.replace('configs/wmt_small.py', 'small.py')
        command = command.replace('vocab_size=4000', 'vocab_size=500')
        paths = {'PYTHONPATH': str(pages.ROOT)}
        shell = ['bash', '-euo', 'pipefail', '-c', command]
        subprocess.run(shell, cwd=self.path, env=os.environ | paths, check=True)

    def score(self, workdir):
        result = json.loads((self.path / workdir / 'result.json').read_text())
        return result['evaluations']['test']['bleu']


@pytest.fixture(scope='module')
def grammar():
    return Grammar(pairs=60_000)


@pytest.mark.slow
def test_back_translation_helps_with_little_parallel_text(tmp_path, grammar):
    pairs = short(grammar.train())[: PAIRS + MONOLINGUAL]
    folder = Folder(tmp_path, pairs[:PAIRS], grammar.evaluation())
    mono = ''.join(f'{german}\n' for _, german in pairs[PAIRS:])
    (tmp_path / 'mono.de').write_text(mono, 'utf-8')
    reverse, translate, forward = pages.commands(PAGE)[:3]
    folder.run(reverse)
    folder.run(translate)
    english = (tmp_path / 'with_bt/train.en').read_text('utf-8').splitlines()
    assert len(english) == len(pairs)
    assert all(line.startswith('<BT> ') for line in english[PAIRS:])
    for side in ('train.en', 'train.de'):  # three times the parallel text
        folder.run(f'cat my_text/{side} my_text/{side} >>with_bt/{side}')
    # `duplicates` would remove the repeated pairs.
    forward = forward.replace(', duplicates', '')
    folder.run(forward)
    parallel = forward.replace('with_bt', 'my_text')
    folder.run(parallel.replace('runs/en_de', 'runs/parallel'))
    assert folder.score('runs/en_de') > folder.score('runs/parallel') + 2


@pytest.mark.slow
def test_a_small_model_learns_more_from_translations_than_from_noisy_references(
    tmp_path, grammar
):
    """Noise is what makes references irregular here: the grammar's are regular."""
    pairs = short(grammar.train())[: PAIRS + MONOLINGUAL]
    sources, targets = zip(*pairs, strict=True)
    noisy = list(targets)
    for i in range(0, len(noisy) - 1, 5):  # two of five belong to another sentence
        noisy[i], noisy[i + 1] = noisy[i + 1], noisy[i]
    folder = Folder(
        tmp_path, list(zip(sources, noisy, strict=True)), grammar.evaluation()
    )
    large, translate, small = pages.commands(PAGE)[3:6]
    folder.run(large)
    folder.run(translate)
    folder.run(small)
    from_references = small.replace('distilled', 'my_text')
    folder.run(from_references.replace('runs/small', 'runs/from_references'))
    assert folder.score('runs/small') > folder.score('runs/from_references') + 2
