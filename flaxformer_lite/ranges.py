"""What a value may be: said in its annotation, and checked here.

    window: Annotated[int, Range(at_least=1)] = 16
    cell: Annotated[str, Choices('gru', 'lstm')] = 'gru'

A class that is `Checked` refuses other values when it is made, and a `checked` function
when it is called; `check` is for a value by itself, such as a field of a config.
"""

import dataclasses
import difflib
import functools
import inspect
import math
import numbers
import operator
import re
import struct
import types
import typing
from collections.abc import Callable, Iterable
from typing import Annotated, Any

LARGEST_INT = 2**31 - 1  # JAX's whole numbers are int32
SMALLEST_FLOAT = 2.0**-126  # what is nearer to 0 counts as 0 on most devices
LONGEST_SHOWN = 80  # characters of a value in a message


@dataclasses.dataclass(frozen=True)
class Range:
    """Numbers that lie between bounds, of which any may be left out.

    Whole numbers without an upper bound must fit int32. Others are compared as the
    float32 that they become, and must be finite as such: 1e-50 is not above 0, nor
    0.999999999 below 1.
    """

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None

    def check(self, name: str, value: Any, whole: bool) -> None:
        """Raises ValueError for a number out of range, or no integer where `whole`."""
        number = value if whole else _float32(value)
        allowed = []
        refused = False
        for bound, holds in _BOUNDS.items():
            limit = getattr(self, bound)
            if limit is None:
                continue
            allowed.append(f'{bound.replace("_", " ")} {limit}')
            if not holds(number, limit if whole else _float32(limit)):
                refused = True
        if not refused:
            allowed.append(self._fitting(value, whole))
        if refused or allowed[-1]:
            words = ' and '.join(allowed)
            raise ValueError(f'{name} must be {words}, not {shown(value)}')

    def words(self) -> str:
        """The bounds in words: `from 1 to 8`, `at least 0 and below 1`."""
        if self.at_least is not None and self.at_most is not None:
            return f'from {self.at_least} to {self.at_most}'
        bounds = {bound: getattr(self, bound) for bound in _BOUNDS}
        return ' and '.join(
            f'{bound.replace("_", " ")} {limit}'
            for bound, limit in bounds.items()
            if limit is not None
        )

    def _fitting(self, value: Any, whole: bool) -> str:
        """What a number must be for JAX to hold it; nothing where it is that."""
        # In the place of a float too, JAX reads a whole number as one.
        if not isinstance(value, numbers.Integral):
            return '' if math.isfinite(_float32(value)) else 'finite in float32'
        has_upper_bound = self.at_most is not None or self.below is not None
        is_int32 = -LARGEST_INT <= int(value) <= LARGEST_INT
        fits = is_int32 or (whole and has_upper_bound)
        return '' if fits else f'within ±{LARGEST_INT}'


_BOUNDS = {
    'at_least': operator.ge,
    'above': operator.gt,
    'at_most': operator.le,
    'below': operator.lt,
}


@dataclasses.dataclass(frozen=True, init=False)
class Choices:
    """One of a few words."""

    words: tuple[str, ...]

    def __init__(self, *words: str):
        object.__setattr__(self, 'words', words)

    def check(self, name: str, value: Any) -> None:
        """Raises ValueError where the value is none of them."""
        if value not in self.words:
            known = ', '.join(self.words)
            raise ValueError(f'{name} must be one of {known}, not {shown(value)}')


@dataclasses.dataclass(frozen=True)
class Pattern:
    """A regular expression, which is searched for in some text; '' is none."""

    def check(self, name: str, value: Any) -> None:
        """Raises ValueError where the value cannot be one."""
        try:
            re.compile(value)
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(
                f'{name} must be a regular expression, not {shown(value)}: {error}'
            ) from None


# Annotations that many arguments share.
Size = Annotated[int, Range(at_least=1)]
Positive = Annotated[float, Range(above=0)]
NotNegative = Annotated[float, Range(at_least=0)]
Epsilon = Annotated[float, Range(above=0, at_most=1)]  # added to what is divided by
Rate = Annotated[float, Range(at_least=0, below=1)]  # of what is dropped, or kept
Regex = Annotated[str, Pattern()]


def check(name: str, annotation: Any, value: Any) -> None:
    """Refuses a value of another type than annotated, or beyond its limit.

    Raises:
      ValueError: names the argument, the value and what it may be.
    """
    kinds = types_of(annotation)
    if not any(_is(value, kind) for kind in kinds):
        words = ' or '.join(getattr(kind, '__name__', str(kind)) for kind in kinds)
        raise ValueError(f'{name} must be of type {words}, not {shown(value)}')
    limit = limit_of(annotation)
    if isinstance(limit, Choices | Pattern) and value is not None:
        limit.check(name, value)
    if isinstance(limit, Range) and _is_number(value):
        limit.check(name, value, whole=float not in kinds)


def limit_of(annotation: Any) -> Range | Choices | Pattern | None:
    """The Range, Choices or Pattern that stands in an annotation."""
    for note in getattr(annotation, '__metadata__', ()):
        if isinstance(note, (Range, Choices, Pattern)):
            return note
    return None


def is_literal(annotation: Any) -> bool:
    """Whether an argument takes numbers, words or switches: what a spec can hold."""
    return bool({int, float, str, bool} & set(types_of(annotation)))


class Checked:
    """A dataclass or module whose attributes are checked by their annotations."""

    def __post_init__(self):
        for name, annotation in _limited(type(self)):
            check(name, annotation, getattr(self, name))
        following = getattr(super(), '__post_init__', None)
        if following is not None:
            following()


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with arguments checked by annotations as in a `Checked` class."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checking(*args: Any, **kwargs: Any) -> Any:
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            annotation = signature.parameters[name].annotation
            if limit_of(annotation) is not None:
                check(name, annotation, value)
        return function(*args, **kwargs)

    return checking


def shown(value: Any) -> str:
    """A value as a message shows it, cut where it is long."""
    try:
        text = repr(value)
    except ValueError:  # Python does not write out integers of more than 4,300 digits
        return 'a number of thousands of digits'
    if len(text) <= LONGEST_SHOWN:
        return text
    return f'{text[: LONGEST_SHOWN // 2]}… ({len(text):,} characters)'


def nearest(name: str, known: Iterable[str]) -> str:
    """What to add to a message where one of the known names may have been meant.

    Names are compared by their last word: of `model.dropuot` it is `dropuot`. Sections
    are alike for many names that are not meant.
    """

    def likeness(candidate: str) -> tuple[float, float]:
        last_words = [text.rsplit('.', 1)[-1] for text in (name, candidate)]
        return _ratio(*last_words), _ratio(name, candidate)

    best = max(known, key=likeness, default='')
    if not best or likeness(best)[0] < 0.7:
        return ''
    return f'; did you mean {best!r}?'


def _ratio(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()


@functools.lru_cache(maxsize=1024)
def _limited(cls: type) -> tuple[tuple[str, Any], ...]:
    """The attributes of a dataclass that have a limit."""
    found = [(field.name, field.type) for field in dataclasses.fields(cls)]
    return tuple((name, kind) for name, kind in found if limit_of(kind) is not None)


def types_of(annotation: Any) -> tuple[Any, ...]:
    """The types of an annotation: of `Annotated[int | None, …]`, int and None's."""
    if typing.get_origin(annotation) is Annotated:
        annotation = typing.get_args(annotation)[0]
    if isinstance(annotation, types.UnionType):
        return typing.get_args(annotation)
    return (annotation,)


def _is(value: Any, kind: Any) -> bool:
    """Whether a value is of a type; integers are numbers, True and False are not."""
    if not isinstance(kind, type) or kind in (Any, inspect.Parameter.empty):
        return True
    if isinstance(value, bool):
        return kind in (bool, object)
    if kind is float:
        return isinstance(value, numbers.Real)
    if kind is int:
        return isinstance(value, numbers.Integral)
    return isinstance(value, kind)


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _float32(value: Any) -> float:
    try:
        (number,) = struct.unpack('f', struct.pack('f', value))
    except (OverflowError, struct.error):
        return math.inf if value > 0 else -math.inf
    return 0.0 if abs(number) < SMALLEST_FLOAT else number
