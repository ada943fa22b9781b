"""The one error whose message is for the user: printed as a line, without a traceback."""

import sys

LONGEST = 1000  # characters of a line


class UserError(Exception):
    """Something the user can mend. The message names the field or file, the value and the mend."""


def warn(message: str) -> None:
    """Says in one line on stderr what was found wrong and is mended without the user."""
    print('warning:', message, file=sys.stderr, flush=True)


def line(error: UserError) -> str:
    """The message as one line that a terminal can show, cut where it is very long."""
    text = ' '.join(str(error).splitlines())
    if len(text) > LONGEST:
        text = f'{text[: LONGEST // 2]} … {text[-LONGEST // 2 :]}'
    return ''.join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return character.encode('unicode_escape').decode()
