"""Checks of what a user's own component returns, by the annotations of its base class.

Errors read `my_parts.Rows.evaluation: returned None. Return Mapping[str, …].`
"""

import collections.abc
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

from flaxformer_lite import validation

_SEQUENCES = (list, collections.abc.Sequence)
_NUMBERS = {float: '__float__', int: '__index__'}
_CHECKED = '_checks_result'


class ResultError(ValueError):
    """A component returned what its base class does not allow."""


def check_results(cls: type, base: type) -> None:
    """Makes the methods of a user's class check what they return.

    `base` annotates the methods of its kind. Inherited methods are unchanged.
    """
    for name, method in list(vars(cls).items()):
        kinds = getattr(getattr(base, name, None), '__annotations__', {})
        returned = kinds.get('return')
        if not inspect.isfunction(method) or hasattr(method, _CHECKED):
            continue
        if returned is not None:
            title = f'{cls.__module__}.{cls.__qualname__}.{name}'
            setattr(cls, name, _checked(method, title, kinds))


def _checked(
    method: Callable[..., Any], title: str, kinds: dict[str, Any]
) -> Callable[..., Any]:
    returned = kinds['return']
    has_item_each = _maps_items(kinds)

    @functools.wraps(method)
    def call(self: Any, *args: Any, **named: Any) -> Any:
        found = method(self, *args, **named)
        wrong = _mismatch(returned, found)
        if has_item_each and not wrong:
            given = next(iter((*args, *named.values())), ())
            if len(found) != len(given):
                wrong = f'{len(found)} items for {len(given)}'
        if wrong:
            raise _error(title, wrong, returned)
        if typing.get_origin(returned) is collections.abc.Iterator:
            return _checked_items(found, title, returned)
        return found

    setattr(call, _CHECKED, True)
    return call


def _maps_items(kinds: dict[str, Any]) -> bool:
    """Returns whether a method maps a list to a list of other items, one for each."""
    argument, returned = next(iter(kinds.values())), kinds['return']
    are_lists = all(typing.get_origin(x) in _SEQUENCES for x in (argument, returned))
    return are_lists and typing.get_args(argument) != typing.get_args(returned)


def _checked_items(items: Any, title: str, returned: Any) -> Iterator[Any]:
    (kind,) = typing.get_args(returned)
    for item in items:
        wrong = _mismatch(kind, item)
        if wrong:
            raise _error(title, f'an iterator with {wrong}', returned)
        yield item


def _error(title: str, wrong: str, returned: Any) -> ResultError:
    kind = re.sub(r'(\w+\.)+', '', inspect.formatannotation(returned))
    return ResultError(f'{title}: returned {wrong}. Return {kind}.')


def check_type(title: str, value: Any, kind: type) -> None:
    """Raises ResultError if a value doesn't fit a type."""
    if not isinstance(value, kind):
        raise _error(title, _named(value), kind)


def _mismatch(kind: Any, value: Any) -> str:
    """Returns what is wrong with a value, such as `'None'`; `''` if it fits."""
    if kind in (None, Any, types.NoneType) or isinstance(kind, str):
        return ''
    options = typing.get_args(kind)
    origin = typing.get_origin(kind) or kind
    if origin in (types.UnionType, typing.Union):
        wrong = [_mismatch(x, value) for x in options if x is not types.NoneType]
        is_allowed = '' in wrong or value is None and types.NoneType in options
        return '' if is_allowed else wrong[0]
    if not _is_of(origin, value):
        return _named(value)
    items, kinds = _items(origin, options, value)
    if len(items) != len(kinds):
        return f'{_named(value)} of {len(items)} items'
    wrong = filter(None, map(_mismatch, kinds, items))
    first = next(wrong, '')
    return f'{_named(value)} with {first}' if first else ''


def _is_of(origin: Any, value: Any) -> bool:
    is_text = isinstance(value, str | bytes)
    if origin in _NUMBERS:
        return hasattr(value, _NUMBERS[origin])
    if origin in (str, bytes, collections.abc.Mapping, dict):
        return isinstance(value, origin)
    if origin in (*_SEQUENCES, tuple):
        has_items = hasattr(value, '__len__') and hasattr(value, '__getitem__')
        return has_items and not is_text and not isinstance(value, dict)
    if origin is collections.abc.Iterator:
        return hasattr(value, '__iter__') and not is_text
    return value is not None


def _items(origin: Any, kinds: tuple[Any, ...], value: Any) -> tuple[Any, list[Any]]:
    """Returns the items to check, and the kind of each; none for arrays."""
    if hasattr(value, 'dtype') or not kinds:
        return [], []
    if origin in (collections.abc.Mapping, dict):
        return list(value.values()), [kinds[1]] * len(value)
    if origin in _SEQUENCES or origin is tuple and kinds[-1] is ...:
        return value, [kinds[0]] * len(value)
    return (value, list(kinds)) if origin is tuple else ([], [])


def _named(value: Any) -> str:
    if value is None or isinstance(value, str | int | float):
        return validation.quote(value)
    return f'a {type(value).__name__}'
