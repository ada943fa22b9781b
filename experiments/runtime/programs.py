"""JAX's cache of compiled programs: what is damaged in it is named, removed and made again."""

import builtins
import glob
import re
import warnings
from pathlib import Path

import jax

from experiments.command_line.errors import warn

# How JAX says it; it compiles the program then, and leaves the file as it is for ever.
_UNREADABLE = re.compile(
    r"Error reading persistent compilation cache entry for '(.+?)': (\w+): "
)


def keep(folder: Path) -> None:
    """Has JAX keep compiled programs in a folder."""
    jax.config.update('jax_compilation_cache_dir', str(folder))
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)
    jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)
    show = warnings.showwarning

    def shown(message, *arguments, **named):
        said = _UNREADABLE.match(str(message))
        if said and not _is_of_the_system(said[2]):
            _remove(folder, said[1])
        else:
            show(message, *arguments, **named)

    warnings.showwarning = shown


def _is_of_the_system(error: str) -> bool:
    """Whether a file could not be read for a reason that does not make it damaged."""
    kind = getattr(builtins, error, None)
    return isinstance(kind, type) and issubclass(kind, OSError)


def _remove(folder: Path, name: str) -> None:
    """Removes the programs of a name, of which JAX does not say which one is damaged."""
    warn(f'a compiled program in {folder} is damaged ({name}): it is made again')
    for entry in folder.glob(f'{glob.escape(name)}-*'):
        entry.unlink(missing_ok=True)
