"""Documents: consecutive sentences as one example.

Examples are blocks (Liu et al. 2020, "mBART"; Sun et al. 2022), so each sentence is
translated once.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import TypeVar

from experiments.errors import UserError

SEPARATOR = '<sep>'  # between the sentences of an example
T = TypeVar('T')
# For each document, the numbers of sentences of its examples.
Documents = Sequence[Sequence[int]]


def blocks(number: int, window: int) -> list[int]:
    """Returns the sizes of blocks of `window` sentences; the last may be smaller.

    Examples:
      >>> blocks(7, window=3)
      [3, 3, 1]
    """
    sizes = [window] * (number // window)
    return [*sizes, number % window] if number % window else sizes


def grouped(items: Sequence[T], sizes: Sequence[int]) -> Iterator[Sequence[T]]:
    ends = itertools.accumulate(sizes)
    return (items[end - size : end] for size, end in zip(sizes, ends, strict=True))


def joined(texts: Sequence[str]) -> str:
    for text in texts:
        if SEPARATOR in text:
            raise UserError(
                f'data: a sentence contains {SEPARATOR}, which separates sentences: '
                f'{text[:60]!r}. Remove it.'
            )
    return f' {SEPARATOR} '.join(texts)


def separated(text: str, number: int) -> list[str]:
    """Splits a translation into `number` sentences, possibly blank.

    Examples:
      >>> separated('a <sep> b <sep> c', 2)
      ['a', 'b c']
      >>> separated('a', 2)
      ['a', '']
    """
    found = [part.strip() for part in text.split(SEPARATOR)]
    found[number - 1 :] = [' '.join(found[number - 1 :])]
    return found + [''] * (number - len(found))
