"""The one error whose message is for the user: printed as a line, without a traceback."""

import difflib
import sys
from collections.abc import Iterable

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


def nearest(name: str, names: Iterable[str]) -> str:
    """What to add to a message where one of the names may have been meant: its last word is alike.

    Of `model.dropuot`, the last word is `dropuot`; sections are alike for many that are not meant.
    """

    def likeness(known: str) -> tuple[float, float]:
        words = [text.rsplit('.', 1)[-1] for text in (name, known)]
        return _ratio(*words), _ratio(name, known)

    best = max(names, key=likeness, default='')
    if not best or likeness(best)[0] < 0.7:
        return ''
    return f'; did you mean {best!r}?'


def _ratio(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()


def _escaped(character: str) -> str:
    return character.encode('unicode_escape').decode()
