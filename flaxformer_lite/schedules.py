"""Learning rates over the steps: the paper's (§5.3), and optax's by name."""

import functools

import jax.numpy as jnp
import optax

from flaxformer_lite import spec


def noam(d_model: int, warmup: int = 4000, factor: float = 1.0) -> optax.Schedule:
    """factor · d_model^−0.5 · min(s^−0.5, s · warmup^−1.5), s = 1 at the first update (equation 3).

    Raises:
      ValueError: warmup is below 1.
    """
    if warmup < 1:
        raise ValueError(f'warmup must be at least 1, not {warmup}')

    def rate(count):
        s = jnp.asarray(count, jnp.float32) + 1
        return factor * d_model**-0.5 * jnp.minimum(s**-0.5, s * warmup**-1.5)

    return rate


def make(text: str, d_model: int) -> optax.Schedule:
    """`'noam(warmup=400)'`, or any of optax's: `'cosine_decay_schedule(init_value=1e-3, …)'`.

    Raises:
      ValueError: no schedule has that name, or its arguments are wrong.
    """
    name, arguments = spec.parse(text)
    if name == 'noam':
        return _call(text, functools.partial(noam, d_model), arguments)
    schedules = [n for n in vars(optax.schedules) if n.endswith('_schedule') and n[0] != '_']
    if name not in schedules:
        raise ValueError(f'{name!r} is not one of {", ".join(["noam", *schedules])}')
    return _call(text, getattr(optax.schedules, name), arguments)


def _call(text: str, make, arguments) -> optax.Schedule:
    try:
        return make(**arguments)
    except TypeError as error:
        raise ValueError(f'{text!r}: {error}') from None
