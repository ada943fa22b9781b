"""The manifest of a checkpoint: what it holds, and SHA-256 sums that verify it."""

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
# Errors of the system for a file that is not there, or is of another kind.
_CHANGED = (*files.MISSING, IsADirectoryError)
_NOT_FINITE = 'not finite'  # the key of a number that JSON cannot have


class Damaged(Exception):
    """A checkpoint is not what was written; the message names the file."""


def kinds(tree: Any) -> dict[str, str]:
    """Path → dtype and shape of each leaf: `{'params/norm/bias': 'float32[512]'}`."""
    kinds = {}
    for path, leaf in jax.tree.leaves_with_path(tree):
        name = jax.tree_util.keystr(path, simple=True, separator='/')
        kinds[name] = f'{leaf.dtype}{list(leaf.shape)}'
    return kinds


def write(folder: Path, content: Mapping[str, Any]) -> None:
    """Writes a folder's manifest, with a SHA-256 of each file there and of itself.

    Raises:
      UserError: as `files.write`.
    """
    paths = sorted(path for path in folder.rglob('*') if path.is_file())
    hashes = {path.relative_to(folder).as_posix(): _hash(path) for path in paths}
    _write(folder, _encoded({**content, 'files': hashes}))


def amend(folder: Path, **values: Any) -> None:
    """Changes some values of a folder's manifest.

    Raises:
      Damaged: as `read`.
      UserError: as `files.write`.
    """
    _write(folder, read(folder) | values)


def _write(folder: Path, manifest: Mapping[str, Any]) -> None:
    files.write_json(folder / NAME, {**manifest, 'sha256': _seal(manifest)})


def read(folder: Path) -> dict[str, Any]:
    """A folder's manifest.

    Raises:
      Damaged: it is not there, or was changed.
      UserError: it cannot be read now.
    """
    with _reading(folder / NAME, NAME):
        data = (folder / NAME).read_bytes()
    try:
        manifest = files.parse_json(data)
    except ValueError as error:
        raise Damaged(f'{NAME} is not JSON: {error}') from error
    if not isinstance(manifest, dict):
        raise Damaged(f'{NAME} is not what was written')
    seal = manifest.pop('sha256', None)
    if seal != _seal(manifest):
        raise Damaged(f'{NAME} is not what was written')
    return _decoded(manifest)


def compare_kinds(folder: Path, manifest: Mapping[str, Any], abstract: Any) -> None:
    """Raises UserError if a leaf of a tree was not saved, or was of another kind."""
    for name, here in kinds(abstract).items():
        there = manifest['leaves'].get(name, 'missing')
        if there != here:
            raise UserError(
                f'checkpoint {folder} is of another model: {name} is {there}, not '
                f'{here}'
            )


def compare_files(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Reads every file of a folder and compares it with what was written.

    Raises:
      Damaged: one is missing, or is not what was written.
      UserError: one cannot be read now.
    """
    for path, sha in manifest['files'].items():
        with _reading(folder / path, path):
            is_same = _hash(folder / path) == sha
        if not is_same:
            raise Damaged(f'{path} is not what was written')


@contextmanager
def _reading(path: Path, name: str) -> Iterator[None]:
    """Tells damage from errors that may pass: no permission, no connection."""
    try:
        yield
    except _CHANGED as error:
        raise Damaged(f'{name} is missing') from error
    except OSError as error:
        raise UserError(
            f'cannot read {path}: {error.strerror or error}. Nothing was changed; '
            f'start again when it can be read{_disk_fails(error)}'
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


def _seal(manifest: Mapping[str, Any]) -> str:
    """SHA-256 of a manifest's JSON, the same however its file is formatted."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _encoded(value: Any) -> Any:
    """The value with `{'not finite': 'nan'}` for NaN and so on, which JSON lacks."""
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
