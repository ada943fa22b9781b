"""User modules that a config names.

A shared run may name any module. Modules that may have come with the run need the
user's consent, and nothing in a run's directory is imported.
"""

import contextlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from experiments import storage
from experiments.config import load, schema
from experiments.errors import UserError
from flaxformer_lite.config import spec
from flaxformer_lite.config.spec import Component, Spec

_LIBRARY_MODULES = {'__main__', *spec.OWN_PACKAGES}
_LIBRARY_MODULES |= sys.stdlib_module_names


class UntrustedCode(UserError):
    """A stored config names code that the user must allow.

    Attributes:
      without_flag: The message where `--trust_code` has no effect.
    """

    def __init__(self, problem: str, fix: str, without_flag: str):
        super().__init__(f'{problem}, then {fix}.')
        self.without_flag = f'{problem}, then {without_flag}.'


@contextlib.contextmanager
def without_trust_flag() -> Iterator[None]:
    """Leaves `--trust_code` out of errors, where it has no effect."""
    try:
        yield
    except UntrustedCode as error:
        raise UserError(error.without_flag) from None


def modules(fields: Mapping[str, Any]) -> list[str]:
    """Returns the modules of the user's components in a flat config, `'my_parts'`."""
    found = set()
    for field in schema.part_fields():
        of_field = _modules_in(fields.get(field) or '')
        if field == 'optimizer.name':
            of_field -= {'contrib'}  # a module of optax, as in `contrib.muon`
        found |= of_field
    return sorted(found)


def packages(fields: Mapping[str, Any]) -> list[str]:
    """Returns the packages, or single modules, of the components in a flat config."""
    return sorted({module.partition('.')[0] for module in modules(fields)})


def _modules_in(part: Any) -> set[str]:
    found = set()
    with contextlib.suppress(ValueError):  # reported when the field is checked
        for entry in Component.of(part).entries:
            module = entry.name.rpartition('.')[0]
            if module and module.partition('.')[0] not in _LIBRARY_MODULES:
                found.add(module)
            # The sources of `mix` are also components.
            sources = entry.arguments.get('sources', [])
            for nested in sources if isinstance(sources, list | tuple) else [sources]:
                found |= _modules_in(nested)
    return found


def check_stored(path: Path, trust_code: bool = False) -> None:
    """Raises UserError if modules that a run's config names may have come with it.

    Call this before anything imports them.

    Args:
      path: The directory, in which there may be no run yet.
      trust_code: The user consents.
    """
    file = path / load.CONFIG
    if storage.exists(file):
        for module in modules(load.flatten(load.read_stored(file))):
            _check_origin(module, path, trust_code)


def check_origin(part: Spec, path: Path) -> None:
    """Raises UserError if user modules of one field may have come with the run."""
    for module in sorted(_modules_in(part)):
        _check_origin(module, path)


def check_commands(metrics: Spec, path: Path, trust_code: bool) -> None:
    """Raises UserError if a stored config would run a command without consent.

    Args:
      metrics: Its `evaluation.metrics`.
    """
    with contextlib.suppress(ValueError):  # reported when the field is checked
        for entry in Component.of(metrics).entries:
            # By argument, because a class has several names.
            if 'command' in entry.arguments and not trust_code:
                raise UntrustedCode(
                    f'{path / load.CONFIG}: evaluation.metrics runs the command '
                    f'{entry.arguments["command"]!r}. Read it',
                    'pass --trust_code',
                    "set evaluation.metrics in the sweep's overrides",
                )


def _check_origin(module: str, run: Path, trust_code: bool = False) -> None:
    for location in _locations(module):
        file = (
            Path(location.origin) if location.has_location and location.origin else None
        )
        if file and file.resolve().is_relative_to(run.resolve()):
            raise UserError(
                f'{run / load.CONFIG}: module {module} is in the run directory, where '
                f'nothing is imported. Read {file}, then move it to the working '
                'directory.'
            )
        folders = location.submodule_search_locations or ()
        if not trust_code and any(_contains(Path(folder), run) for folder in folders):
            move = 'move it to the working directory'
            raise UntrustedCode(
                f'{run / load.CONFIG}: module {module} may have come with the run, '
                f'because the package {location.name} contains the run. Read it',
                f'pass --trust_code (trust_code=True in Python), or {move}',
                move,
            )


def _contains(folder: Path, run: Path) -> bool:
    # The run may be a symbolic link.
    forms = (Path.resolve, Path.absolute)
    return any(form(run).is_relative_to(form(folder)) for form in forms)


def _locations(module: str) -> Iterator[ModuleSpec]:
    """Yields where the packages of a module and the module are. Imports nothing."""
    package, *inner = module.split('.')
    found = importlib.util.find_spec(package)
    for name in inner:
        if found is None:
            return
        yield found
        # The name alone: with its package, the finder of a folder without `__init__.py`
        # would look that package up in `sys.modules`.
        found = PathFinder.find_spec(name, found.submodule_search_locations or [])
    if found is not None:
        yield found


def imported(fields: Mapping[str, Any]) -> list[str]:
    """Returns the imported modules of the packages of a flat config's components."""
    roots = packages(fields)
    return sorted(name for name in sys.modules if name.partition('.')[0] in roots)


def file_of(module: str) -> Path | None:
    """Returns the file from which a module would be imported. Imports nothing."""
    if not all(map(str.isidentifier, module.split('.'))):
        return None
    locations = list(_locations(module))
    is_found = len(locations) == len(module.split('.')) and locations[-1].has_location
    return Path(locations[-1].origin or '') if is_found else None
