"""How programs are compiled, and that compiled programs are kept on disk."""

from typing import Any

import jax

from experiments.command_line.errors import UserError, warn
from experiments.runtime import cache, malloc, programs

# XLA on CPU: the order of operations that keeps few arrays alive takes a fifth less
# memory than the order for many cores, and is no slower on a few.
_CPU_OPTIONS = {'xla_cpu_scheduler_type': 'CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED'}
# A program that runs once ends sooner when little time is spent on optimizing it.
_RUN_ONCE_OPTIONS = {'xla_backend_optimization_level': 0}


def compiled(function: Any, *arguments: Any, once: bool = False) -> jax.stages.Compiled:
    """The compiled program of a jitted function for arguments of these shapes.

    Args:
      function: what `jax.jit` returned.
      arguments: arrays, or abstract arrays with shardings.
      once: whether the program will run only once.
    """
    program = function.lower(*arguments).compile(compiler_options=_options(once))
    malloc.release()
    return program


def _options(once: bool) -> dict[str, Any] | None:
    if jax.default_backend() != 'cpu':
        return None
    if once:
        return _CPU_OPTIONS | _RUN_ONCE_OPTIONS
    return _CPU_OPTIONS


def keep_programs() -> None:
    """Has JAX keep compiled programs on disk; without a place there, it recompiles."""
    try:
        folder = cache.folder() / 'programs'
    except UserError as error:
        warn(f'compiled programs are not kept, for {error}')
        return
    programs.keep(folder)
