"""Learning rates over the steps: the paper's (§5.3), one for short runs, and optax's by name."""

import functools

import jax.numpy as jnp
import optax

from flaxformer_lite import spec


def noam(d_model: int, warmup: int = 4000, factor: float = 1.0) -> optax.Schedule:
    """factor · d_model^−0.5 · min(s^−0.5, s · warmup^−1.5), s = 1 at the first update (equation 3).

    Raises:
      ValueError: warmup is below 1.
    """
    if not warmup >= 1:
        raise ValueError(f'warmup must be at least 1, not {warmup}')

    def rate(count):
        s = jnp.asarray(count, jnp.float32) + 1
        return factor * d_model**-0.5 * jnp.minimum(s**-0.5, s * warmup**-1.5)

    return rate


def cosine(steps: int, peak: float, warmup: float = 0.1) -> optax.Schedule:
    """In w updates, a share `warmup` of the steps, to `peak`; then along half a cosine towards 0.

    The first update has peak / w, the w-th the peak, and 0 would be that after the last: each
    teaches something. For runs too short for the paper's schedule, which ends high (Loshchilov and
    Hutter 2017).

    Raises:
      ValueError: warmup is not in [0, 1).
    """
    if not 0 <= warmup < 1:
        raise ValueError(
            f'warmup must be at least 0 and below 1, a share, not {warmup}'
        )
    w = max(1, round(warmup * steps))

    def rate(count):
        s = jnp.asarray(count, jnp.float32) + 1
        done = jnp.clip((s - w) / (steps + 1 - w), 0, 1)
        return peak * jnp.where(s < w, s / w, (1 + jnp.cos(jnp.pi * done)) / 2)

    return rate


def make(text: str, d_model: int, steps: int) -> optax.Schedule:
    """`'noam(warmup=400)'`, `'cosine(peak=1e-3)'`, or any of optax's: `'linear_schedule(…)'`.

    `noam` depends on d_model, and `cosine` ends with the steps of the whole training.

    Raises:
      ValueError: no schedule has that name, or its arguments are wrong.
    """
    known = {
        'noam': functools.partial(noam, d_model),
        'cosine': functools.partial(cosine, steps),
    }
    known |= {
        n: make
        for n, make in vars(optax.schedules).items()
        if n[1:].endswith('_schedule')
    }
    name, arguments = spec.parse(text)
    if name not in known:
        raise ValueError(f'{name!r} is not one of {", ".join(known)}')
    try:
        return known[name](**arguments)
    except TypeError as error:
        raise ValueError(f'{text!r}: {error}') from None
