"""JAX's cache of compiled programs: a damaged file is reported, removed and remade."""

import builtins
import glob
import re
import warnings
from pathlib import Path

import jax

from experiments.errors import warn

# How JAX reports a damaged file. It then compiles the program, and never replaces the
# file.
_UNREADABLE = re.compile(
    r"Error reading persistent compilation cache entry for '(.+?)': (\w+): "
)


def keep(folder: Path) -> None:
    """Has JAX keep compiled programs in a folder."""
    jax.config.update('jax_compilation_cache_dir', str(folder))
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)
    jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)
    show = warnings.showwarning

    def show_or_mend(message, *arguments, **named):
        unreadable = _UNREADABLE.match(str(message))
        if unreadable and not _is_os_error(unreadable[2]):
            _remove(folder, unreadable[1])
        else:
            show(message, *arguments, **named)

    warnings.showwarning = show_or_mend


def _is_os_error(name: str) -> bool:
    """Whether this names an error of the system, which does not mean damage."""
    kind = getattr(builtins, name, None)
    return isinstance(kind, type) and issubclass(kind, OSError)


def _remove(folder: Path, name: str) -> None:
    """Removes all programs of a name: JAX does not say which of them is damaged."""
    warn(f'a compiled program in {folder} is damaged ({name}): it is made again')
    for entry in folder.glob(f'{glob.escape(name)}-*'):
        entry.unlink(missing_ok=True)
