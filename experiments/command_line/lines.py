"""The lines of standard input, as UTF-8, when they arrive."""

import os
import sys
from collections.abc import Iterator, Sequence

from experiments.errors import UserError

_BLOCK = 1 << 20  # bytes to read at once, which only files give


def line_windows(descriptor: int) -> Iterator[list[str]]:
    """The lines of a file, a pipe or a terminal: each time those that have arrived.

    Only a line feed ends a line; what follows the last one is one, too. They are UTF-8
    whatever the locale.

    Raises:
      UserError: a line is not UTF-8; those before it were yielded.
    """
    if os.isatty(descriptor):
        print('reading lines from here; Ctrl-D ends', file=sys.stderr)
    number = 0
    rest = b''
    # Not by a file object, which would wait until a block is full.
    while block := os.read(descriptor, _BLOCK):
        *lines, rest = (rest + block).split(b'\n')
        yield from _decoded(lines, number)
        number += len(lines)
    if rest:
        yield from _decoded([rest], number)


def _decoded(lines: Sequence[bytes], before: int) -> Iterator[list[str]]:
    """The lines as one list of texts; those before one that is not UTF-8."""
    texts = []
    for line in lines:
        try:
            texts.append(line.decode().rstrip('\r'))
        except UnicodeDecodeError:
            yield texts
            where = f'standard input, line {before + len(texts) + 1}'
            raise UserError(f'{where}: not UTF-8') from None
    if texts:
        yield texts
