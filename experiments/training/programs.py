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
from experiments.runtime import compilation, mesh
from experiments.runtime.mesh import DeviceMesh
from flaxformer_lite.losses.base import Loss
from flaxformer_lite.models.base import Model
from flaxformer_lite.training.loss import with_arguments
from flaxformer_lite.training.loss_scale import LossScale
from flaxformer_lite.training.train_step import TrainState, make_train_step


@dataclasses.dataclass(frozen=True)
class ProgramKey:
    """Cache key of compiled programs.

    Attributes:
      config: Excludes seeds, and the peak if it is an argument. It names `loss` and
        `optimizer`, which aren't compared.
      steps: Number of training steps, which some schedules use.
      source_features: The size of vector sources, or None if sources are ids.
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
        made: Components,
        steps: int,
        devices: DeviceMesh,
        teacher: OpenedRun | None,
    ) -> Self:
        """Returns the key of the programs that train the components of a config."""
        return cls(
            without_seeds(config),
            made.model,
            made.loss,
            made.optimizer,
            steps,
            devices,
            made.frozen,
            made.tokenizer.source_features,
            teacher and teacher.model,
        )


class TrainingPrograms:
    """The compiled programs of training; runs with other seeds can share them.

    A peak learning rate is their last argument if `Optimizer.peak` isn't None, so runs
    with other peaks can share them, too.

    Attributes:
      optimizer, schedule: Those of the first run.
      learning_rate: The jitted rate by number of updates, and peak.
    """

    def __init__(self, kind: ProgramKey):
        self._kind = kind
        self.optimizer, self.schedule = kind.optimizer.build(kind.model, kind.steps)
        self.learning_rate = jax.jit(lambda count, peak: self._build(peak)[1](count))
        self._steps: dict[tuple[int, ...], jax.stages.Compiled] = {}

    @functools.cached_property
    def flops_per_token(self) -> int | None:
        """FLOPs of a training step per token, if they can be counted."""
        kind = self._kind
        accumulate = kind.config.train.accumulate
        try:
            rows, length = ledger.batch_shape(kind.config.batch, accumulate)
            return ledger.flops_per_token(
                (rows // accumulate, length),
                kind.model,
                mesh.abstract_variables(kind.model),
                None if kind.teacher else kind.loss,
                kind.frozen,
                kind.source_features,
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
        if shape not in self._steps:
            self._steps[shape] = self._compiled_step(shape, teacher_variables)
        return self._steps[shape]

    def _compiled_step(
        self, shape: tuple[int, ...], teacher_variables: Any
    ) -> jax.stages.Compiled:
        kind = self._kind
        devices = kind.devices

        def train_step(state, batch, key, teacher_variables, peak):
            step = make_train_step(
                kind.model,
                self._build(peak)[0],
                loss=with_arguments(
                    kind.loss,
                    teacher=kind.teacher,
                    teacher_variables=teacher_variables,
                ),
                accumulate=kind.config.train.accumulate,
                remat=kind.config.train.remat,
                frozen=kind.frozen,
            )
            return step(state, batch, key)

        _, state = self.first_state
        batch = mesh.attach_shardings(
            abstract_batch(shape, kind.source_features), devices.rows()
        )
        out_shardings = (devices.state(state), devices.everywhere())
        jitted = jax.jit(train_step, donate_argnums=0, out_shardings=out_shardings)
        key = mesh.abstract_key(devices)
        peak = None
        if kind.optimizer.peak is not None:
            number = jax.ShapeDtypeStruct((), jnp.float32)
            peak = mesh.attach_shardings(number, devices.everywhere())
        return compilation.compile_program(
            jitted, state, batch, key, teacher_variables, peak
        )

    def _build(self, peak: jax.Array | None) -> tuple[Any, Any]:
        return self._kind.optimizer.build(self._kind.model, self._kind.steps, peak)
