"""The compiled programs of training: initialization, and a step per shape."""

import functools
from typing import Any, NamedTuple

import jax

from experiments.config import check
from experiments.config.schema import ExperimentConfig
from experiments.data.collate import abstract_batch
from experiments.optimizers import frozen, optimizer
from experiments.runtime import compilation, mesh
from experiments.runtime.mesh import DeviceMesh
from experiments.training import teacher
from flaxformer_lite.models.base import Model
from flaxformer_lite.training.loss import as_loss
from flaxformer_lite.training.loss_scale import LossScale
from flaxformer_lite.training.train_step import TrainState, make_train_step


class Kind(NamedTuple):
    """Cache key of compiled programs. Excludes seeds.

    Attributes:
      config: The config without its seeds.
      model: The model.
      steps: Number of training steps, which some schedules use.
      devices: The devices.
    """

    config: ExperimentConfig
    model: Model
    steps: int
    devices: DeviceMesh


# Runs in one process that differ only in their seeds share these programs.


@functools.lru_cache(maxsize=4)
def first_state(kind: Kind) -> tuple[Any, TrainState]:
    """Returns the program that makes the initial state, and the abstract state.

    Returns:
      The jitted function (key, given) → state, with the arguments of `init_variables`;
      and the shapes, dtypes and shardings of the state.
    """
    update, _ = optimizer.make(kind.config, kind.model, kind.steps)
    held = frozen.paths(kind.config, kind.model)

    def make(key: jax.Array, given: dict[str, jax.Array]) -> TrainState:
        variables = mesh.first_variables(kind.model)(key, given)
        scale = LossScale.for_model(kind.model)
        return TrainState.create(variables, update, held, scale)

    key = mesh.abstract_key(kind.devices)
    state = jax.eval_shape(make, key, {})
    # The shardings depend only on the shapes.
    shardings = kind.devices.state(state)
    jitted = jax.jit(make, out_shardings=shardings)
    return jitted, mesh.placed(state, shardings)


@functools.lru_cache(maxsize=16)
def compiled_step(kind: Kind, shape: tuple[int, ...]) -> jax.stages.Compiled:
    """Compiles the training step for batches of a shape.

    Returns:
      (state, batch, dropout key, variables) → (state, metrics). The variables are those
      of a teacher, or None. They would be too large for constants.
    """
    train = kind.config.train
    update, _ = optimizer.make(kind.config, kind.model, kind.steps)
    taught = teacher.open_teacher(train.teacher)

    def train_step(state, batch, key, variables):
        step = make_train_step(
            kind.model,
            update,
            loss=as_loss(
                train.loss, teacher=taught and taught.model, teacher_variables=variables
            ),
            accumulate=train.accumulate,
            remat=train.remat,
            frozen=frozen.paths(kind.config, kind.model),
        )
        return step(state, batch, key)

    _, state = first_state(kind)
    features = check.source_features(kind.config, kind.model)
    batch = mesh.placed(abstract_batch(shape, features), kind.devices.rows())
    out_shardings = (kind.devices.state(state), kind.devices.everywhere())
    jitted = jax.jit(train_step, donate_argnums=0, out_shardings=out_shardings)
    key = mesh.abstract_key(kind.devices)
    return compilation.compiled(jitted, state, batch, key, taught and taught.variables)
