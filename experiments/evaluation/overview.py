"""What a data source holds: written as plain text, or counted."""

import array
import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from experiments import storage
from experiments.command_line import console
from experiments.data.sources.base import Source
from experiments.data.tokenizers.base import on_one_line
from experiments.errors import UserError

Sentence = tuple[str, tuple[str, ...]]  # a source and its references
_EXAMPLES = 10
_EVERY = 997  # of the training pairs that examples are taken from
_NAMED = 8  # new words, at most


def write(source: Source, folder: Path) -> None:
    """Writes the sets as files that `text(path=folder)` reads, a line an example.

    `train.en` and `train.de`, `val.en`, `val.de` and so on; further references are
    `val.de.1`, ….

    Raises:
      UserError: the folder is there.
    """
    if storage.exists(folder):
        raise UserError(f'--write={folder} is there already: give a new folder')
    with storage.replacing(folder) as draft:
        draft.mkdir()
        _write_set(draft, 'train', source, _sentences(source.train()), 1)
        for name, pairs in source.evaluation().items():
            sentences = list(_sentences(pairs))
            most = max(len(references) for _, references in sentences)
            _write_set(draft, name, source, sentences, most)


def _write_set(
    folder: Path, name: str, source: Source, sentences: Iterable[Sentence], most: int
) -> None:
    """Where a sentence has fewer references than others, their lines are blank."""
    targets = [source.target, *(f'{source.target}.{i}' for i in range(1, most))]
    with contextlib.ExitStack() as stack:
        files = []
        for ending in (source.source, *targets):
            file = (folder / f'{name}.{ending}').open('w', encoding='utf-8', newline='')
            files.append(stack.enter_context(file))
        for text, references in sentences:
            missing = [''] * (most - len(references))
            for file, column in zip(files, (text, *references, *missing), strict=True):
                file.write(f'{on_one_line(column)}\n')


def text(source: Source) -> str:
    """Sizes and lengths of the sets, what of them is new to training, and examples."""
    sets = {name: list(_sentences(x)) for name, x in source.evaluation().items()}
    held_out = {sentence for pairs in sets.values() for sentence, _ in pairs}
    trained = set()
    examples = []
    lengths = array.array('l')
    known: set[str] = set()
    for i, sentence in enumerate(_sentences(source.train())):
        known.update(_both(sentence))
        lengths.extend(_words(sentence))
        if sentence[0] in held_out:
            trained.add(sentence[0])
        if i % _EVERY == 0 and len(examples) < _EXAMPLES:
            examples.append(sentence)
    rows = [_row('train', lengths, None)]
    for name, pairs in sets.items():
        own = array.array('l', [n for sentence in pairs for n in _words(sentence)])
        rows.append(_row(name, own, sum(sentence in trained for sentence, _ in pairs)))
    lines = [
        console.table(
            ['set', 'pairs', source.source, 'most', source.target, 'most', 'trained'],
            rows,
        ),
        f'{source.source}, {source.target}: words of a side, in the mean and at most',
        "trained: pairs whose source is also one of training's",
    ]
    for name, pairs in sets.items():
        words = dict.fromkeys(word for sentence in pairs for word in _both(sentence))
        new = [word for word in words if word not in known]
        if new:
            some = ' '.join(new[:_NAMED]) + (' …' if len(new) > _NAMED else '')
            share = f'{len(new):,} of {len(words):,} words'
            lines.append(f'{name}: {share} are not in training: {some}')
    for why, count in source.left_out.items():
        lines.append(f'left out of training: {count:,} by {why}')
    for sentence, references in examples:
        lines += ['', sentence, *(f'    {reference}' for reference in references)]
    return '\n'.join(lines)


def _both(sentence: Sentence) -> list[str]:
    """The words of the source and of all references."""
    text, references = sentence
    return ' '.join((text, *references)).split()


def _words(sentence: Sentence) -> tuple[int, int]:
    """How many there are of the source and of the first reference."""
    return len(sentence[0].split()), len(sentence[1][0].split())


def _row(name: str, lengths: 'array.array[int]', trained: int | None) -> list:
    sides = np.reshape(lengths, (-1, 2))
    means, most = sides.mean(0).tolist(), sides.max(0).tolist()
    return [name, len(sides), means[0], most[0], means[1], most[1], trained]


def _sentences(
    pairs: Iterable[tuple[str, str | tuple[str, ...]]],
) -> Iterator[Sentence]:
    for source, known in pairs:
        yield source, (known,) if isinstance(known, str) else tuple(known)
