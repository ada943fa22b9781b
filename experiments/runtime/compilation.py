"""How programs are compiled, and that compiled programs are kept on disk."""

import contextlib
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import jax
from jax.experimental import serialize_executable
from jax.experimental.compilation_cache import compilation_cache

from experiments.errors import UserError, warn
from experiments.runtime import cache, jax_cache, kept, malloc
from experiments.runtime.processes import group

# XLA on CPU: the order of operations that keeps few arrays alive takes a fifth less
# memory than the order for many cores, and is no slower on a few.
_CPU_OPTIONS = {'xla_cpu_scheduler_type': 'CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED'}
# A program that runs once ends sooner when little time is spent on optimizing it.
_RUN_ONCE_OPTIONS = {'xla_backend_optimization_level': 0}
# XLA on several GPUs: they compute while they send.
_GPUS_OPTIONS = {'xla_gpu_enable_latency_hiding_scheduler': True}


class Program:
    """A jitted function, compiled for each of the shapes that it is called with.

    What was compiled is kept on disk. A later process finds it there before it traces
    anything, which for a small model takes longer than to compile it.

    Args:
      function: what `jax.jit` returned.
      made_of: all that it follows from beside the sources, as `kept` takes it.
      once: whether it will run only once.
    """

    def __init__(self, function: Any, made_of: Any, once: bool = False):
        self._function = function
        self._made_of = made_of
        self._once = once
        self._name = function.__name__.strip('_')
        self._compiled: dict[Any, Future] = {}

    def __call__(self, *arguments: Any) -> Any:
        return self.compiled(*arguments)(*arguments)

    def compiled(self, *arguments: Any) -> jax.stages.Compiled:
        """The program for arguments of these shapes: arrays, or abstract ones.

        Several threads may ask at the same time; each program is compiled once.
        """
        leaves, tree = jax.tree.flatten(arguments)
        of_leaves = tuple((leaf.shape, leaf.dtype, leaf.sharding) for leaf in leaves)
        # A mesh in context changes what is traced.
        shapes = tree, of_leaves, jax.sharding.get_abstract_mesh()
        own: Future = Future()
        program = self._compiled.setdefault(shapes, own)
        if program is own:
            try:
                own.set_result(self._found_or_compiled(arguments, shapes))
            except BaseException as error:
                own.set_exception(error)
        return program.result()

    def _found_or_compiled(
        self, arguments: tuple[Any, ...], shapes: Any
    ) -> jax.stages.Compiled:
        if group.count() > 1:
            # A program of several cannot be kept; jax's own cache can keep it.
            return compiled(self._function, *arguments, once=self._once)

        def compile_it() -> jax.stages.Compiled:
            with _without_jax_cache():
                return compiled(self._function, *arguments, once=self._once)

        def load(data: bytes) -> jax.stages.Compiled:
            return serialize_executable.deserialize_and_load(
                *pickle.loads(data), execution_devices=_devices(arguments)
            )

        made_of = (self._made_of, shapes, _options(self._once))
        return kept.kept(self._name, made_of, compile_it, _serialize, load)


def outputs(function: Callable, made_of: Any, *arguments: Any) -> Any:
    """Shapes and dtypes of what a function returns for arguments of these shapes.

    They are kept on disk, as programs are.

    Args:
      function: of arrays.
      made_of: as of a `Program`.
      arguments: arrays, or abstract ones.
    """
    name = function.__name__.strip('_')

    def trace() -> Any:
        found = jax.eval_shape(function, *arguments)
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), found)

    return kept.kept(f'{name}-shapes', (made_of, arguments), trace)


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
    program = lowered.compile(compiler_options=_options(once))
    malloc.release()
    return program


def _options(once: bool) -> dict[str, Any]:
    """What XLA is told beside `XLA_FLAGS`; where these say it, they count."""
    options: dict[str, Any] = {}
    if jax.default_backend() == 'cpu':
        options = _CPU_OPTIONS | _RUN_ONCE_OPTIONS if once else _CPU_OPTIONS
    elif jax.default_backend() == 'gpu' and jax.device_count() > 1:
        options = _GPUS_OPTIONS
    given = os.environ.get('XLA_FLAGS', '')
    return {name: value for name, value in options.items() if name not in given}


def _serialize(program: jax.stages.Compiled) -> bytes:
    return pickle.dumps(serialize_executable.serialize(program))


def _devices(arguments: Any) -> list[Any]:
    """Those that a program for these arguments runs on, which are the same for all."""
    mesh = _mesh(arguments)
    if mesh is None:
        return list(jax.tree.leaves(arguments)[0].sharding.device_set)
    return list(mesh.devices.flat)  # in the order of the mesh


def _mesh(arguments: Any) -> jax.sharding.Mesh | None:
    """The mesh on which arguments are, which is the same for all; None without one."""
    return getattr(jax.tree.leaves(arguments)[0].sharding, 'mesh', None)


def _mesh_in_context(arguments: Any) -> contextlib.AbstractContextManager[Any]:
    """Within it, what is traced finds the mesh of these arguments.

    A single device needs none.
    """
    mesh = _mesh(arguments)
    if mesh is None or mesh.size == 1:
        return contextlib.nullcontext()
    return jax.set_mesh(mesh)


_compiling = 0
_counting = threading.Lock()


@contextlib.contextmanager
def _without_jax_cache() -> Iterator[None]:
    """What is compiled in the block is not taken from JAX's own cache.

    On a CPU what was read from there cannot be serialized: it lacks its code. The
    setting is the whole process's; what other threads compile meanwhile is merely not
    kept.
    """
    global _compiling
    with _counting:
        _compiling += 1
        if _compiling == 1:
            _set_jax_cache(False)
    try:
        yield
    finally:
        with _counting:
            _compiling -= 1
            if _compiling == 0:
                _set_jax_cache(True)


def _set_jax_cache(used: bool) -> None:
    jax.config.update('jax_enable_compilation_cache', used)
    compilation_cache.reset_cache()  # it reads the setting only once


def keep_programs() -> None:
    """Has compiled programs kept on disk, as far as there is a place for them."""
    try:
        folder = cache.folder()
    except UserError as error:
        warn(f'compiled programs are not kept, for {error}')
        return
    jax_cache.keep(folder / 'programs')
    kept.use(folder / 'kept')
