"""Where arrays live: rows of a batch divided among all devices, everything else on each."""

import functools
import os
from pathlib import Path
from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from experiments.command_line.errors import UserError, warn
from experiments.runtime import malloc, programs


@functools.cache
def _mesh() -> jax.sharding.Mesh:
    return jax.make_mesh((jax.device_count(),), ('data',), axis_types=(AxisType.Auto,))


def rows() -> NamedSharding:
    """The first axis is divided among the devices."""
    return NamedSharding(_mesh(), PartitionSpec('data'))


def everywhere() -> NamedSharding:
    """The whole array is on every device."""
    return NamedSharding(_mesh(), PartitionSpec())


def placed(tree):
    """The abstract arrays of a tree, on every device."""
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=everywhere()), tree
    )


# Of XLA on CPU: the order of operations that keeps few arrays alive takes a fifth less memory than
# the one for many cores, and is no slower on a few.
_OPTIONS = {'xla_cpu_scheduler_type': 'CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED'}
# A program that runs once is sooner done if it is compiled in a hurry.
_HURRY = {'xla_backend_optimization_level': 0}


def compiled(function: Any, *arguments: Any, once: bool = False) -> jax.stages.Compiled:
    """A jitted function's program for such arguments, to be run often or only once."""
    options = _OPTIONS | (_HURRY if once else {})
    on_cpu = jax.default_backend() == 'cpu'
    program = function.lower(*arguments).compile(
        compiler_options=options if on_cpu else None
    )
    malloc.release()
    return program


def cache() -> Path:
    """What can be made again, so that a second run starts at once: compiled programs, tokenised
    text. `$FLAXFORMER_LITE_CACHE`, or a folder of the user's cache directory.

    Raises:
      UserError: there is no such folder, and it cannot be made, or it cannot be written to.
    """
    path = _cache_path()
    mend = 'name a folder that can be written to with FLAXFORMER_LITE_CACHE'
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f'the cache {path} cannot be made ({error.strerror}): {mend}'
        ) from error
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise UserError(f'the cache {path} cannot be written to: {mend}')
    return path


def _cache_path() -> Path:
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


def keep_programs() -> None:
    """Has JAX keep compiled programs on disk; without a disk for them it compiles again."""
    try:
        folder = cache() / 'programs'
    except UserError as error:
        warn(f'compiled programs are not kept, for {error}')
        return
    programs.keep(folder)
