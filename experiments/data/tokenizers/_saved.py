"""The file of a tokenizer in a run's directory, with its sum beside it."""

import hashlib
from pathlib import Path

from experiments import storage
from experiments.errors import UserError, warn


def write_model(path: Path, model: bytes) -> None:
    """Writes the file of a tokenizer, and its sum beside it."""
    storage.write(path, model)
    storage.write_sums(_sums(path), [path])


def damage(path: Path) -> str:
    """What is wrong with a saved tokenizer; '' for nothing, or without a sum."""
    sums = _sums(path)
    return storage.damage(sums) if storage.exists(sums) else ''


def check_same(model: bytes, path: Path) -> None:
    """Refuses a tokenizer of other text than the one that was saved, if one was.

    To save it again mends a damaged file.

    Raises:
      UserError: the tokenizer is another one.
    """
    saved = storage.read_sums(_sums(path)).get(path.name)
    if saved not in (None, hashlib.sha256(model).hexdigest()):
        raise UserError(
            f'the training text is not what {path.parent} was begun with: its '
            'tokenizer differs. Restore the text, or begin a new run with another '
            '--workdir'
        )
    if damage(path):
        warn(f'{path} is damaged ({damage(path)}): it is written anew')


def _sums(path: Path) -> Path:
    return path.with_name(f'{path.name}.sha256')
