"""Files of SHA-256 sums, as `sha256sum` writes and checks them."""

import hashlib
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from experiments import storage
from experiments.errors import UserError, warn

SUMS = 'SHA256SUMS'  # the sums of a folder's files
_LINE = re.compile('([0-9a-f]{64})  ([^/\n]+)\n')
# Two processes may find a folder damaged, and one remove what the other has just made.
_ATTEMPTS = 3


def sha256(path: Path) -> str | None:
    """The sum of a file, in hex; None where there is none.

    Raises:
      UserError: the file is there and cannot be read; that does not mean it is damaged.
    """
    try:
        with path.open('rb') as file:
            return hashlib.file_digest(file, 'sha256').hexdigest()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f'cannot read {path}: {error.strerror or error}') from error


def write(sums: Path, paths: Iterable[Path]) -> None:
    """Writes the file of the sums of files that are in its folder."""
    lines = [f'{sha256(path)}  {path.name}\n' for path in sorted(paths)]
    storage.write(sums, ''.join(lines))


def read(sums: Path) -> dict[str, str]:
    """The sums that were written, by file name; none where the file is no such list."""
    try:
        content = sums.read_bytes().decode('ascii', 'replace')
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UserError(f'cannot read {sums}: {error.strerror or error}') from error
    lines = [_LINE.fullmatch(line) for line in content.splitlines(keepends=True)]
    return {line[2]: line[1] for line in lines if line}


def damage(sums: Path, names: Iterable[str]) -> str:
    """What is wrong with the files of these names beside `sums`; empty for nothing."""
    written = read(sums)
    for name in names:
        found = sha256(sums.with_name(name))
        if found is None:
            return f'{name} is missing'
        if name not in written:
            return f'{sums.name} has no sum of {name}'
        if found != written[name]:
            return f'{name} is not what was written'
    return ''


def keep(folder: Path, names: Iterable[str], make: Callable[[Path], None]) -> None:
    """Makes a folder of a cache with files of these names; a damaged one it remakes.

    A damaged folder, in which a file is not what was written, is reported on stderr.
    Several processes may do so at the same time.

    Args:
      make: writes the files into the folder that it is given.

    Raises:
      UserError: the folder cannot be read or written, or what is written to it changes.
    """
    names = tuple(names)
    for _ in range(_ATTEMPTS):
        if not folder.exists():
            _make(folder, names, make)
        wrong = damage(folder / SUMS, names)
        if not wrong:
            return
        warn(f'{folder} is damaged ({wrong}): it is made again')
        _remove(folder)
    raise UserError(
        f'{folder} does not stay as it is written: {wrong}; '
        'name a folder on another disk with FLAXFORMER_LITE_CACHE'
    )


def _make(folder: Path, names: Iterable[str], make: Callable[[Path], None]) -> None:
    try:
        with storage.replacing(folder) as draft:
            draft.mkdir(exist_ok=True)  # a killed process may have left it
            make(draft)
            write(draft / SUMS, [draft / name for name in names])
    except UserError:
        # If it is there now, another process has made it, with the same content.
        if not folder.exists():
            raise


def _remove(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return  # another process has removed it
    except OSError as error:
        raise UserError(
            f'cannot remove {folder}: {error.strerror or error}; remove it, '
            'or name another folder with FLAXFORMER_LITE_CACHE'
        ) from error
