"""What a data source holds: written as plain text, or counted."""

import itertools
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from experiments import storage
from experiments.command_line import console
from experiments.data.sources.base import Source, as_references
from experiments.data.tokenizers.base import on_one_line
from experiments.errors import UserError

_EXAMPLES = 10
_EVERY = 997  # of the training pairs that examples are taken from


def write(source: Source, folder: Path) -> None:
    """Writes the sets as files that `text(path=folder)` reads, a line an example.

    `train.en` and `train.de`, `val.en`, `val.de` and so on; further references are
    `val.de.1`, …, where a line is blank for a sentence that has no more.

    Raises:
      UserError: the folder is there.
    """
    if storage.exists(folder):
        raise UserError(f'--write={folder} is there already: give a new folder')
    with storage.replacing(folder) as draft:
        draft.mkdir()
        train = draft / 'train'
        _write_lines(train, source.source, (text for text, _ in source.train()))
        _write_lines(train, source.target, (target for _, target in source.train()))
        for name, pairs in source.evaluation().items():
            texts, targets = zip(*pairs, strict=True)
            _write_lines(draft / name, source.source, texts)
            known = map(as_references, targets)
            by_number = itertools.zip_longest(*known, fillvalue='')
            for number, lines in enumerate(by_number):
                ending = f'{source.target}.{number}' if number else source.target
                _write_lines(draft / name, ending, lines)


def _write_lines(stem: Path, ending: str, lines: Iterable[str]) -> None:
    path = stem.with_name(f'{stem.name}.{ending}')
    with path.open('w', encoding='utf-8', newline='') as file:
        file.writelines(f'{on_one_line(line)}\n' for line in lines)


def text(source: Source) -> str:
    """Sizes and lengths of the sets, what of them is new to training, and examples."""
    rows = [_row('train', source.train(), None)]
    for name, pairs in source.evaluation().items():
        asked = {text for text, _ in pairs}
        trained = asked.intersection(text for text, _ in source.train())
        rows.append(_row(name, pairs, sum(text in trained for text, _ in pairs)))
    sides = [source.source, source.target]
    columns = ['set', 'pairs', *sides, *(f'most {side}' for side in sides), 'trained']
    lines = [
        console.table(columns, rows),
        f'{", ".join(sides)}: words of a side, in the mean and at most',
        "trained: pairs whose source is also one of training's",
    ]
    for why, count in source.left_out.items():
        lines.append(f'left out of training: {count:,} by {why}')
    for text, target in itertools.islice(source.train(), 0, _EXAMPLES * _EVERY, _EVERY):
        lines += ['', text, f'    {target}']
    return '\n'.join(lines)


def _row(name: str, pairs: Iterable, trained: int | None) -> list:
    """Words of a set's sources and of its first references, in the mean and at most."""
    counts = ((len(x.split()), len(as_references(y)[0].split())) for x, y in pairs)
    lengths = np.fromiter(counts, np.dtype((int, 2)))
    means, most = lengths.mean(0).tolist(), lengths.max(0).tolist()
    return [name, len(lengths), *means, *most, trained]
