"""The Python API page, generated from the public names of `flaxformer_lite`.

`<!-- api -->` becomes the directives of mkdocstrings for each public name, whose
signatures and docstrings it shows.
"""

import importlib
import inspect
import pkgutil
import re
import types
from collections.abc import Iterator
from typing import Any

import flaxformer_lite
from flaxformer_lite.lazy_exports import imports_of
from flaxformer_lite.validation import types_of

_PLACE = '<!-- api -->'
_WIDTH = 80
_LONGEST_DEFAULT = 60
_MODULES = re.compile(r'\b(?:[a-z_]\w*\.)+(?=[A-Za-z])')
_WITHOUT_ROOT = """\
    options:
      show_root_heading: false
      show_root_toc_entry: false
"""
_WITHOUT_HEADING = """\
    options:
      members: false
      show_root_heading: false
      show_root_toc_entry: false
"""


def on_page_markdown(markdown: str, **_: Any) -> str:
    return markdown.replace(_PLACE, '\n'.join(_sections()))


def public_paths() -> dict[str, str]:
    """Returns the public names and where they are defined, without namespaces.

    For example, 'fl.losses.Focal' → 'flaxformer_lite.losses.focal.Focal'.
    """
    found = {}
    for name, path in _paths('flaxformer_lite').items():
        if path in _namespaces():
            members = _paths(path).items()
            found |= {f'fl.{name}.{member}': x for member, x in members}
        else:
            found[f'fl.{name}'] = path
    return found


def _sections() -> Iterator[str]:
    paths = public_paths()
    yield '## Functions and classes\n'
    for name, path in paths.items():
        if name.count('.') == 1:
            yield _directive(name, path)
    for namespace, path in _paths('flaxformer_lite').items():
        if path in _namespaces():
            yield f'## fl.{namespace}\n\n::: {path}\n{_WITHOUT_HEADING}'
            prefix = f'fl.{namespace}.'
            for name, member in paths.items():
                if name.startswith(prefix):
                    yield _directive(name, member)


def _directive(name: str, path: str) -> str:
    found = pkgutil.resolve_name(path)
    if not isinstance(found, type):
        return f'::: {path}\n    options:\n      heading: {name}\n'
    # mkdocstrings doesn't find the arguments that dataclasses and modules inherit.
    code = f'```python\n{signature(name, found)}\n```'
    return f'### {name}\n\n{code}\n\n::: {path}\n{_WITHOUT_ROOT}'


def signature(name: str, cls: type) -> str:
    """Returns the call of a class with its arguments, their types and defaults."""
    try:
        parameters = inspect.signature(cls).parameters
    except ValueError:  # a built-in base class
        return name
    # Arguments that Flax adds to every module.
    shown = [_shown(x) for x in parameters.values() if x.name not in ('parent', 'name')]
    line = f'{name}({", ".join(shown)})'
    if len(line) <= _WIDTH:
        return line
    return '\n'.join([f'{name}(', *(f'    {x},' for x in shown), ')'])


def _shown(parameter: inspect.Parameter) -> str:
    text, default = parameter.name, parameter.default
    kinds = map(inspect.formatannotation, types_of(parameter.annotation))
    kind = _MODULES.sub('', ' | '.join(kinds)).replace('NoneType', 'None')
    if parameter.annotation is not parameter.empty and len(kind) <= _WIDTH:
        text += f': {kind}'
    if default is not parameter.empty:
        value = repr(default)
        if len(value) > _LONGEST_DEFAULT:
            value = f'{type(default).__name__}(…)'
        text += f' = {value}'
    return text


def _namespaces() -> list[str]:
    modules = imports_of('flaxformer_lite')
    return [
        f'{module}.{name}'
        for name, module in modules.items()
        if isinstance(getattr(flaxformer_lite, name), types.ModuleType)
    ]


def _paths(package: str) -> dict[str, str]:
    """Returns the public names of a package or a module, and their paths."""
    names = imports_of(package)
    if not names:
        names = dict.fromkeys(importlib.import_module(package).__all__, package)
    return {name: f'{module}.{name}' for name, module in names.items()}
