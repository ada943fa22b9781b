"""The parts of a run that are not of this project: kept with it, and found again.

A config names them with their modules, `'my_parts.Local'`. The directory of a run holds
copies of their files in `parts/`.
"""

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from typing import Any

from experiments import storage
from experiments.config import schema
from experiments.errors import UserError, warn
from flaxformer_lite.config import spec

FOLDER = 'parts'
_OURS = ('experiments', 'flaxformer_lite', 'contrib')  # the last is optax's


def packages(fields: Mapping[str, Any]) -> list[str]:
    """The packages, or lone modules, of the parts that flat fields of a config name."""
    found = set()
    for field in schema.part_fields():
        with contextlib.suppress(ValueError):  # whose check names the field
            for entry in spec.entries(fields[field] or ''):
                name, arguments = spec.parse(entry)
                # That of `mbr` is a part, too.
                utility, _ = spec.parse(arguments.get('utility', name))
                found |= {name, utility}
    packages = {name.partition('.')[0] for name in found if '.' in name}
    return sorted(packages.difference(_OURS))


def save(path: Path, fields: Mapping[str, Any]) -> None:
    """Keeps the imported files of the parts that flat fields of a config name.

    Where a run goes on with files that have changed, those before them stay, too.

    Raises:
      UserError: a file cannot be read or written.
    """
    folder = path / FOLDER
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
    path: Path, tell: Callable[[str], None] = warn, accept_changed: bool = True
) -> None:
    """Has the parts of a run found, from wherever; says which of them have changed.

    Where the working directory and what is installed do not have a package or a module,
    the run's own copy is taken. It is called before anything of them is imported.

    Args:
      path: the directory of the run.
      tell: is told of a copy that is taken, and of files that have changed.
      accept_changed: whether they are only told of.

    Raises:
      UserError: a file has changed and that is not accepted, or it cannot be read.
    """
    changed = []
    copies = _copies(path)
    for package in sorted({_package_of(name) for name in copies}):
        names = [name for name in copies if _package_of(name) == package]
        folder = _folder_of(package)
        if folder is None or not all((folder / name).is_file() for name in names):
            folder = path / FOLDER
            tell(f'{package} is not found from here: its copy in {folder} is used')
            sys.path.insert(0, str(folder.absolute()))
            importlib.invalidate_caches()
        for name in names:
            if _contents(folder / name) != copies[name]:
                changed.append(str(folder / name))
    if not changed:
        return
    message = f'{", ".join(changed)} has changed since {path} was made with it'
    if not accept_changed:
        raise UserError(
            f'{message}: restore it from {path / FOLDER}, choose another --workdir, or '
            'give --accept_changed_parts to go on with it as it is'
        )
    tell(message)


def _copies(path: Path) -> dict[str, bytes]:
    """What a run's copies hold, by their paths in its folder of them."""
    folder = path / FOLDER
    found = {}
    for file in sorted(folder.rglob('*')):
        # Beside what is imported from here, Python writes its compiled form.
        if file.is_file() and file.parent.name != '__pycache__':
            found[file.relative_to(folder).as_posix()] = _contents(file)
    return found


def _contents(file: Path) -> bytes:
    with storage.as_user_error('read', file):
        return file.read_bytes()


def _package_of(file: str) -> str:
    """`'my_parts'`, of `my_parts.py` and of `my_parts/near.py`."""
    return PurePath(file).parts[0].split('.')[0]


def _imported_files(package: str) -> dict[str, Path]:
    """Of a package, by their paths from the folder that it lies in: `my_parts.py`."""
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
    """The folder that a package or module lies in, which is not imported for that."""
    found = importlib.util.find_spec(package)
    if found is None:
        return None
    places = found.submodule_search_locations
    return Path(next(iter(places)) if places else found.origin or '').parent
