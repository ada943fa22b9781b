"""Spec strings: `'local(window=64)'`, a file of a package and its class's arguments.

A variant is a file `<package>/<name>.py` that defines one public class. Nothing else
has to know it: this is the library's only import by name.
"""

import ast
import cmath
import importlib
import inspect
import pkgutil
import warnings
from collections.abc import Callable, Collection, Iterator
from typing import Any

from flaxformer_lite import ranges


def parse(spec: str) -> tuple[str, dict[str, Any]]:
    """`'local(window=64)'` → `('local', {'window': 64})`; values are literals.

    Raises:
      ValueError: the text is not a name, or a name with keyword arguments that are
        literals.
    """
    try:
        name, arguments = _read(spec)
    # What nests too deep is one of the last two, by the version of Python.
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        given = ranges.shown(spec)
        raise ValueError(
            f'{given} is not a spec: write name or name(argument=value, …)'
        ) from None
    for argument, value in arguments.items():
        floats = (x for x in numbers_in(value) if not isinstance(x, int))
        if not all(map(cmath.isfinite, floats)):  # such as 1e999
            raise ValueError(f'{argument} must be finite, not {ranges.shown(value)}')
    return name, arguments


def entries(text: str) -> list[str]:
    """`'[local(window=64), softmax]'` → `['local(window=64)', 'softmax']`.

    A spec without brackets is the only entry.

    Raises:
      ValueError: the brackets hold nothing, or what cannot be read.
    """
    if not text.lstrip().startswith('['):
        return [text]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')  # as in `_read`
            node = ast.parse(text.strip(), mode='eval').body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        node = None
    if not isinstance(node, ast.List) or not node.elts:
        raise ValueError(
            f'{ranges.shown(text)} is not a pattern over layers: write [spec, spec, …]'
        )
    return [ast.unparse(entry) for entry in node.elts]


def _read(spec: str) -> tuple[str, dict[str, Any]]:
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # of Python's style, such as an unknown escape
        node = ast.parse(spec.strip(), mode='eval').body
    if isinstance(node, ast.Name):
        return node.id, {}
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise ValueError('no name in front')
    arguments = {k.arg: ast.literal_eval(k.value) for k in node.keywords if k.arg}
    if node.args or len(arguments) != len(node.keywords):
        raise ValueError('an argument without a name, or one given twice')
    return node.func.id, arguments


def numbers_in(value: Any) -> Iterator[complex]:
    """The numbers of a literal, however deep they stand in it."""
    if isinstance(value, dict):
        value = (*value.keys(), *value.values())
    if isinstance(value, (tuple, list, set)):
        for part in value:
            yield from numbers_in(part)
    if isinstance(value, (int, float, complex)):
        yield value


def available(package: str) -> list[str]:
    """The names that `make` finds in a package: its files, but `base` and `_…`."""
    files = pkgutil.iter_modules(importlib.import_module(package).__path__)
    return sorted(
        f.name for f in files if not f.name.startswith('_') and f.name != 'base'
    )


def check_name(package: str, name: str) -> None:
    """Raises ValueError where `make` finds no such name, and lists the names."""
    names = available(package)
    if name in names:
        return
    hint = ranges.nearest(name, names)
    raise ValueError(f'{ranges.shown(name)} is not one of {", ".join(names)}{hint}')


def find(package: str, name: str) -> type:
    """The one public class that `<package>/<name>.py` defines.

    Raises:
      ValueError: there is no such file, and the message lists those that are there; or
        it does not define one public class.
    """
    check_name(package, name)
    module = importlib.import_module(f'{package}.{name}')
    public = [
        v
        for k, v in vars(module).items()
        if isinstance(v, type) and not k.startswith('_')
    ]
    classes = [c for c in public if c.__module__ == module.__name__]
    if len(classes) != 1:
        names = ', '.join(c.__name__ for c in classes) or 'none'
        raise ValueError(
            f'{package}.{name} must define one public class, and defines {names}: '
            'begin the names of the others with _'
        )
    return classes[0]


def parameters(function: Callable[..., Any]) -> dict[str, Any]:
    """What a class or function takes: name → annotation."""
    signature = inspect.signature(function)
    found = {name: p.annotation for name, p in signature.parameters.items()}
    if 'parent' in found:  # flax adds these two to every module
        del found['parent'], found['name']
    return found


def make(package: str, spec: str, **given: Any) -> Any:
    """The object that a spec names.

    Args:
      package: whose files the name may be of.
      spec: the name, and arguments that the user gives.
      given: arguments that every class of the package takes, which no spec may give.

    Raises:
      ValueError: the spec cannot be read, the name is unknown, or an argument is
        unknown, missing, of another type or out of its range; and what the class itself
        raises.
    """
    name, arguments = parse(spec)
    cls = find(package, name)
    check(name, cls, arguments, given)
    try:
        return cls(**given, **arguments)
    except TypeError as error:
        raise ValueError(f'{ranges.shown(spec)}: {error}') from None


def check(
    name: str,
    function: Callable[..., Any],
    arguments: dict[str, Any],
    given: Collection[str] = (),
) -> None:
    """Refuses arguments that a class or function does not take, or their values.

    Args:
      name: of the class or function, for messages.
      function: the class or function.
      arguments: what the user gives.
      given: the arguments that are not the user's to give.

    Raises:
      ValueError: names the argument and what there is, or what it may be.
    """
    takes = {n: kind for n, kind in parameters(function).items() if n not in given}
    for argument, value in arguments.items():
        if argument not in takes:
            names = ', '.join(takes) or 'no arguments'
            unknown = ranges.shown(argument)
            raise ValueError(f'unknown argument {unknown}; {name} takes {names}')
        ranges.check(argument, takes[argument], value)
