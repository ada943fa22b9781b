"""The compiled programs of training: initialization, and a step per shape."""

import functools
from typing import Any, NamedTuple

import jax

from experiments.config.schema import ExperimentConfig
from experiments.costs import ledger
from experiments.data.collate import abstract_batch
from experiments.errors import UserError
from experiments.optimizers import optimizer
from experiments.runtime import compilation, mesh
from experiments.runtime.mesh import DeviceMesh
from flaxformer_lite.models.base import Model
from flaxformer_lite.training.loss import as_loss
from flaxformer_lite.training.loss_scale import LossScale
from flaxformer_lite.training.train_step import TrainState, make_train_step


class ProgramKey(NamedTuple):
    """Cache key of compiled programs. Excludes seeds.

    Attributes:
      config: The config without its seeds.
      model: The model.
      steps: Number of training steps, which some schedules use.
      devices: The devices.
      frozen: Paths of the parameters that are not trained.
      source_features: The size of vector sources, or None if sources are ids.
      teacher: The model of `train.teacher`, or None.
    """

    config: ExperimentConfig
    model: Model
    steps: int
    devices: DeviceMesh
    frozen: frozenset[str] = frozenset()
    source_features: int | None = None
    teacher: Model | None = None


class TrainingPrograms:
    """The compiled programs of training, and the optimizer in them.

    Runs that differ only in their seeds can share them.

    Attributes:
      optimizer: The optimizer.
      learning_rate: The jitted schedule: number of updates → learning rate.

    Raises:
      UserError: As `optimizer.make`.
    """

    def __init__(self, kind: ProgramKey):
        self._kind = kind
        self.optimizer, schedule = optimizer.make(kind.config, kind.model, kind.steps)
        self.learning_rate = jax.jit(schedule)
        self._steps: dict[tuple[int, ...], jax.stages.Compiled] = {}

    @functools.cached_property
    def flops_per_token(self) -> int | None:
        """FLOPs per token of a training step, or None if they are unknown."""
        kind = self._kind
        try:
            variables = mesh.abstract_variables(kind.model)
            return ledger.flops_per_token(
                kind.config, kind.model, variables, kind.frozen, kind.source_features
            )['total']
        except (UserError, ValueError):
            return None

    @functools.cached_property
    def first_state(self) -> tuple[Any, TrainState]:
        """The program that makes the initial state, and the abstract state.

        The program is a jitted function (key, given) → state, with the arguments of
        `init_variables`. The abstract state has shapes, dtypes and shardings.
        """
        model, devices = self._kind.model, self._kind.devices
        frozen = self._kind.frozen

        def make(key: jax.Array, given: dict[str, jax.Array]) -> TrainState:
            variables = mesh.first_variables(model, key, given)
            scale = LossScale.for_model(model)
            return TrainState.create(variables, self.optimizer, frozen, scale)

        state = jax.eval_shape(make, mesh.abstract_key(devices), {})
        # The shardings depend only on the shapes.
        shardings = devices.state(state)
        jitted = jax.jit(make, out_shardings=shardings)
        return jitted, mesh.placed(state, shardings)

    def step(
        self, shape: tuple[int, ...], teacher_variables: Any = None
    ) -> jax.stages.Compiled:
        """Returns the training step for batches of a shape, compiled once.

        Args:
          shape: Rows and length.
          teacher_variables: The teacher's variables. They would be too large for
            constants.

        Returns:
          (state, batch, dropout key, teacher's variables) → (state, metrics).
        """
        if shape not in self._steps:
            self._steps[shape] = self._compiled_step(shape, teacher_variables)
        return self._steps[shape]

    def _compiled_step(
        self, shape: tuple[int, ...], teacher_variables: Any
    ) -> jax.stages.Compiled:
        config, model, _, devices, frozen, source_features, teacher = self._kind

        def train_step(state, batch, key, teacher_variables):
            step = make_train_step(
                model,
                self.optimizer,
                loss=as_loss(
                    config.train.loss,
                    teacher=teacher,
                    teacher_variables=teacher_variables,
                ),
                accumulate=config.train.accumulate,
                remat=config.train.remat,
                frozen=frozen,
            )
            return step(state, batch, key)

        _, state = self.first_state
        batch = mesh.placed(abstract_batch(shape, source_features), devices.rows())
        out_shardings = (devices.state(state), devices.everywhere())
        jitted = jax.jit(train_step, donate_argnums=0, out_shardings=out_shardings)
        key = mesh.abstract_key(devices)
        return compilation.compiled(jitted, state, batch, key, teacher_variables)
