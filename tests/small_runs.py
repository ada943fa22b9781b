"""Runs that train in seconds: their text, configs and launcher.

python small_runs.py -m experiments.run … runs a short version of a page's command.
Commands that need missing data or devices are described or get `--dry_run`.
"""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from experiments import run
from experiments.command_line import flags as command_flags
from experiments.data import tokenizers
from experiments.data.sources.base import Source
from experiments.data.tokenizers.base import Tokenizer
from experiments.runs import directory, metrics_log
from parallel_grammar.source import Grammar

FIELDS = {
    'tokenizer': 'sentencepiece(vocab_size=200)',
    'batch.tokens': 256,
    'model.d_model': 16,
    'model.num_layers': 1,
    'model.num_heads': 2,
    'model.d_ff': 32,
    'optimizer.schedule': 'cosine(peak=1e-2)',
    'train.log_every': 2,
    'evaluation.extra_length': 4,
    'evaluation.batch_tokens': 256,
}
# 12 steps, with evaluations and checkpoints.
SHORT = FIELDS | {
    'train.steps': 12,
    'evaluation.every': 6,
    'evaluation.decode': 'beam(beams=2)',
    'evaluation.average': 2,
    'checkpoint.every': 4,
    'checkpoint.keep': 2,
}
# Two steps, with a checkpoint and an evaluation at the end.
TWO_STEPS = FIELDS | {
    'train.steps': 2,
    'evaluation.every': 0,
    'evaluation.decode': 'greedy',
    'evaluation.average': 1,
    'checkpoint.every': 2,
}
# The run of the fixture `trained_run`: one shape of batches, so one program trains it.
TRAINED = SHORT | {
    'batch.packed': True,
    'batch.max_length': 32,
    'optimizer.schedule': 'noam(factor=0.1, warmup=4)',
}
# Entries that differ between equal runs.
_CLOCKS = frozenset(
    ['time', 'seconds', 'train_seconds', 'train_cpu_seconds']
    + ['tokens_per_second', 'peak_memory_bytes']
)
_TRAIN = 150  # pairs


class Numbers(Tokenizer):
    """A tokenizer for text written as token ids."""

    def encode(self, texts: list[str]) -> list[list[int]]:
        return [[int(token) for token in text.split()] for text in texts]

    def decode(self, ids: list[list[int]]) -> list[str]:
        return [' '.join(map(str, row)) for row in ids]


def train_tokenizer(data: Source, vocab_size: int, cache: Path) -> Tokenizer:
    spec = f'sentencepiece(vocab_size={vocab_size})'
    return tokenizers.train(tokenizers.make(spec), data, cache)


def write_text(folder: Path, **sets: int) -> Path:
    pairs = list(Grammar(pairs=_TRAIN + 10).train())
    begin = 0
    for stem, size in {'train': _TRAIN, **sets}.items():
        part = pairs[begin : begin + size]
        begin += size
        for language, side in zip(('en', 'de'), zip(*part, strict=True), strict=True):
            lines = '\n'.join(side) + '\n'
            (folder / f'{stem}.{language}').write_text(lines, encoding='utf-8')
    return folder


def source(folder: Path | str) -> str:
    return f'text(path="{Path(folder).as_posix()}", source="en", target="de")'


def flags(fields: dict[str, object], **changes: object) -> list[str]:
    """Returns `--config.<field>=<value>` flags; names have __ for the dot."""
    fields = fields | {name.replace('__', '.'): x for name, x in changes.items()}
    return [f'--config.{field}={value}' for field, value in fields.items()]


def train(path: Path, *arguments: str) -> None:
    argv = ['run', '--config=wmt_small', f'--workdir={path}', *arguments]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, 'argv', argv)
        run.main()


def arguments(text: Path, workdir: Path, **changes: object) -> list[str]:
    """Returns the arguments of `experiments.run` for a run of `TRAINED`."""
    overrides = flags(TRAINED | {'data': source(text)}, **changes)
    return ['--config=wmt_small', f'--workdir={workdir}', *overrides]


def result(path: Path) -> dict[str, Any]:
    return json.loads((path / 'result.json').read_text('utf-8'))


def without_clocks(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in _CLOCKS}


def rows(path: Path) -> list[dict[str, Any]]:
    """Returns the metrics of a run without clocks."""
    return [without_clocks(row) for row in metrics_log.read_rows(path)]


def files(path: Path) -> dict[Path, bytes]:
    """Returns the content of every file of a folder, except for locks."""
    every = (file for file in path.rglob('*') if file.is_file())
    return {file: file.read_bytes() for file in every if file.name != '.lock'}


def check_same_end(path: Path, other: Path) -> None:
    """Checks that two runs have equal results, parameters and metrics."""
    assert without_clocks(result(path)) == without_clocks(result(other))
    assert rows(path) == rows(other)


PAGE_FIELDS = FIELDS | {
    'data': 'grammar(pairs=150)',
    'batch.max_length': 64,
    'batch.packed': True,
    'train.log_every': 1,
    'evaluation.every': 2,
    'evaluation.sets': 'val',
    'evaluation.average': 1,
    'evaluation.decode': 'greedy',
    'checkpoint.every': 2,
}
# Sources whose data is not installed.
UNAVAILABLE_DATA = ('tfds', 'huggingface', 'cmudict', 'sigmorphon')
# Fields that stay small, even if the page sets them.
FIXED_FIELDS = ('batch.tokens', 'tokenizer', 'evaluation.every', 'model.dtype')


def shrunk(argv: list[str]) -> list[str]:
    """Returns the arguments of Python for the short version of a command."""
    if argv[0] != '-m':  # a page's own program
        return argv
    module = argv[1]
    if module == 'experiments.run' and '--help' not in argv:
        return _shrunk_run(argv)
    if module == 'experiments.sweep' and 'my_sweep' not in ' '.join(argv):
        return [*argv, '--dry_run'] if '--dry_run' not in argv else argv
    # A short run has other checkpoints.
    return [x for x in argv if not x.startswith('--step=')]


def _shrunk_run(argv: list[str]) -> list[str]:
    given = dict(re.findall(r'--config\.([\w.]+)=(.*)', '\n'.join(argv)))
    config = next(x for x in argv if x.startswith('--config='))
    overrides = [x for x in argv if x.startswith('--config.')]
    values = command_flags.parse_overrides(overrides)
    settings = command_flags.settings(config.partition('=')[2], values)
    if str(settings.config.data).startswith(UNAVAILABLE_DATA):
        return ['-m', 'experiments.describe', config, *overrides]
    fields = PAGE_FIELDS | {k: v for k, v in given.items() if k not in FIXED_FIELDS}
    if not given.get('tokenizer', 'sentencepiece').startswith('sentencepiece'):
        fields['tokenizer'] = given['tokenizer']
    if 'sentinels=100' in given.get('tokenizer', ''):
        fields['tokenizer'] = 'sentencepiece(vocab_size=300, sentinels=100)'
    if config.endswith('.json'):  # the config of an existing run, with its model
        of_model = ('model.', 'tokenizer')
        fields = {k: v for k, v in fields.items() if not k.startswith(of_model)}
    if 'model.dense' in given:
        fields['model.dense'] = given['model.dense'].replace('rank=8', 'rank=2')
    if 'model.decoder.num_layers' in given:  # the source has 1 here
        fields['model.decoder.num_layers'] = 3
        fields['init_ignore'] = given['init_ignore'].replace('[45]', '[12]')
    # A page that trains a run for longer raises its steps.
    fields['train.steps'] = 4 if settings.config.train.steps <= 1_300 else 6
    name = directory.run_name(settings.name, settings.overrides)
    workdir = [x for x in argv if x.startswith('--workdir')]
    workdir = workdir or [f'--workdir={Path("runs") / name}']
    others = [x for x in argv[2:] if not x.startswith(('--config', '--workdir'))]
    return ['-m', 'experiments.run', config, *flags(fields), *workdir, *others]


if __name__ == '__main__':
    os.execv(sys.executable, [sys.executable, *shrunk(sys.argv[1:])])
