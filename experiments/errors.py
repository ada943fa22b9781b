"""Errors that are printed for the user on one line, without a traceback."""

import re
import sys
import textwrap
import traceback
import types
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from flaxformer_lite.config import spec
from flaxformer_lite.validation import Checked

LONGEST = 1000  # characters of a line
# C0, DEL and C1, bidirectional controls, surrogates and noncharacters.
_CONTROLS = re.compile(
    '[\0-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]'
)


class UserError(Exception):
    """An error that the user can correct.

    The message names the field or file, its value, and the fix. Every function of the
    runner raises it for invalid input, and for missing, damaged or unwritable files.
    Docstrings of internal functions don't repeat this.
    """


@contextmanager
def user_errors(before: str = '') -> Iterator[None]:
    """Converts errors of the library to UserError, with an optional prefix.

    Errors of a user-defined component keep their traceback. The command names the extra
    of a missing package.
    """
    try:
        yield
    except (ValueError, ModuleNotFoundError) as error:
        is_missing = isinstance(error, ModuleNotFoundError) and error.name
        if is_missing or is_of_component(error):
            raise
        raise UserError(f'{before}{error}') from None


@contextmanager
def prefix_errors(what: object) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        raise UserError(f'{what}: {error}') from None


def check_list(name: str, items: Iterable[Any]) -> None:
    """Raises UserError for a string, whose characters Python would iterate over."""
    if isinstance(items, str):
        raise UserError(
            f'{name}: a single text was given. Pass a list, such as [{items[:50]!r}].'
        )


def check_texts(name: str, items: Iterable[Any]) -> None:
    """Raises UserError unless the items are strings."""
    check_list(name, items)
    for i, text in enumerate(items):
        if not isinstance(text, str):
            raise UserError(f'{name}[{i}] must be a string, not {text!r:.60}.')


def reason(error: object) -> str:
    """Returns the message of another package, shortened to one line."""
    return textwrap.shorten(str(error) or repr(error), 250, placeholder=' …')


def warn(message: str) -> None:
    """Prints a warning about a problem that needs no action from the user."""
    note(f'warning: {message}')


def note(message: str) -> None:
    """Prints a message on stderr, as one printable line."""
    print(line(message), file=sys.stderr, flush=True)


def component_error(error: BaseException) -> tuple[str, str] | None:
    """Describes an error of a user-defined component; returns None for other errors.

    Returns a line that names the component, and the traceback of its code.
    """
    cause, package = error, None
    if isinstance(error, spec.ModuleError) and error.__cause__:
        cause, package = error.__cause__, error.name
    trace = own_traceback(cause, package)
    if cause is not error:
        first = str(error)
    elif trace is None:
        return None
    else:
        frame = trace.tb_frame
        name = f'{frame.f_globals["__name__"]}.{frame.f_code.co_qualname}'
        first = f'{name} raised {type(error).__name__}: {error}'.removesuffix(': ')
    lines = traceback.format_exception(type(cause), cause, trace)
    return line(first), ''.join(lines)


def is_of_component(error: BaseException) -> bool:
    """Returns whether a user's component raised an error while it ran.

    Errors while it is built don't count.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    modules = [frame.f_globals.get('__name__') for frame in frames]
    return spec.__name__ not in modules and own_traceback(error) is not None


def own_traceback(
    error: BaseException, package: str | None = None
) -> types.TracebackType | None:
    """Returns the traceback from the first frame of a user's code, if any.

    Args:
      package: Defaults to the packages that define components.
    """
    packages = _packages_of_components() if package is None else {package}
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        # Such as the methods of a dataclass.
        is_generated = frame.f_code.co_filename == '<string>'
        name = frame.f_globals.get('__name__', '')
        if name.partition('.')[0] in packages and not is_generated:
            return trace
        trace = trace.tb_next
    return None


def _packages_of_components() -> set[str]:
    """Returns the packages, outside this project, of the imported components."""
    found = set()
    classes: list[type] = [Checked]
    while classes:
        cls = classes.pop()
        found.add(cls.__module__.partition('.')[0])
        classes += cls.__subclasses__()
    # Flax's transforms, such as `nn.remat`, derive classes from ours.
    return found - {*spec.OWN_PACKAGES, 'flax'}


def line(error: object) -> str:
    """Returns the message as one printable line; cuts a very long one."""
    text = ' '.join(str(error).splitlines())
    if len(text) > LONGEST:
        text = f'{text[: LONGEST // 2]} … {text[-LONGEST // 2 :]}'
    return ''.join(x if x.isprintable() else _escaped(x) for x in text)


def printable(text: str, keep: str = '\t\n') -> str:
    r"""Returns the text with control characters as escapes, such as `\x1b`."""
    return _CONTROLS.sub(lambda x: x[0] if x[0] in keep else _escaped(x[0]), text)


def _escaped(character: str) -> str:
    return character.encode('unicode_escape').decode()
