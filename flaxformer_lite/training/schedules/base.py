"""What learning-rate schedules have in common: a rate for each update."""

import dataclasses
from typing import Any, dataclass_transform

import jax

from flaxformer_lite.ranges import Checked


@dataclass_transform(frozen_default=True)
@dataclasses.dataclass(frozen=True)
class Schedule(Checked):
    """The learning rate by the count of updates so far: optax takes it as its own.

    Annotated attributes are its arguments, as those of a frozen dataclass. Two of them
    are the run's to give, to a schedule that has them: `d_model`, the width of the
    model, and `steps`, the length of the whole training.
    """

    def __init_subclass__(cls, **settings: Any):
        super().__init_subclass__(**settings)
        dataclasses.dataclass(frozen=True)(cls)

    def __call__(self, count: jax.Array | int) -> jax.Array:
        """The rate of an update, float32, at least 0 and finite.

        Args:
          count: of the updates before it, from 0 on.
        """
        raise NotImplementedError
