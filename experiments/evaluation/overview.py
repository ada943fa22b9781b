"""Data sources as plain text and summaries."""

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

from experiments import storage
from experiments.command_line import console
from experiments.data.sources.base import Pair, Source, as_references
from experiments.data.tokenizers.base import on_one_line
from experiments.errors import UserError, warn

_EXAMPLES = 10
_STRIDE = 997  # stride of the examples from training pairs


def write(source: Source, folder: Path) -> None:
    """Writes the sets as files that `text(path=folder)` reads, one example per line.

    Warns of empty sets and leaves them out, because `text` rejects them.
    """
    if storage.exists(folder):
        raise UserError(f'--write={folder}: already exists. Pass a new directory.')
    with storage.replacing(folder) as draft:
        draft.mkdir()
        for side, language in enumerate((source.source, source.target)):
            lines = (pair[side] for pair in source.train())
            _write_lines(draft, f'train.{language}', lines)
        for name, pairs in source.evaluation().items():
            if not pairs:
                warn(f'--write: skipped {name}, which has no sentences')
                continue
            texts, targets = zip(*pairs, strict=True)
            _write_lines(draft, f'{name}.{source.source}', texts)
            known = map(as_references, targets)
            by_number = itertools.zip_longest(*known, fillvalue='')
            for number, lines in enumerate(by_number):
                further = f'.{number}' if number else ''
                _write_lines(draft, f'{name}.{source.target}{further}', lines)


def _write_lines(folder: Path, name: str, lines: Iterable[str]) -> None:
    if not storage.is_file_name(name):
        # Otherwise, the file would be written to another folder.
        raise UserError(
            f'data: {name!r} is not a file name. Rename the set or the language.'
        )
    with (folder / name).open('w', encoding='utf-8', newline='') as file:
        file.writelines(f'{on_one_line(line)}\n' for line in lines)


def text(source: Source) -> str:
    """Formats sizes and lengths of sets, their overlap with training, and examples.

    Reads the training pairs once.
    """
    sets = source.evaluation()
    evaluated = {text for pairs in sets.values() for text, _ in pairs}
    trained = set()
    examples = []

    def train() -> Iterator[Pair]:
        for number, (text, target) in enumerate(source.train()):
            if text in evaluated:
                trained.add(text)
            if number % _STRIDE == 0 and len(examples) < _EXAMPLES:
                examples.append((text, target))
            yield text, target

    rows = [_row('train', train(), None)]
    for name, pairs in sets.items():
        count = sum(text in trained for text, _ in pairs)
        rows.append(_row(name, pairs, count))
    sides = [source.source, source.target]
    most = [f'max {side}' for side in sides]
    columns = ['set', 'pairs', *sides, *most, 'trained']
    lines = [
        console.table(columns, rows),
        f'{", ".join(sides)}: mean and maximum words per sentence',
        'trained: pairs whose source also occurs in training',
    ]
    for why, count in source.left_out.items():
        lines.append(f'filtered from training: {count:,} by {why}')
    for text, target in examples:
        lines += ['', text, f'    {target}']
    return '\n'.join(lines)


def _row(name: str, pairs: Iterable, trained: int | None) -> list:
    count = 0
    words = [0, 0]
    most = [0, 0]
    for text, known in pairs:
        count += 1
        reference, *_ = as_references(known)
        for side, sentence in enumerate((text, reference)):
            length = len(sentence.split())
            words[side] += length
            most[side] = max(most[side], length)
    if not count:
        return [name, 0, *[None] * 4, trained]
    means = [total / count for total in words]
    return [name, count, *means, *most, trained]
