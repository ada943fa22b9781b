"""What a checkpoint holds, written beside it: tells whether it is read as it was written."""

import errno
import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

from experiments.command_line.errors import UserError
from experiments.storage import files

NAME = 'record.json'
# What the system says of a file that is not there, or is of another kind.
_CHANGED = (*files.MISSING, IsADirectoryError)
_NOT_FINITE = 'not finite'  # the key of a number that JSON cannot have


class Damaged(Exception):
    """A checkpoint is not what was written; the message says which file."""


def kinds(tree: Any) -> dict[str, str]:
    """Path → dtype and shape of each leaf: `{'params/layer_0/bias': 'float32[512]'}`."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {
        jax.tree_util.keystr(
            path, simple=True, separator='/'
        ): f'{x.dtype}{list(x.shape)}'
        for path, x in leaves
    }


def write(folder: Path, content: Mapping[str, Any]) -> None:
    """Writes JSON about a folder into it, with a SHA-256 of each file there and one of itself.

    Raises:
      UserError: as `files.write`.
    """
    paths = sorted(path for path in folder.rglob('*') if path.is_file())
    hashes = {path.relative_to(folder).as_posix(): _hash(path) for path in paths}
    record = _encoded({**content, 'files': hashes})
    files.write_json(folder / NAME, record | {'sha256': _seal(record)})


def amend(folder: Path, **values: Any) -> None:
    """Writes some of what is written about a folder anew.

    Raises:
      Damaged: as `read`.
      UserError: as `files.write`.
    """
    record = read(folder) | values
    files.write_json(folder / NAME, record | {'sha256': _seal(record)})


def read(folder: Path) -> dict[str, Any]:
    """What was written about a folder.

    Raises:
      Damaged: it is not there, or was changed.
      UserError: it cannot be read now.
    """
    with _reading(folder / NAME, NAME):
        data = (folder / NAME).read_bytes()
    try:
        record = files.parse_json(data)
    except ValueError as error:
        raise Damaged(f'{NAME} is not JSON: {error}') from error
    if not isinstance(record, dict) or record.pop('sha256', None) != _seal(record):
        raise Damaged(f'{NAME} is not what was written')
    return _decoded(record)


def compare_kinds(folder: Path, record: Mapping[str, Any], abstract: Any) -> None:
    """Raises UserError if the leaves of a tree are not there, or not of the same kind."""
    for name, here in kinds(abstract).items():
        there = record['leaves'].get(name, 'missing')
        if there != here:
            raise UserError(
                f'checkpoint {folder} is of another model: {name} is {there}, not {here}'
            )


def compare_files(folder: Path, record: Mapping[str, Any]) -> None:
    """Has every file of a folder read and compared with what was written.

    Raises:
      Damaged: one is missing, or is not what was written.
      UserError: one cannot be read now.
    """
    for path, sha in record['files'].items():
        with _reading(folder / path, path):
            is_same = _hash(folder / path) == sha
        if not is_same:
            raise Damaged(f'{path} is not what was written')


@contextmanager
def _reading(path: Path, name: str) -> Iterator[None]:
    """Tells damage from what may be over in a moment: no permission, no connection, no handle."""
    try:
        yield
    except _CHANGED as error:
        raise Damaged(f'{name} is missing') from error
    except OSError as error:
        raise UserError(
            f'cannot read {path}: {error.strerror or error}. Nothing was changed; start again '
            f'when it can be read{_disk_fails(error)}'
        ) from error


def _disk_fails(error: OSError) -> str:
    if error.errno != errno.EIO:
        return ''
    return (
        ', or move the folder of this checkpoint away if it never can: '
        'the one before it is then used'
    )


def _hash(path: Path) -> str:
    with open(path, 'rb') as file:
        return hashlib.file_digest(file, 'sha256').hexdigest()


def _seal(record: Mapping[str, Any]) -> str:
    """SHA-256 of JSON, the same however it is laid out."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _encoded(value: Any) -> Any:
    """The value with numbers that are not finite as JSON can hold them: `{'not finite': 'nan'}`."""
    if isinstance(value, float) and not math.isfinite(value):
        return {_NOT_FINITE: str(value)}
    if isinstance(value, Mapping):
        return {key: _encoded(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_encoded(entry) for entry in value]
    return value


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {_NOT_FINITE}:
        return float(value[_NOT_FINITE])
    return {key: _decoded(entry) for key, entry in value.items()}
