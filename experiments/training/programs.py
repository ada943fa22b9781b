"""The compiled programs of training."""

import dataclasses
import functools
from typing import Any, Self

import jax
import jax.numpy as jnp

from experiments.config.components import Components
from experiments.config.schema import ExperimentConfig, without_seeds
from experiments.costs import ledger
from experiments.data.collate import abstract_batch
from experiments.errors import UserError
from experiments.evaluation.opened_run import OpenedRun
from experiments.optimizers.optimizer import Optimizer
from experiments.runtime import mesh
from experiments.runtime.compilation import Program
from experiments.runtime.mesh import DeviceMesh
from flaxformer_lite.losses.base import Loss
from flaxformer_lite.models.base import Model
from flaxformer_lite.training.loss import with_arguments
from flaxformer_lite.training.loss_scale import LossScale
from flaxformer_lite.training.train_step import TrainState, make_train_step


@dataclasses.dataclass(frozen=True)
class TrainingPrograms:
    """The compiled programs of training; equal objects have equal programs.

    Runs with other seeds can share them. A peak learning rate is their last argument if
    `Optimizer.peak` isn't None, so runs with other peaks can share them, too.

    Attributes:
      config: The config without seeds, and without the peak if that is an argument, so
        that runs that differ only in these share programs. It determines `loss` and
        `optimizer`, so these are excluded from equality.
      steps: Number of training steps, which some schedules use.
      source_features: Number of features of vector sources, or None if sources are ids.
    """

    config: ExperimentConfig
    model: Model
    loss: Loss = dataclasses.field(compare=False)
    optimizer: Optimizer = dataclasses.field(compare=False)
    steps: int
    devices: DeviceMesh
    frozen: frozenset[str] = frozenset()
    source_features: int | None = None
    teacher: Model | None = None

    @classmethod
    def of(
        cls,
        config: ExperimentConfig,
        components: Components,
        steps: int,
        devices: DeviceMesh,
        teacher: OpenedRun | None,
    ) -> Self:
        """Returns the programs that train the components of a config."""
        return cls(
            without_seeds(config),
            components.model,
            components.loss,
            components.optimizer,
            steps,
            devices,
            components.frozen,
            components.tokenizer.source_features,
            teacher and teacher.model,
        )

    @functools.cached_property
    def _first_build(self) -> tuple[Any, Any]:
        return self._build(None)

    @property
    def update(self) -> Any:
        """The optax transformation, with the peak of the first run."""
        return self._first_build[0]

    @property
    def schedule(self) -> Any:
        return self._first_build[1]

    @functools.cached_property
    def learning_rate(self) -> Any:
        """The jitted rate by number of updates, and peak."""
        return jax.jit(lambda count, peak: self._build(peak)[1](count))

    @functools.cached_property
    def flops_per_token(self) -> int | None:
        """FLOPs of a training step per token, if they can be counted."""
        accumulate = self.config.train.accumulate
        try:
            rows, length = ledger.batch_shape(self.config.batch, accumulate)
            return ledger.flops_per_token(
                (rows // accumulate, length),
                self.model,
                mesh.abstract_variables(self.model),
                None if self.teacher else self.loss,
                self.frozen,
                self.source_features,
            )['total']
        except (UserError, ValueError):
            return None

    @functools.cached_property
    def first_state(self) -> tuple[Any, TrainState]:
        """The program that makes the initial state, and the abstract state.

        The program is a jitted function (key, given) → state, with the arguments of
        `init_variables`. The abstract state has shapes, dtypes and shardings.
        """

        def make(key: jax.Array, given: dict[str, jax.Array]) -> TrainState:
            variables = mesh.first_variables(self.model, key, given)
            scale = LossScale.for_model(self.model)
            return TrainState.create(variables, self.update, self.frozen, scale)

        state = jax.eval_shape(make, mesh.abstract_key(self.devices), {})
        # The shardings depend only on the shapes.
        shardings = self.devices.state(state)
        jitted = jax.jit(make, out_shardings=shardings)
        return jitted, mesh.attach_shardings(state, shardings)

    def step(
        self, shape: tuple[int, ...], teacher_variables: Any = None
    ) -> jax.stages.Compiled:
        """Returns the training step for batches of a shape, compiled once.

        Args:
          shape: Rows and length.
          teacher_variables: An argument, because they are too large for constants.

        Returns:
          (state, batch, dropout key, teacher's variables, peak) → (state, metrics).
        """
        _, state = self.first_state
        batch = mesh.attach_shardings(
            abstract_batch(shape, self.source_features), self.devices.rows()
        )
        key = mesh.abstract_key(self.devices)
        peak = None
        if self.optimizer.peak is not None:
            number = jax.ShapeDtypeStruct((), jnp.float32)
            peak = mesh.attach_shardings(number, self.devices.everywhere())
        return self._step.compiled(state, batch, key, teacher_variables, peak)

    @functools.cached_property
    def _step(self) -> Program:
        def train_step(state, batch, key, teacher_variables, peak):
            step = make_train_step(
                self.model,
                self._build(peak)[0],
                loss=with_arguments(
                    self.loss,
                    teacher=self.teacher,
                    teacher_variables=teacher_variables,
                ),
                accumulate=self.config.train.accumulate,
                remat=self.config.train.remat,
                frozen=self.frozen,
            )
            return step(state, batch, key)

        _, state = self.first_state
        out_shardings = (self.devices.state(state), self.devices.everywhere())
        jitted = jax.jit(train_step, donate_argnums=0, out_shardings=out_shardings)
        return Program(jitted)

    def _build(self, peak: jax.Array | None) -> tuple[Any, Any]:
        return self.optimizer.build(self.model, self.steps, peak)
