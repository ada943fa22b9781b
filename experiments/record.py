"""What a checkpoint holds, written beside it: tells whether it is read as it was written."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from experiments import files
from experiments.errors import UserError

NAME = 'record.json'


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
    record = {**content, 'files': hashes}
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
    """
    try:
        record = files.read_json(folder / NAME)
    except UserError as error:
        raise Damaged(error) from error
    if not isinstance(record, dict) or record.pop('sha256', None) != _seal(record):
        raise Damaged(f'{NAME} is not what was written')
    return record


def compare_files(folder: Path, record: Mapping[str, Any]) -> None:
    """Raises Damaged if a file of the folder is missing, or is not what was written."""
    for path, sha in record['files'].items():
        if not (folder / path).is_file():
            raise Damaged(f'{path} is missing')
        if _hash(folder / path) != sha:
            raise Damaged(f'{path} is not what was written')


def _hash(path: Path) -> str:
    with open(path, 'rb') as file:
        return hashlib.file_digest(file, 'sha256').hexdigest()


def _seal(record: Mapping[str, Any]) -> str:
    """SHA-256 of JSON, the same however it is laid out."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
