"""Base class of learning-rate schedules."""

import dataclasses
from typing import Any, dataclass_transform

import jax

from flaxformer_lite.validation import Checked


@dataclass_transform(frozen_default=True)
@dataclasses.dataclass(frozen=True)
class Schedule(Checked):
    """Learning rate as a function of the number of updates; an optax schedule.

    Annotated attributes are arguments. The run provides `d_model` and `steps`, the
    total number of steps, to schedules that have them.
    """

    def __init_subclass__(cls, **settings: Any):
        super().__init_subclass__(**settings)
        dataclasses.dataclass(frozen=True)(cls)

    def __call__(self, count: jax.Array | int) -> jax.Array:
        """Returns the rate after `count` updates, float32, at least 0 and finite."""
        raise NotImplementedError
