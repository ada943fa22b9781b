"""The manifest of a checkpoint: what it holds, and what that is verified by.

Arrays are verified by their digests (`digest`), which are those of the training state
itself, so that they also tell what goes wrong between its memory and the disk. Of the
small files there are SHA-256 sums beside: Orbax's descriptions of the arrays are in no
digest, and where one is damaged Orbax fails with errors that cannot be told from those
of a disk that is away. Of the large files, the arrays' own, only the sizes are kept:
nothing has to be read again to save a state, and but once to restore it.
"""

import errno
import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

from experiments import storage
from experiments.errors import UserError

NAME = 'record.json'
# Errors of the system for a file that is not there, or is of another kind.
_CHANGED = (*storage.MISSING, IsADirectoryError)
_SMALL = 1_000_000  # bytes; a file of no more has a sum
_BLOCK = 1_000_000  # bytes that are read at once
_NOT_FINITE = 'not finite'  # the key of a number that JSON cannot have


class Damaged(Exception):
    """A checkpoint is not what was written; the message names the file."""


def leaves(tree: Any) -> dict[str, Any]:
    """Path → leaf of a tree: `{'params/norm/bias': …}`."""
    leaves = {}
    for path, leaf in jax.tree.leaves_with_path(tree):
        leaves[jax.tree_util.keystr(path, simple=True, separator='/')] = leaf
    return leaves


def kinds(tree: Any) -> dict[str, str]:
    """Path → dtype and shape of each leaf: `{'params/norm/bias': 'float32[512]'}`."""
    return {
        name: f'{leaf.dtype}{list(leaf.shape)}' for name, leaf in leaves(tree).items()
    }


def write(folder: Path, content: Mapping[str, Any]) -> None:
    """Writes a folder's manifest, with what its files and itself are verified by.

    Args:
      content: among others `leaves`, as `kinds` gives them, and `digests`, each leaf's.

    Raises:
      UserError: as `storage.write`.
    """
    paths = sorted(path for path in folder.rglob('*') if path.is_file())
    facts = {path.relative_to(folder).as_posix(): _facts(path) for path in paths}
    _write(folder, {**content, 'files': facts})


def _facts(path: Path) -> dict[str, Any]:
    """What is kept of a file: its size and, where it is small, its sum."""
    size = path.stat().st_size
    if size > _SMALL:
        return {'bytes': size}
    return {'bytes': size, 'sha256': _hash(path)}


def amend(folder: Path, **values: Any) -> None:
    """Changes some values of a folder's manifest.

    Raises:
      Damaged: as `read`.
      UserError: as `storage.write`.
    """
    _write(folder, read(folder) | values)


def _write(folder: Path, content: Mapping[str, Any]) -> None:
    manifest = _encoded(content)
    storage.write_json(folder / NAME, {**manifest, 'sha256': _seal(manifest)})


def read(folder: Path) -> dict[str, Any]:
    """A folder's manifest, in the form of this version.

    Raises:
      Damaged: it is not there, or was changed.
      UserError: it cannot be read now.
    """
    with _reading(folder / NAME, NAME):
        data = (folder / NAME).read_bytes()
    try:
        manifest = storage.parse_json(data)
    except ValueError as error:
        raise Damaged(f'{NAME} is not JSON: {error}') from error
    if not isinstance(manifest, dict):
        raise Damaged(f'{NAME} is not what was written')
    seal = manifest.pop('sha256', None)
    if seal != _seal(manifest):
        raise Damaged(f'{NAME} is not what was written')
    return _upgraded(_decoded(manifest))


def _upgraded(manifest: dict[str, Any]) -> dict[str, Any]:
    """A manifest of any version in this version's form.

    There were no digests once, and a SHA-256 of each file, however large.
    """
    if 'digests' in manifest:
        return manifest
    sums = {path: {'sha256': sha} for path, sha in manifest['files'].items()}
    return manifest | {'digests': {}, 'files': sums}


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
    """Compares the sizes and sums of a folder's files with what was written.

    Raises:
      Damaged: one is missing, or is not what was written.
      UserError: one cannot be read now.
    """
    for name, facts in manifest['files'].items():
        path = folder / name
        with _reading(path, name):
            is_same = facts.get('bytes') in (None, path.stat().st_size)
            if is_same and 'sha256' in facts:
                is_same = _hash(path) == facts['sha256']
        if not is_same:
            raise Damaged(f'{name} is not what was written')


def compare_digests(manifest: Mapping[str, Any], here: Mapping[str, str]) -> None:
    """Raises Damaged if a leaf that was restored is not what was saved.

    Args:
      here: path → digest of what was restored.
    """
    for name, digest in here.items():
        if manifest['digests'].get(name, digest) != digest:
            raise Damaged(f'{name} is not what was written')


def has_sums(manifest: Mapping[str, Any]) -> bool:
    """Whether there is a sum of every file: of all of them small, or of old."""
    return all('sha256' in facts for facts in manifest['files'].values())


def read_files(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Reads all files to their ends.

    Raises:
      Damaged, UserError: as `compare_files`.
    """
    compare_files(folder, manifest)
    for name in manifest['files']:
        with _reading(folder / name, name), open(folder / name, 'rb') as file:
            while file.read(_BLOCK):
                pass


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
