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
    mend = 'name a folder that can be written to with FLAXFORMER_LITE_CACHE'
    try:
        path = _path()
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f'the cache cannot be made ({error}): {mend}') from error
    except RuntimeError:  # no $HOME, and a user that the system does not know
        raise UserError(f'there is no home directory for a cache: {mend}') from None
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise UserError(f'the cache {path} cannot be written to: {mend}')
    return path


def _path() -> Path:
    named = os.environ.get('FLAXFORMER_LITE_CACHE')
    if named:
        return Path(named)
    caches = os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache'
    return Path(caches) / 'flaxformer_lite'
