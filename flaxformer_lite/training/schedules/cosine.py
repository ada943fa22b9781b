"""Half a cosine (Loshchilov and Hutter 2017), for runs too short for the paper's rates,
which end high."""

import jax.numpy as jnp

from flaxformer_lite.ranges import Positive, Rate, Size
from flaxformer_lite.training.schedules.base import Schedule


class Cosine(Schedule):
    """To `peak` in w updates, then half a cosine towards 0.

    The first update has peak / w, the w-th the peak, and 0 would be that after the
    last: each teaches something.

    Attributes:
      steps: of the whole training; given.
      peak: the highest rate.
      warmup: w, as a share of all updates.
    """

    steps: Size
    peak: Positive
    warmup: Rate = 0.1

    def __call__(self, count):
        w = max(1, round(self.warmup * self.steps))
        s = jnp.asarray(count, jnp.float32) + 1
        done = jnp.clip((s - w) / (self.steps + 1 - w), 0, 1)
        rising = s / w
        falling = (1 + jnp.cos(jnp.pi * done)) / 2
        return self.peak * jnp.where(s < w, rising, falling)
