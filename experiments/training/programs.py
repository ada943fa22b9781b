"""The compiled programs of training: of one run, or of several seeds in one program.

Several runs that differ in their seeds alone are one program (`jax.vmap` over state,
batch and key): their states are one tree, whose leaves have an axis R of runs in front.
"""

import functools
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.config.derived import without_seeds
from experiments.config.schema import ExperimentConfig
from experiments.optimizers import frozen, optimizer
from experiments.runtime import compilation, mesh
from experiments.runtime.mesh import DeviceMesh
from experiments.training.setup import RunSetup
from flaxformer_lite.models.base import Model
from flaxformer_lite.training.batch import BATCH_ARRAYS, Batch
from flaxformer_lite.training.train_step import (
    Metrics,
    TrainState,
    TrainStep,
    init_state,
    make_train_step,
)


class Kind(NamedTuple):
    """What a training's programs follow from. Its seeds are none of it.

    Attributes:
      config: without its seeds.
      model: the model.
      steps: the length of the training, by which some schedules go.
      devices: that it runs on.
    """

    config: ExperimentConfig
    model: Model
    steps: int
    devices: DeviceMesh


class Programs:
    """The programs of a training, compiled in a thread of their own.

    Args:
      setup: of the run, or of the first one of several.
      runs: how many are trained at once.
    """

    def __init__(self, setup: RunSetup, runs: int = 1):
        self._runs = runs
        self._kind = Kind(
            without_seeds(setup.config), setup.model, setup.steps, setup.devices
        )
        self._initial = setup.initial
        self._steps: dict[tuple[int, int], Future] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix='compile')

    def compile_steps(self, shapes: Sequence[tuple[int, int]]) -> None:
        """Begins to compile the training step for batches of these shapes.

        Those after the first are compiled also while training goes on.
        """
        for shape in shapes:
            self._steps[shape] = self._thread.submit(
                _compiled_step, self._kind, shape, self._runs
            )

    def step(self, shape: tuple[int, int]) -> Future:
        """The program of a training step for batches of this shape.

        It takes the state, the batch and the dropout key. Of several runs they are
        stacked, and it also takes which of them move, bool R.
        """
        return self._steps[shape]

    def abstract_state(self) -> TrainState:
        """Shapes and dtypes of the state of one run."""
        return _first_state(self._kind).abstract

    def first_state(self, key: jax.Array) -> TrainState:
        """The state that one run begins with."""
        given = {}
        if self._kind.config.init_from:
            assert self._initial is not None, 'a run that has begun has a state'
            given = self._initial.variables()
        return _first_state(self._kind).program(key, given)

    def forget_initial(self) -> None:
        """Frees what the runs took over: all of them have begun."""
        if self._initial is not None:
            self._initial.release()

    def stack(self, trees: Sequence[Any]) -> Any:
        """The states, or keys, of the runs as one tree; that of one run as it is."""
        if self._runs == 1:
            return trees[0]
        stacked = _stack(list(trees))
        return jax.device_put(stacked, self._kind.devices.state(stacked))

    def stack_batches(
        self, batches: Sequence[dict[str, np.ndarray]]
    ) -> dict[str, jax.Array]:
        """The batches of the runs as one, on the devices; that of one run as it is."""
        rows = self._kind.devices.rows
        if self._runs == 1:
            return mesh.put(batches[0], rows())
        stacked = jax.tree.map(lambda *arrays: np.stack(arrays), *batches)
        return mesh.put(stacked, rows(axis=1))

    def take(self, tree: Any, index: int) -> Any:
        """The part of a tree that belongs to one of its runs."""
        return tree if self._runs == 1 else _take(tree, index)

    def close(self, wait: bool) -> None:
        """Ends the thread; without waiting, once it has compiled what it compiles."""
        self._thread.shutdown(wait=wait, cancel_futures=True)


# Runs of one process that differ in their seeds alone have the same programs.


@functools.lru_cache(maxsize=16)
def _compiled_step(
    kind: Kind, shape: tuple[int, int], runs: int
) -> jax.stages.Compiled:
    update, _ = optimizer.make(kind.config, kind.model, kind.steps)
    step = make_train_step(
        kind.model,
        update,
        label_smoothing=kind.config.train.label_smoothing,
        accumulate=kind.config.train.accumulate,
        remat=kind.config.train.remat,
        frozen=frozen.paths(kind.config, kind.model),
    )
    state = _first_state(kind).abstract
    batch = dict.fromkeys(BATCH_ARRAYS, jax.ShapeDtypeStruct(shape, jnp.int32))
    key = jax.eval_shape(jax.random.key, 0)
    arguments = [state, batch, key]
    if runs > 1:
        step = _of_several(step)
        arguments = [_with_runs(argument, runs) for argument in arguments]
        arguments.append(jax.ShapeDtypeStruct((runs,), bool))
    devices = kind.devices
    state_shardings = devices.state(arguments[0])
    batch_sharding = devices.rows(axis=0 if runs == 1 else 1)
    everywhere = devices.everywhere()
    shardings = [state_shardings, batch_sharding, everywhere, everywhere]
    placed = [mesh.placed(*pair) for pair in zip(arguments, shardings, strict=False)]
    out_shardings = (state_shardings, everywhere)
    jitted = jax.jit(step, donate_argnums=0, out_shardings=out_shardings)
    return compilation.Program(jitted, _made_of(kind)).compiled(*placed)


def _made_of(kind: Kind) -> tuple[Any, ...]:
    """What of a kind the programs follow from: not its data, nor how it is scored."""
    train = kind.config.train
    settings = (train.label_smoothing, train.accumulate, train.remat, train.freeze)
    return kind.model, kind.config.model, kind.config.optimizer, settings, kind.steps


class _FirstState(NamedTuple):
    """The program that makes the state a run begins with, and the state's shapes."""

    program: compilation.Program
    abstract: TrainState


@functools.lru_cache(maxsize=4)
def _first_state(kind: Kind) -> _FirstState:
    update, _ = optimizer.make(kind.config, kind.model, kind.steps)
    held = frozen.paths(kind.config, kind.model)

    def first(key: jax.Array, given: dict[str, jax.Array]) -> TrainState:
        return init_state(kind.model, update, key, given, held)

    key = mesh.placed(jax.eval_shape(jax.random.key, 0), kind.devices.everywhere())
    # Where it goes is known once its shapes are.
    state = compilation.Program(jax.jit(first), _made_of(kind)).outputs(key, {})
    shardings = kind.devices.state(state)
    jitted = jax.jit(first, out_shardings=shardings)
    program = compilation.Program(jitted, _made_of(kind), once=True)
    return _FirstState(program, mesh.placed(state, shardings))


def _with_runs(tree: Any, runs: int) -> Any:
    """Abstract arrays with an axis of runs in front."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((runs, *x.shape), x.dtype), tree)


def _of_several(step: TrainStep) -> Any:
    """The step of several runs, of which those that are not to move stay as they are.

    The others would have moved as they do without them, so a run that has ended, or
    that is ahead after a kill, keeps its place, and the program stays the same one.
    """

    def advance(
        state: TrainState, batch: Batch, key_R: jax.Array, moves_R: jax.Array
    ) -> tuple[TrainState, Metrics]:
        moved, metrics = jax.vmap(step)(state, batch, key_R)

        def choose(new: jax.Array, old: jax.Array) -> jax.Array:
            shape = (len(moves_R),) + (1,) * (new.ndim - 1)
            return jnp.where(moves_R.reshape(shape), new, old)

        return jax.tree.map(choose, moved, state), metrics

    return advance


@jax.jit
def _stack(trees: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


@jax.jit
def _take(tree: Any, index: int) -> Any:
    return jax.tree.map(lambda x: x[index], tree)
