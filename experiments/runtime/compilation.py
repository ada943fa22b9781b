"""Compilation, and its persistent cache."""

import contextlib
import functools
import os
import stat
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import jax

from experiments.errors import UserError
from experiments.runtime import memory
from flaxformer_lite.jax_compat import compile_with

T = TypeVar('T')

# XLA on CPU: the memory-optimized schedule takes a fifth less memory than the one for
# many cores, and is as fast on a few cores.
_CPU_OPTIONS = {'xla_cpu_scheduler_type': 'CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED'}
# For a program that runs once, optimization costs more time than it saves.
_RUN_ONCE_OPTIONS = {'xla_backend_optimization_level': 0}
# XLA on GPU: merged dots with a shared operand are written in float32, then sliced and
# rounded by additional kernels. This is slower than separate dots.
_GPU_OPTIONS = {'xla_gpu_dot_merger_threshold_mb': 0}
# XLA on several GPUs: overlap computation and communication.
_GPUS_OPTIONS = {'xla_gpu_enable_latency_hiding_scheduler': True}


def use_cache() -> Path:
    """Enables JAX's persistent compilation cache and returns the cache folder.

    The folder is `$FLAXFORMER_LITE_CACHE`, or is in the user's cache directory. Only
    the owner may write to it, because programs in it are executed.
    """
    fix = 'set FLAXFORMER_LITE_CACHE to a writable folder'
    try:
        folder = _cache_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = folder.resolve()  # later changes of a link have no effect
        problem = _permission_problem(folder)
    except (OSError, RuntimeError) as error:  # there may be no home directory
        raise UserError(
            f'cannot create the compilation cache ({error}): {fix}'
        ) from error
    if problem:
        raise UserError(
            f'the compilation cache {folder} {problem}, and its programs are executed: '
            f'restrict it to yourself (chmod -R go-w), or {fix}'
        )
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise UserError(f'cannot write to the compilation cache {folder}: {fix}')
    jax.config.update('jax_compilation_cache_dir', str(folder / 'programs'))
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)
    jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)
    return folder


def _permission_problem(folder: Path) -> str:
    """Returns who besides this user and root can write to a folder.

    Parents, such as /tmp, may be writable by all if their sticky bit is set.
    """
    if os.name != 'posix':
        return ''
    status = folder.stat()
    if status.st_uid not in (0, os.geteuid()):
        return f'belongs to another user (number {status.st_uid})'
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f'can be written to by others (mode {stat.S_IMODE(status.st_mode):o})'
    return ''


def _cache_folder() -> Path:
    named = os.environ.get('FLAXFORMER_LITE_CACHE')
    if named:
        return Path(named)
    caches = os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache'
    return Path(caches) / 'flaxformer_lite'


def compile_program(
    function: Any, *arguments: Any, once: bool = False
) -> jax.stages.Compiled:
    """Compiles a jitted function for the shapes of its arguments, in their mesh."""
    with _mesh_in_context(arguments):
        lowered = function.lower(*arguments)
    program = compile_with(lowered, _options(once))
    memory.release_freed()
    return program


class Program:
    """A jitted function, compiled once for each shape of its arguments; thread-safe."""

    def __init__(self, function: Any):
        self._function = function
        self._programs: dict[Any, Future[jax.stages.Compiled]] = {}

    def compiled(self, *arguments: Any) -> jax.stages.Compiled:
        """Returns the program for the shapes of arguments, which may be abstract."""
        leaves, tree = jax.tree.flatten(arguments)
        shapes = tuple((leaf.shape, leaf.dtype, leaf.sharding) for leaf in leaves)
        own: Future[jax.stages.Compiled] = Future()
        program = self._programs.setdefault((tree, shapes), own)
        if program is own:
            try:
                own.set_result(compile_program(self._function, *arguments))
            except BaseException as error:
                own.set_exception(error)
        return program.result()

    def __call__(self, *arguments: Any) -> Any:
        return self.compiled(*arguments)(*arguments)


class ProgramCache:
    """Compiled programs that runs share if they differ only in their seeds.

    Args:
      size: Maximum number of objects; the least recently used ones are dropped.
    """

    def __init__(self, size: int = 20):
        self._make = functools.lru_cache(maxsize=size)(
            lambda make, *arguments: make(*arguments)
        )
        self._first_equal = functools.lru_cache(maxsize=size)(lambda x: x)

    def get(self, make: Callable[..., T], *arguments: Any) -> T:
        """Returns `make(*arguments)`, computed once for equal arguments."""
        return self._make(make, *arguments)

    def shared(self, programs: T) -> T:
        """Returns the first of all equal objects, which has their programs."""
        return self._first_equal(programs)


def _options(once: bool) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if jax.default_backend() == 'cpu':
        options = _CPU_OPTIONS | _RUN_ONCE_OPTIONS if once else _CPU_OPTIONS
    elif jax.default_backend() == 'gpu':
        several = jax.device_count() > 1
        options = _GPU_OPTIONS | _GPUS_OPTIONS if several else _GPU_OPTIONS
    given = os.environ.get('XLA_FLAGS', '')
    return {name: value for name, value in options.items() if name not in given}


def _mesh_in_context(arguments: Any) -> contextlib.AbstractContextManager[Any]:
    mesh = getattr(jax.tree.leaves(arguments)[0].sharding, 'mesh', None)
    if mesh is None or mesh.size == 1:
        return contextlib.nullcontext()
    return jax.set_mesh(mesh)
