"""Spec strings: `'local(window=64)'` names a file of a package and the arguments of its class.

A variant is a file `<package>/<name>.py` that defines one public class. Nothing else has to know
it: this is the library's only import by name.
"""

import ast
import difflib
import importlib
import inspect
import pkgutil
import types
import typing
from typing import Any


def parse(spec: str) -> tuple[str, dict[str, Any]]:
    """`'local(window=64)'` → `('local', {'window': 64})`; the values are Python literals.

    Raises:
      ValueError: the text is not a name, or a name with keyword arguments that are literals.
    """
    try:
        node = ast.parse(spec.strip(), mode='eval').body
        if isinstance(node, ast.Name):
            return node.id, {}
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and not node.args
        ):
            arguments = {k.arg: ast.literal_eval(k.value) for k in node.keywords}
            if None not in arguments and len(arguments) == len(node.keywords):
                return node.func.id, arguments
    except (SyntaxError, ValueError, TypeError):
        pass
    raise ValueError(f'{spec!r} is not a spec: write name or name(argument=value, …)')


def available(package: str) -> list[str]:
    """The names that `make` finds in a package: its files, without `base` and those with a _."""
    files = pkgutil.iter_modules(importlib.import_module(package).__path__)
    return sorted(
        f.name for f in files if not f.name.startswith('_') and f.name != 'base'
    )


def find(package: str, name: str) -> type:
    """The one public class that `<package>/<name>.py` defines.

    Raises:
      ValueError: there is no such file; the message lists those that are there.
    """
    names = available(package)
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        hint = f'; did you mean {near[0]!r}?' if near else ''
        raise ValueError(f'{name!r} is not one of {", ".join(names)}{hint}')
    module = importlib.import_module(f'{package}.{name}')
    public = [
        v
        for k, v in vars(module).items()
        if isinstance(v, type) and not k.startswith('_')
    ]
    (cls,) = [c for c in public if c.__module__ == module.__name__]
    return cls


def parameters(cls: type) -> dict[str, Any]:
    """What a class takes, by name, and of which type."""
    found = {
        name: p.annotation for name, p in inspect.signature(cls).parameters.items()
    }
    linens = (
        ('parent', 'name') if 'parent' in found else ()
    )  # added to every module's own
    return {name: kind for name, kind in found.items() if name not in linens}


def fill(cls: type, **given: Any) -> Any:
    """The object of a class, with those of the given arguments that it takes."""
    return cls(**{name: given[name] for name in parameters(cls) if name in given})


def make(package: str, spec: str, **defaults: Any) -> Any:
    """The object that a spec names. `defaults` fill the arguments that the spec leaves out.

    Raises:
      ValueError: the spec cannot be read, the name is unknown, or an argument is unknown, missing
        or of another type; and what the class itself raises for a bad value.
    """
    name, arguments = parse(spec)
    cls = find(package, name)
    takes = parameters(cls)
    for argument, value in arguments.items():
        if argument not in takes:
            names = ', '.join(takes) or 'no arguments'
            raise ValueError(
                f'{spec!r}: unknown argument {argument!r}; {name} takes {names}'
            )
        if not _is(value, takes[argument]):
            kind = getattr(takes[argument], '__name__', takes[argument])
            raise ValueError(
                f'{spec!r}: {argument} must be of type {kind}, not {value!r}'
            )
    try:
        return fill(cls, **defaults | arguments)
    except TypeError as error:
        raise ValueError(f'{spec!r}: {error}') from None


def _is(value: Any, kind: Any) -> bool:
    """Whether a literal may be of a type: whole numbers are numbers, True and False are not."""
    kinds = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if inspect.Parameter.empty in kinds or not all(isinstance(k, type) for k in kinds):
        return True
    if isinstance(value, bool):
        return bool in kinds
    return isinstance(value, kinds) or (isinstance(value, int) and float in kinds)
