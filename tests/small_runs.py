"""A run that trains in seconds: its text, its config, and how it is started here."""

import sys
from pathlib import Path

import pytest

from experiments import run
from experiments.data.sources.grammar import Grammar

FIELDS = {
    'tokenizer.vocab_size': 200,
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
# Twelve steps, with evaluations and checkpoints on the way.
SHORT = FIELDS | {
    'train.steps': 12,
    'evaluation.every': 6,
    'evaluation.beams': 2,
    'evaluation.average': 2,
    'checkpoint.every': 4,
    'checkpoint.keep': 2,
}
_TRAIN = 150  # pairs


def write_text(folder: Path, **sets: int) -> Path:
    """Writes parallel text to a folder: training pairs, and sets of some pairs each."""
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
    """The config's `data` of the text in a folder."""
    return f'text(path="{Path(folder).as_posix()}", source="en", target="de")'


def flags(fields: dict[str, object], **changes: object) -> list[str]:
    """`--config.<field>=<value>` of fields; changes have __ for the dot."""
    fields = fields | {name.replace('__', '.'): x for name, x in changes.items()}
    return [f'--config.{field}={value}' for field, value in fields.items()]


def train(path: Path, *arguments: str) -> None:
    """Runs `experiments.run` in this process."""
    argv = ['run', '--config=wmt_small', f'--workdir={path}', *arguments]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, 'argv', argv)
        run.main()
