"""Lines of text as they arrive: one by one from a person, many at once from a file."""

import os
import select
from collections.abc import Iterator

from experiments.errors import UserError

_BLOCK = 1 << 16
# Seconds to wait for more lines that are just being written.
_WAIT = 0.01


def windows(descriptor: int, most: int) -> Iterator[list[str]]:
    """The lines of a file, a pipe or a terminal: each time those that have arrived.

    Each time there are at most `most`. Only \\n ends a line; what follows the last \\n
    is one, too. They are UTF-8 whatever the locale.

    Raises:
      UserError: a line is not UTF-8; those before it were yielded.
    """
    # Not with a file object: `select` does not see what that has read ahead.
    number = 0
    lines: list[bytes] = []
    rest = b''
    ended = False
    while lines or not ended:
        while not ended and len(lines) < most and (not lines or _is_ready(descriptor)):
            block = os.read(descriptor, _BLOCK)
            ended = not block
            *whole, rest = (rest + block).split(b'\n')
            lines += whole
            if ended and rest:
                lines.append(rest)
        texts: list[str] = []
        for line in lines[:most]:
            number += 1
            try:
                texts.append(line.decode().rstrip('\r'))
            except UnicodeDecodeError as error:
                if texts:
                    yield texts
                raise UserError(
                    f'standard input, line {number}: not UTF-8 ({error.reason})'
                ) from None
        del lines[:most]
        if texts:
            yield texts


def _is_ready(descriptor: int) -> bool:
    """Whether reading returns at once. A file is always ready, at its end too."""
    try:
        return bool(select.select([descriptor], [], [], _WAIT)[0])
    except OSError:  # Windows, where `select` works on sockets only
        return False
