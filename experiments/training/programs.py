"""The compiled programs of training: of one run, or of several seeds in one program.

Several runs that differ in their seeds alone are one program (`jax.vmap` over state,
batch and key): their states are one tree, whose leaves have an axis R of runs in front.
How devices share them, `mesh.Layout` says.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from experiments.config.schema import ExperimentConfig, without_seeds
from experiments.data.collate import Batch as HostBatch
from experiments.optimizers import frozen, optimizer
from experiments.runtime import compilation, mesh
from experiments.runtime.mesh import DeviceMesh, Layout
from experiments.training.setup import RunSetup
from flaxformer_lite.models.base import Model
from flaxformer_lite.sharding import by_device
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
        self._layout = Layout(setup.devices, runs)
        self._kind = Kind(
            without_seeds(setup.config), setup.model, setup.steps, setup.devices
        )
        self._initial = setup.initial
        self._rows = {length: rows for rows, length in setup.batches.shapes}
        self._steps: dict[tuple[int, int], Future] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix='compile')

    def compile_steps(self, shapes: Sequence[tuple[int, int]]) -> None:
        """Begins to compile the training step for batches of these shapes.

        Those after the first are compiled also while training goes on.
        """
        for shape in shapes:
            self._steps[shape] = self._thread.submit(
                _compiled_step, self._kind, shape, self._layout.runs
            )

    def step(self, shape: tuple[int, ...]) -> Future:
        """The program of a training step for batches of this shape, runs or none first.

        It takes the state, the batch and the dropout key. Of several runs they are
        stacked, and it also takes which of them move, bool R.
        """
        *_, rows, length = shape
        return self._steps[rows, length]

    def abstract_state(self) -> TrainState:
        """Shapes and dtypes of the state of one run."""
        return _first_state(self._kind).abstract

    def first_state(self, key: jax.Array) -> TrainState:
        """The state that one run begins with."""
        given = {}
        if self._kind.config.init_from:
            assert self._initial is not None, 'a run that has begun has a state'
            given = self._initial.variables()
        program = _first_state(self._kind).program
        return compilation.compiled(program, key, given, once=True)(key, given)

    def forget_initial(self) -> None:
        """Frees what the runs took over: all of them have begun."""
        if self._initial is not None:
            self._initial.release()

    def stack(self, trees: Sequence[Any]) -> Any:
        """The states, or keys, of the runs as one tree; that of one run as it is."""
        if self._layout.runs == 1:
            return trees[0]
        shardings = self._layout.state(trees[0])
        # In two steps, of which the second has each device keep a part of what it has:
        # XLA might add up what it is told to stack in parts.
        return jax.jit(_same, out_shardings=shardings)(_stack(list(trees)))

    def own_rows(self, run: int) -> Callable[[int], np.ndarray]:
        """Which rows, of so many, this process needs of a run's batches."""
        return functools.partial(self._layout.own_rows, run)

    def place_batches(self, batches: Mapping[int, HostBatch]) -> dict[str, jax.Array]:
        """The batches of the runs as one, on the devices.

        Args:
          batches: the `own_rows` of each run's. Runs that do not move may be missing:
            theirs is empty.
        """
        length = next(iter(batches.values()))['labels'].shape[1]
        rows = self._rows[length]
        of_runs = []
        for run in range(self._layout.runs):
            own = len(self._layout.own_rows(run, rows))
            nothing = dict.fromkeys(BATCH_ARRAYS, np.zeros((own, length), np.int32))
            of_runs.append(batches.get(run, nothing))
        return self._layout.put(of_runs, rows)

    def take(self, states: TrainState, index: int) -> TrainState:
        """The state of one of the runs."""
        if self._layout.runs == 1:
            return states
        of_one = self._kind.devices.state(self.abstract_state())
        return jax.jit(_take, out_shardings=of_one)(states, index)

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
    layout = Layout(kind.devices, runs)
    state = _first_state(kind).abstract
    batch = dict.fromkeys(BATCH_ARRAYS, jax.ShapeDtypeStruct(shape, jnp.int32))
    key = jax.eval_shape(jax.random.key, 0)
    everywhere = kind.devices.everywhere()
    shardings = [layout.state(state), layout.batch(), layout.state(key), everywhere]
    arguments = [state, batch, key]
    if runs > 1:
        step = _of_several(step, layout.divides_runs)
        arguments = [_with_runs(argument, runs) for argument in arguments]
        arguments.append(jax.ShapeDtypeStruct((runs,), bool))
    placed = [mesh.placed(*pair) for pair in zip(arguments, shardings, strict=False)]
    out_shardings = (shardings[0], everywhere)
    jitted = jax.jit(step, donate_argnums=0, out_shardings=out_shardings)
    return compilation.compiled(jitted, *placed)


class _FirstState(NamedTuple):
    """The program that makes the state a run begins with, and the state's shapes."""

    program: Any
    abstract: TrainState


@functools.lru_cache(maxsize=4)
def _first_state(kind: Kind) -> _FirstState:
    update, _ = optimizer.make(kind.config, kind.model, kind.steps)
    held = frozen.paths(kind.config, kind.model)

    def first_state(key: jax.Array, given: dict[str, jax.Array]) -> TrainState:
        return init_state(kind.model, update, key, given, held)

    key = mesh.placed(jax.eval_shape(jax.random.key, 0), kind.devices.everywhere())
    state = jax.eval_shape(first_state, key, {})
    # Where it goes follows from its shapes.
    shardings = kind.devices.state(state)
    jitted = jax.jit(first_state, out_shardings=shardings)
    return _FirstState(jitted, mesh.placed(state, shardings))


def _with_runs(tree: Any, runs: int) -> Any:
    """Abstract arrays with an axis of runs in front."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((runs, *x.shape), x.dtype), tree)


def _of_several(step: TrainStep, divided: bool = False) -> Any:
    """The step of several runs, of which those that are not to move stay as they are.

    The others would have moved as they do without them, so a run that has ended, or
    that is ahead after a kill, keeps its place, and the program stays the same one.

    Args:
      step: of one run.
      divided: whether each device along `data` makes it for runs of its own.
    """

    def advance(
        state: TrainState, batch: Batch, key_R: jax.Array, moves_R: jax.Array
    ) -> tuple[TrainState, Metrics]:
        moved, metrics = jax.vmap(step)(state, batch, key_R)

        def choose(new: jax.Array, old: jax.Array) -> jax.Array:
            shape = (len(moves_R),) + (1,) * (new.ndim - 1)
            return jnp.where(moves_R.reshape(shape), new, old)

        return jax.tree.map(choose, moved, state), metrics

    def of_each_device(*arguments: Any) -> tuple[TrainState, Metrics]:
        own_runs = PartitionSpec('data')
        return by_device(advance, own_runs, own_runs, axes=('data',))(*arguments)

    return of_each_device if divided else advance


@jax.jit
def _stack(trees: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def _take(tree: Any, index: int) -> Any:
    return jax.tree.map(lambda x: x[index], tree)


def _same(tree: Any) -> Any:
    return tree
