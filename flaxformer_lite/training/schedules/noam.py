"""The paper's learning-rate schedule, §5.3."""

import jax.numpy as jnp

from flaxformer_lite.training.schedules.base import Schedule
from flaxformer_lite.validation import Positive, Size


class Noam(Schedule):
    """factor · d_model^−0.5 · min(s^−0.5, s · warmup^−1.5), s from 1 (equation 3).

    Source: Vaswani et al. 2017, §5.3. Use it to reproduce the paper, with Adam.

    Attributes:
      d_model: Width of the model; in a config, that of its model.
      warmup: Number of updates until the highest rate.

    Examples:
      >>> rate = Noam(d_model=512)
      >>> [f'{rate(count):.1e}' for count in (0, 3999, 99_999)]
      ['1.7e-07', '7.0e-04', '1.4e-04']
    """

    d_model: Size
    warmup: Size = 4000
    factor: Positive = 1.0

    def __call__(self, count):
        s = jnp.asarray(count, jnp.float32) + 1
        rising = s * self.warmup**-1.5
        shape = jnp.minimum(s**-0.5, rising)
        return self.factor * self.d_model**-0.5 * shape
