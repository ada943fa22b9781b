"""Base class of learning-rate schedules."""

import jax
from jax.typing import ArrayLike

from flaxformer_lite.validation import FrozenDataclass


class Schedule(FrozenDataclass):
    """Learning rate as a function of the number of updates; an optax schedule.

        class Constant(fl.schedules.Schedule):
            rate: float = 1e-3

            def __call__(self, count):
                return jnp.asarray(self.rate)

    Annotated attributes are arguments. In a config, `d_model` and `steps`, the total
    number of steps, are not: they are those of the training.
    """

    def __call__(self, count: ArrayLike) -> jax.Array:
        """Returns the rate after `count` updates, float32, at least 0 and finite."""
        raise NotImplementedError
