"""User modules that a config names, copied to the run.

A shared run may hold anyone's code and may name any module. Its modules are imported
only if they are the user's own, or with the user's consent.
"""

import contextlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path, PurePath
from typing import Any

from experiments import storage
from experiments.config import load, schema
from experiments.errors import UserError, warn
from flaxformer_lite.config import spec
from flaxformer_lite.config.spec import Component, Spec

FOLDER = 'parts'
_MOVE = 'move it to the working directory'
_NOT_USERS = {'__main__', *spec.OURS}
_NOT_USERS |= sys.stdlib_module_names


class NeedsConsent(UserError):
    """A run's code needs the user's consent.

    Attributes:
      without_flag: The message for commands that lack `--trust_code`.
    """

    def __init__(self, problem: str, fix: str, without_flag: str):
        super().__init__(f'{problem}, then {fix}.')
        self.without_flag = f'{problem}, then {without_flag}.'


def modules(fields: Mapping[str, Any]) -> list[str]:
    """Returns the modules of the user's components in a flat config, `'my_parts'`."""
    found = set()
    for field in schema.part_fields():
        of_field = _modules_in(fields.get(field) or '')
        if field == 'optimizer.name':
            of_field -= {'contrib'}  # of optax, as in `contrib.muon`
        found |= of_field
    return sorted(found)


def packages(fields: Mapping[str, Any]) -> list[str]:
    """Returns the packages, or single modules, of the components in a flat config."""
    return sorted({module.partition('.')[0] for module in modules(fields)})


def _modules_in(part: Any) -> set[str]:
    found = set()
    with contextlib.suppress(ValueError):  # reported when the field is checked
        for entry in Component(part).entries:
            module = entry.name.rpartition('.')[0]
            if module and module.partition('.')[0] not in _NOT_USERS:
                found.add(module)
            # The utility of `mbr` and the sources of `mix` are also components.
            for argument in ('utility', 'sources'):
                inner = entry.arguments.get(argument, [])
                for nested in inner if isinstance(inner, list | tuple) else [inner]:
                    found |= _modules_in(nested)
    return found


def save(path: Path, fields: Mapping[str, Any]) -> None:
    """Copies the files of user modules that a flat config names to `parts/` of the run.

    If files have changed since the run began, the earlier copies are kept.
    """
    folder = path / FOLDER
    storage.refuse_link(folder)
    copies = _copies(path)
    now = {}
    for package in packages(fields):
        for name, file in _imported_files(package).items():
            now[name] = _contents(file)
    if any(copies.get(name, data) != data for name, data in now.items()):
        number = len(list(path.glob(f'{FOLDER}.*'))) + 1
        with storage.as_user_error('write', folder):
            folder.rename(path / f'{FOLDER}.{number}')
        copies = {}
    for name, data in now.items():
        if name not in copies:
            storage.write(folder / name, data)


def use(
    path: Path,
    tell: Callable[[str], None] = warn,
    accept_changed: bool = True,
    trust_code: bool = False,
    is_own: bool = False,
) -> None:
    """Makes the user modules that a run's config names importable.

    An importable module is used in its current version. Any other is imported from the
    run's copies, which needs consent. Call this before anything imports them.

    Without consent, a module must be a file, or in packages with an `__init__.py`,
    outside the run's directory. A folder without that file may be anything: a run in
    the working directory is importable as `runs.near.parts.my_parts`. A package that
    holds the run may be the folder of a sweep that came with it.

    Args:
      path: The directory, in which there may be no run yet.
      accept_changed: Continues if files have changed since the run began.
      trust_code: The user consents.
      is_own: The user has given the same config, and so named its modules.
    """
    file = path / load.CONFIG
    if not storage.exists(file):
        return
    needed, changed = {}, []
    copies = _copies(path)
    fields = load.flatten(load.read_stored(file))
    if not (trust_code or is_own):
        for module in modules(fields):
            _check_origin(module, path, 'pass --trust_code (trust_code=True in Python)')
    for package in packages(fields):
        files = {k: data for k, data in copies.items() if _package_of(k) == package}
        folder = _folder_of(package)
        if folder is None:
            needed |= {k: data for k, data in files.items() if k.endswith('.py')}
            continue
        for name, data in files.items():
            here = folder / name
            if not here.is_file() or _contents(here) != data:
                changed.append(str(here))
    if needed:
        _use_copies(path / FOLDER, needed, tell, trust_code)
    if not changed:
        return
    message = f'{", ".join(changed)}: changed since the run {path} started'
    if not accept_changed:
        raise UserError(
            f'{message}. Restore it from {path / FOLDER}, choose another --workdir, or '
            'pass --accept_changed_parts to continue with the changed code.'
        )
    tell(message)


def check_origin(part: Spec, path: Path) -> None:
    """Raises UserError if user modules of one field may have come with the run."""
    for module in sorted(_modules_in(part)):
        _check_origin(module, path, _MOVE)


def check_commands(metrics: Spec, path: Path, trust_code: bool) -> None:
    """Raises UserError if a stored config would run a command without consent.

    Args:
      metrics: Its `evaluation.metrics`.
    """
    with contextlib.suppress(ValueError):  # reported when the field is checked
        for entry in Component(metrics).entries:
            # By argument, because a class has several names.
            if 'command' in entry.arguments and not trust_code:
                raise NeedsConsent(
                    f'{path / load.CONFIG}: evaluation.metrics runs the command '
                    f'{entry.arguments["command"]!r}. Read it',
                    'pass --trust_code',
                    "set evaluation.metrics in the sweep's overrides",
                )


def _check_origin(module: str, run: Path, fix: str) -> None:
    """Raises UserError if a module may have come with the run (see `use`)."""
    for place in _places(module):
        if isinstance(place.loader, _CopyFinder):
            return  # trusted before
        file = Path(place.origin) if place.has_location and place.origin else None
        if file is None:
            problem = f'the folder {place.name} has no __init__.py'
            fix = f'{fix}, or add that file if the folder is your own'
        elif file.resolve().is_relative_to(run.resolve()):
            problem = f'{file} is in the run directory'
        elif place.submodule_search_locations and _holds(file.parent, run):
            problem = f'the package {place.name} contains the run'
        else:
            continue
        raise NeedsConsent(
            f'{run / load.CONFIG}: module {module} may have come with the run, because '
            f'{problem}. Read it',
            fix,
            _MOVE,
        )


def _holds(folder: Path, run: Path) -> bool:
    # The run may be a link.
    forms = (Path.resolve, Path.absolute)
    return any(form(run).is_relative_to(form(folder)) for form in forms)


def _places(module: str) -> Iterator[ModuleSpec]:
    """Yields where the packages of a module and the module are. Imports nothing."""
    name, *inner = module.split('.')
    found = importlib.util.find_spec(name)
    while found is not None:
        yield found
        if not inner or found.submodule_search_locations is None:
            return
        name = f'{name}.{inner.pop(0)}'
        found = PathFinder.find_spec(name, found.submodule_search_locations)


def _use_copies(
    folder: Path,
    sources: dict[str, bytes],
    tell: Callable[[str], None],
    trust_code: bool,
) -> None:
    if not trust_code:
        copy = 'copy them to the working directory'
        raise NeedsConsent(
            f'{folder}: the config uses modules that cannot be imported here: '
            f'{", ".join(sources)}. Read them',
            f'pass --trust_code (trust_code=True in Python), or {copy}',
            copy,
        )
    for package in sorted(set(map(_package_of, sources))):
        tell(f'{package} cannot be imported here; using its copy in {folder}')
    sys.meta_path.append(_CopyFinder(folder.absolute(), sources))


class _CopyFinder(importlib.abc.MetaPathFinder, importlib.abc.SourceLoader):
    """Imports only the copies of modules from a run's directory.

    It compiles the sources, since a compiled file could hold other code.
    """

    def __init__(self, folder: Path, sources: Mapping[str, bytes]):
        self._folder = folder
        self._sources = {str(folder / name): data for name, data in sources.items()}

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        file = self.get_filename(fullname)
        is_package = file.endswith('__init__.py')
        prefix = file.removesuffix('__init__.py')
        if file not in self._sources and not (
            is_package and any(x.startswith(prefix) for x in self._sources)
        ):
            return None
        # No search location: other finders would look for submodules there.
        found = ModuleSpec(fullname, self, origin=file, is_package=is_package)
        found.has_location = file in self._sources
        return found

    def get_filename(self, fullname: str) -> str:
        place = self._folder.joinpath(*fullname.split('.'))
        module = f'{place}.py'
        return module if module in self._sources else str(place / '__init__.py')

    def get_data(self, path: str | bytes) -> bytes:
        # A folder without __init__.py is also a package.
        return self._sources.get(str(path), b'')


def _copies(path: Path) -> dict[str, bytes]:
    folder = path / FOLDER
    found = {}
    for file in sorted(folder.rglob('*')):
        if file.is_file() and file.parent.name != '__pycache__':
            found[file.relative_to(folder).as_posix()] = _contents(file)
    return found


def _contents(file: Path) -> bytes:
    with storage.as_user_error('read', file):
        return storage.read_bytes(file)


def _package_of(file: str) -> str:
    return PurePath(file).parts[0].split('.')[0]


def _imported_files(package: str) -> dict[str, Path]:
    found = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, '__file__', None)
        if name.split('.')[0] == package and file:
            path = Path(*name.split('.'))
            is_package = hasattr(module, '__path__')
            place = path / '__init__' if is_package else path
            found[f'{place.as_posix()}{Path(file).suffix}'] = Path(file)
    return found


def _folder_of(package: str) -> Path | None:
    found = importlib.util.find_spec(package)
    if found is None:
        return None
    places = found.submodule_search_locations
    if places is None:
        return Path(found.origin or '').parent
    if found.origin:  # its __init__.py
        return Path(found.origin).parent.parent
    return Path(next(iter(places))).parent
