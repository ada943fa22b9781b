"""The lines of standard input, as UTF-8, when they arrive."""

import os
from collections.abc import Iterator

from experiments.errors import UserError

_BLOCK = 1 << 20  # bytes to read at once, which only files give


def line_windows(descriptor: int) -> Iterator[list[str]]:
    """The lines of a file, a pipe or a terminal: each time those that have arrived.

    Only a line feed ends a line; what follows the last one is one, too. They are UTF-8
    whatever the locale.

    Raises:
      UserError: a line is not UTF-8.
    """
    number = 0
    rest = b''
    # Not by a file object, which would wait until a block is full.
    while block := os.read(descriptor, _BLOCK):
        *lines, rest = (rest + block).split(b'\n')
        if lines:
            yield [_text(line, number + i) for i, line in enumerate(lines, 1)]
        number += len(lines)
    if rest:
        yield [_text(rest, number + 1)]


def _text(line: bytes, number: int) -> str:
    try:
        return line.decode().rstrip('\r')
    except UnicodeDecodeError:
        raise UserError(f'standard input, line {number}: not UTF-8') from None
