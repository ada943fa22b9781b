"""Lines of text as they come: at once from who waits for an answer, many together from a file."""

import os
import select
from collections.abc import Iterator

from experiments.command_line.errors import UserError

_BLOCK = 1 << 16
# Seconds to wait for more of what is being written just now.
_WAIT = 0.01


def windows(descriptor: int, most: int) -> Iterator[list[str]]:
    """The lines of a file, a pipe or a terminal: each time those that are there, up to `most`.

    They end with \\n alone, and are UTF-8 whatever the locale. What follows the last \\n is a line.

    Raises:
      UserError: a line is not UTF-8; those before it were yielded.
    """
    number = 0
    for window in _windows(descriptor, most):
        texts: list[str] = []
        for line in window:
            number += 1
            try:
                texts.append(line.decode('utf-8').rstrip('\r'))
            except UnicodeDecodeError as error:
                if texts:
                    yield texts
                raise UserError(
                    f'standard input, line {number}: not UTF-8 ({error.reason})'
                ) from None
        yield texts


def _windows(descriptor: int, most: int) -> Iterator[list[bytes]]:
    # Not by a file object: what it has read ahead, `select` does not see.
    lines: list[bytes] = []
    rest = bytearray()
    ended = False
    while lines or not ended:
        while not ended and len(lines) < most and (not lines or _is_ready(descriptor)):
            block = os.read(descriptor, _BLOCK)
            rest += block
            ended = not block
            if b'\n' in block:
                *whole, last = rest.split(b'\n')
                lines.extend(map(bytes, whole))
                rest = last
        if ended and rest:
            lines.append(bytes(rest))
            rest.clear()
        if lines:
            yield lines[:most]
            del lines[:most]


def _is_ready(descriptor: int) -> bool:
    """Whether reading returns at once. A file is always ready, at its end too."""
    try:
        return bool(select.select([descriptor], [], [], _WAIT)[0])
    except OSError:  # Windows, which can ask this of sockets alone
        return False
