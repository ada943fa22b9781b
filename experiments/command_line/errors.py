"""The error whose message is for the user: printed on one line, without a traceback."""

import difflib
import sys
from collections.abc import Iterable

LONGEST = 1000  # characters of a line
_LEAST_SIMILARITY = 0.7  # of a name that may have been meant


class UserError(Exception):
    """Something that the user can correct.

    The message names the field or file, its value, and what to do.
    """


def warn(message: str) -> None:
    """Prints a line on stderr on what was wrong and is corrected without the user."""
    print('warning:', message, file=sys.stderr, flush=True)


def line(error: UserError) -> str:
    """The message as one line that a terminal can show; a very long one is cut."""
    text = ' '.join(str(error).splitlines())
    if len(text) > LONGEST:
        text = f'{text[: LONGEST // 2]} … {text[-LONGEST // 2 :]}'
    return ''.join(_printable(character) for character in text)


def nearest(name: str, names: Iterable[str]) -> str:
    """`; did you mean 'model.dropout'?`, or nothing where no name is similar.

    Names are compared by their last words, of `model.dropuot` it is `dropuot`: all
    names of a section are similar as a whole.
    """

    def similarity(known: str) -> tuple[float, float]:
        return _ratio(_last_word(name), _last_word(known)), _ratio(name, known)

    best = max(names, key=similarity, default='')
    if not best:
        return ''
    similarity_of_last_words, _ = similarity(best)
    if similarity_of_last_words < _LEAST_SIMILARITY:
        return ''
    return f'; did you mean {best!r}?'


def _last_word(name: str) -> str:
    return name.rsplit('.', 1)[-1]


def _ratio(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()


def _printable(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode('unicode_escape').decode()
