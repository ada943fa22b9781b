"""Public names of a package that are imported at their first use."""

import ast
import importlib
from collections.abc import Callable
from typing import Any

from flaxformer_lite.validation import did_you_mean

Exports = tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]


def lazy_exports(package: str) -> Exports:
    """Returns `__getattr__`, `__dir__` and `__all__` of a package.

    The public names are those that the package imports if TYPE_CHECKING:

        if TYPE_CHECKING:
            from flaxformer_lite.attention.local import Local as Local
        else:
            __getattr__, __dir__, __all__ = lazy_exports(__name__)

    Type checkers and editors read these imports, too, so names are listed only once.
    Importing all of them would take seconds, and a config is read without JAX.
    """
    modules = imports_of(package)
    names = list(modules)

    def get(name: str) -> Any:
        if name not in modules:
            hint = did_you_mean(name, names) if not name.startswith('_') else ''
            raise AttributeError(
                f'module {package!r} has no attribute {name!r}{hint}',
                name=name,
                obj=importlib.import_module(package),
            )
        return _import(package, modules[name], name)

    def public() -> list[str]:
        own = vars(importlib.import_module(package))
        return [*names, *(x for x in own if x.startswith('__') and x.endswith('__'))]

    return get, public, names


def imports_of(package: str) -> dict[str, str]:
    """Returns the names that a package imports if TYPE_CHECKING, and their modules."""
    loader: Any = importlib.import_module(package).__loader__
    found = {}
    for block in ast.parse(loader.get_source(package)).body:
        if isinstance(block, ast.If) and ast.unparse(block.test) == 'TYPE_CHECKING':
            for node in block.body:
                assert isinstance(node, ast.ImportFrom) and node.module, package
                found |= {alias.name: node.module for alias in node.names}
    return found


def public_name(cls: type) -> str:
    """Returns the name by which users reach a class; its path if it isn't public.

    Examples:
      >>> from flaxformer_lite.training.schedules.noam import Noam
      >>> public_name(Noam), public_name(dict)
      ('fl.schedules.Noam', 'builtins.dict')
    """
    module, name = cls.__module__, cls.__qualname__
    for public, parent in imports_of('flaxformer_lite').items():
        if (parent, public) == (module, name):
            return f'fl.{name}'
        namespace = f'{parent}.{public}'
        if module.startswith(f'{namespace}.'):
            if imports_of(namespace).get(name) == module:
                return f'fl.{public}.{name}'
    return f'{module}.{name}'


def _import(package: str, module: str, name: str) -> Any:
    """Does `from module import name`, where the name may be a module."""
    if module != package:
        found = importlib.import_module(module)
        if hasattr(found, name):
            return getattr(found, name)
    return importlib.import_module(f'{module}.{name}')
