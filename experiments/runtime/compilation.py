"""How programs are compiled, and the cache, in which JAX keeps them on disk."""

import contextlib
import os
import stat
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import jax

from experiments.errors import UserError
from experiments.runtime import memory
from flaxformer_lite.jax_compat import compile_with

# XLA on CPU: the order of operations that keeps few arrays alive takes a fifth less
# memory than the order for many cores, and is no slower on a few.
_CPU_OPTIONS = {'xla_cpu_scheduler_type': 'CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED'}
# A program that runs once ends sooner when little time is spent on optimizing it.
_RUN_ONCE_OPTIONS = {'xla_backend_optimization_level': 0}
# XLA on GPU: merged products of one operand are written in float32, then sliced and
# rounded by further kernels, which takes longer than the products do alone.
_GPU_OPTIONS = {'xla_gpu_dot_merger_threshold_mb': 0}
# XLA on several GPUs: they compute while they send.
_GPUS_OPTIONS = {'xla_gpu_enable_latency_hiding_scheduler': True}


def use_cache() -> Path:
    """Has JAX keep compiled programs in the cache, from which the next command begins.

    The cache is `$FLAXFORMER_LITE_CACHE`, or a folder of the user's cache directory. It
    is made for its owner alone, for what is read from it is run.

    Raises:
      UserError: it cannot be made, it cannot be written to, or others can write to it.
    """
    mend = 'name a folder that can be written to with FLAXFORMER_LITE_CACHE'
    try:
        folder = _cache_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = folder.resolve()  # whoever turns a link later turns nothing here
        others = _others_who_write(folder)
    except (OSError, RuntimeError) as error:  # there may be no home directory
        raise UserError(f'the cache cannot be made ({error}): {mend}') from error
    if others:
        raise UserError(
            f'the cache {folder} {others}, and what is in it is run: make it yours '
            f'alone (chmod -R go-w), or {mend}'
        )
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise UserError(f'the cache {folder} cannot be written to: {mend}')
    jax.config.update('jax_compilation_cache_dir', str(folder / 'programs'))
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)
    jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)
    return folder


def _others_who_write(folder: Path) -> str:
    """Who but this user and root may change a folder, in words; '' for nobody.

    A folder above it, such as /tmp, may be everybody's: its sticky bit keeps others
    from putting another one in the place of this.
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


def compiled(function: Any, *arguments: Any, once: bool = False) -> jax.stages.Compiled:
    """The compiled program of a jitted function for arguments of these shapes.

    It is traced in the context of the mesh on which the arguments are, if any.

    Args:
      function: what `jax.jit` returned.
      arguments: arrays, or abstract arrays with shardings.
      once: whether the program will run only once.
    """
    with _mesh_in_context(arguments):
        lowered = function.lower(*arguments)
    program = compile_with(lowered, _options(once))
    memory.release_freed()
    return program


class Program:
    """A jitted function, compiled for each of the shapes that it is called with.

    Several threads may call it at the same time: each program is compiled once.

    Args:
      function: what `jax.jit` returned.
    """

    def __init__(self, function: Any):
        self._function = function
        self._programs: dict[Any, Future[jax.stages.Compiled]] = {}

    def __call__(self, *arguments: Any) -> Any:
        leaves, tree = jax.tree.flatten(arguments)
        shapes = tuple((leaf.shape, leaf.dtype, leaf.sharding) for leaf in leaves)
        own: Future[jax.stages.Compiled] = Future()
        program = self._programs.setdefault((tree, shapes), own)
        if program is own:
            try:
                own.set_result(compiled(self._function, *arguments))
            except BaseException as error:
                own.set_exception(error)
        return program.result()(*arguments)


def _options(once: bool) -> dict[str, Any]:
    """What XLA is told beside `XLA_FLAGS`; where these say it, they count."""
    options: dict[str, Any] = {}
    if jax.default_backend() == 'cpu':
        options = _CPU_OPTIONS | _RUN_ONCE_OPTIONS if once else _CPU_OPTIONS
    elif jax.default_backend() == 'gpu':
        several = jax.device_count() > 1
        options = _GPU_OPTIONS | _GPUS_OPTIONS if several else _GPU_OPTIONS
    given = os.environ.get('XLA_FLAGS', '')
    return {name: value for name, value in options.items() if name not in given}


def _mesh_in_context(arguments: Any) -> contextlib.AbstractContextManager[Any]:
    """Within it, what is traced finds the mesh of these arguments.

    A single device needs none.
    """
    mesh = getattr(jax.tree.leaves(arguments)[0].sharding, 'mesh', None)
    if mesh is None or mesh.size == 1:
        return contextlib.nullcontext()
    return jax.set_mesh(mesh)
