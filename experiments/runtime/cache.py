"""The folder for what can be made again: compiled programs, tokenised text."""

import os
from pathlib import Path

from experiments.errors import UserError


def folder() -> Path:
    """The cache, which a second run starts from at once.

    `$FLAXFORMER_LITE_CACHE`, or a folder of the user's cache directory.

    Raises:
      UserError: the folder cannot be made, or it cannot be written to.
    """
    path = _path()
    remedy = 'name a folder that can be written to with FLAXFORMER_LITE_CACHE'
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f'the cache {path} cannot be made ({error.strerror}): {remedy}'
        ) from error
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise UserError(f'the cache {path} cannot be written to: {remedy}')
    return path


def _path() -> Path:
    named = os.environ.get('FLAXFORMER_LITE_CACHE')
    if named:
        return Path(named)
    caches = os.environ.get('XDG_CACHE_HOME')
    if caches:
        return Path(caches) / 'flaxformer_lite'
    try:
        return Path.home() / '.cache' / 'flaxformer_lite'
    except RuntimeError:  # no $HOME, and a user that the system does not know
        raise UserError(
            'there is no home directory to keep a cache in: name a folder for it '
            'with FLAXFORMER_LITE_CACHE'
        ) from None
