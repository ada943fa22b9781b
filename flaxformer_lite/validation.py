"""Validation of values by limits in their annotations.

    window: Annotated[int, Range(at_least=1)] = 16
    cell: Annotated[str, Choices('gru', 'lstm')] = 'gru'

A `Checked` class validates its attributes when it is created, `check` a single value.
"""

import contextlib
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
from collections.abc import Iterable
from typing import Annotated, Any, dataclass_transform

LARGEST_INT = 2**31 - 1  # JAX integers are int32
SMALLEST_FLOAT = 2.0**-126  # most devices flush smaller numbers to 0
LONGEST_SHOWN = 80  # characters of a value in an error message


@dataclasses.dataclass(frozen=True)
class Range:
    """Optional bounds of a number.

    Integers without an upper bound must fit int32. Floats are rounded to float32 and
    must be finite: 1e-50 is not above 0, and 0.999999999 is not below 1.
    """

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None

    def check(self, name: str, value: Any, whole: bool) -> None:
        convert = int if whole else _float32
        limits = {bound: getattr(self, bound) for bound in _BOUNDS}
        is_within = all(
            limit is None or _BOUNDS[bound](convert(value), convert(limit))
            for bound, limit in limits.items()
        )
        fitting = self._fitting(value, whole) if is_within else ''
        if fitting or not is_within:
            allowed = ' and '.join(filter(None, [*self._bounds(), fitting]))
            raise ValueError(f'{name} must be {allowed}, not {quote(value)}')

    def words(self) -> str:
        """Returns the bounds in words: `from 1 to 8`, `at least 0 and below 1`."""
        if self.at_least is not None and self.at_most is not None:
            return f'from {self.at_least} to {self.at_most}'
        return ' and '.join(self._bounds())

    def _bounds(self) -> list[str]:
        limits = {bound: getattr(self, bound) for bound in _BOUNDS}
        return [
            f'{x.replace("_", " ")} {y}' for x, y in limits.items() if y is not None
        ]

    def _fitting(self, value: Any, whole: bool) -> str:
        # JAX treats an integer as an integer even where a float is expected.
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
    """A fixed set of allowed words."""

    words: tuple[str, ...]

    def __init__(self, *words: str):
        object.__setattr__(self, 'words', words)

    def check(self, name: str, value: Any) -> None:
        if value not in self.words:
            known = ', '.join(self.words)
            raise ValueError(f'{name} must be one of {known}, not {quote(value)}')


@dataclasses.dataclass(frozen=True)
class Pattern:
    """A regular expression for `re.search`; '' disables it."""

    def check(self, name: str, value: Any) -> None:
        try:
            re.compile(value)
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(
                f'{name} must be a regular expression, not {quote(value)}: {error}'
            ) from None


# Shared annotations.
Size = Annotated[int, Range(at_least=1)]
Positive = Annotated[float, Range(above=0)]
NotNegative = Annotated[float, Range(at_least=0)]
Epsilon = Annotated[float, Range(above=0, at_most=1)]  # added to a divisor
Rate = Annotated[float, Range(at_least=0, below=1)]  # a fraction dropped or kept
Regex = Annotated[str, Pattern()]


def check(name: str, annotation: Any, value: Any) -> None:
    """Checks a value against the type and limit of its annotation.

    Raises:
      ValueError: Names the argument, the value and the allowed values.
    """
    kinds = types_of(annotation)
    if not any(_is(value, kind) for kind in kinds):
        words = ' or '.join(getattr(kind, '__name__', str(kind)) for kind in kinds)
        raise ValueError(f'{name} must be of type {words}, not {quote(value)}')
    limit = limit_of(annotation)
    if isinstance(limit, Choices | Pattern) and value is not None:
        limit.check(name, value)
    if isinstance(limit, Range) and _is_number(value):
        limit.check(name, value, whole=float not in kinds)


@contextlib.contextmanager
def naming(field: str):
    """Prefixes the message of a ValueError with a field's name."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f'{field}: {error}') from None


def limit_of(annotation: Any) -> Range | Choices | Pattern | None:
    for note in getattr(annotation, '__metadata__', ()):
        if isinstance(note, (Range, Choices, Pattern)):
            return note
    return None


def is_literal(annotation: Any) -> bool:
    """Returns whether an argument takes numbers, strings or booleans, as in a spec."""
    return bool({int, float, str, bool} & set(types_of(annotation)))


class Checked:
    """Mixin for dataclasses and modules that validates annotated attributes."""

    def __post_init__(self):
        check_attributes(self)
        following = getattr(super(), '__post_init__', None)
        if following is not None:
            following()


def check_attributes(checked: Any) -> None:
    """Checks the annotated attributes of an object of a `Checked` class."""
    kind = type(checked).__name__
    for name, annotation in _limited(type(checked)):
        check(f'{kind}.{name}', annotation, getattr(checked, name))


@dataclass_transform(frozen_default=True)
@dataclasses.dataclass(frozen=True)
class FrozenDataclass(Checked):
    """A base class whose subclasses are frozen dataclasses that check their fields."""

    def __init_subclass__(cls, **settings: Any):
        super().__init_subclass__(**settings)
        dataclasses.dataclass(frozen=True)(cls)


def quote(value: Any) -> str:
    """Returns the repr of a value for an error message, shortened if long."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print integers of more than 4,300 digits
        return 'a number of thousands of digits'
    if len(text) <= LONGEST_SHOWN:
        return text
    return f'{text[: LONGEST_SHOWN // 2]}… ({len(text):,} characters)'


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns a "did you mean" suffix for an error message, or ''.

    It compares the last component of names, and treats '-' as '_', and 'A' as 'a'.

    Examples:
      >>> did_you_mean('model.dropuot', ['model.dropout', 'model.d_ff'])
      "; did you mean 'model.dropout'?"
      >>> did_you_mean('pre-norm', ['layer', 'pre_norm'])
      "; did you mean 'pre_norm'?"
      >>> did_you_mean('Beam', ['BeamSearch', 'Sample'])
      "; did you mean 'BeamSearch'?"
    """

    def likeness(candidate: str) -> tuple[float, float]:
        one, other = (text.lower().replace('-', '_') for text in (name, candidate))
        if one.replace('.', '_') == other.replace('.', '_'):
            return 1, 1
        last_words = [text.rsplit('.', 1)[-1] for text in (one, other)]
        is_start = len(last_words[0]) > 3 and last_words[1].startswith(last_words[0])
        return 0.9 if is_start else _ratio(*last_words), _ratio(one, other)

    best = max(known, key=likeness, default='')
    if not best or likeness(best)[0] < 0.7:
        return ''
    return f'; did you mean {best!r}?'


def _ratio(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()


@functools.lru_cache(maxsize=1024)
def _limited(cls: type) -> tuple[tuple[str, Any], ...]:
    found = [(field.name, field.type) for field in dataclasses.fields(cls)]
    return tuple((name, kind) for name, kind in found if limit_of(kind) is not None)


def types_of(annotation: Any) -> tuple[Any, ...]:
    """Returns an annotation's types: int, None for `Annotated[int | None, …]`."""
    if typing.get_origin(annotation) is Annotated:
        annotation = typing.get_args(annotation)[0]
    # `int | None` and `Optional[int]` have different origins before Python 3.14.
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return typing.get_args(annotation)
    return (annotation,)


def _is(value: Any, kind: Any) -> bool:
    """Returns whether a value has a type: an integer is a float, True isn't an int."""
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
