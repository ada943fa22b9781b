"""Cosine decay (Loshchilov and Hutter 2017)."""

import jax.numpy as jnp

from flaxformer_lite.training.schedules.base import Schedule
from flaxformer_lite.validation import Positive, Rate, Size


class Cosine(Schedule):
    """Linear warmup to `peak` in w updates, then cosine decay towards 0.

    Source: Loshchilov and Hutter 2017, equation 5. Use it if the number of steps is
    known.

    Attributes:
      steps: Total number of steps; in a config, those of the training.
      warmup: w, as a fraction of all updates.

    Examples:
      >>> rate = Cosine(steps=100, peak=1e-3, warmup=0.1)
      >>> [f'{rate(count):.1e}' for count in (0, 9, 54, 99)]
      ['1.0e-04', '1.0e-03', '5.1e-04', '3.0e-07']
    """

    steps: Size
    peak: Positive
    warmup: Rate = 0.1

    def __call__(self, count):
        w = max(1, round(self.warmup * self.steps))
        s = jnp.asarray(count, jnp.float32) + 1
        progress = jnp.clip((s - w) / (self.steps + 1 - w), 0, 1)
        warmup_factor = s / w
        decay_factor = (1 + jnp.cos(jnp.pi * progress)) / 2
        return self.peak * jnp.where(s < w, warmup_factor, decay_factor)
