"""Learning rates by step: the paper's (§5.3), one for short runs, and optax's."""

import functools
import math
import re
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import optax

from flaxformer_lite import ranges
from flaxformer_lite.config import spec
from flaxformer_lite.ranges import Positive, Range, Rate, Size

OURS = ('noam', 'cosine')
_OPTAX = re.compile('[a-z].*_schedule')


@ranges.checked
def noam(
    d_model: Size,
    warmup: Annotated[int, Range(at_least=1)] = 4000,
    factor: Positive = 1.0,
) -> optax.Schedule:
    """factor · d_model^−0.5 · min(s^−0.5, s · warmup^−1.5), s from 1 on (equation 3).

    Raises:
      ValueError: an argument out of range.
    """

    def rate(count):
        s = jnp.asarray(count, jnp.float32) + 1
        return factor * d_model**-0.5 * jnp.minimum(s**-0.5, s * warmup**-1.5)

    return rate


@ranges.checked
def cosine(steps: Size, peak: Positive, warmup: Rate = 0.1) -> optax.Schedule:
    """To `peak` in w updates, a share `warmup` of all; then half a cosine towards 0.

    The first update has peak / w, the w-th the peak, and 0 would be that after the
    last: each teaches something. For runs too short for the paper's schedule, which
    ends high (Loshchilov and Hutter 2017).

    Raises:
      ValueError: an argument out of range.
    """
    w = max(1, round(warmup * steps))

    def rate(count):
        s = jnp.asarray(count, jnp.float32) + 1
        done = jnp.clip((s - w) / (steps + 1 - w), 0, 1)
        return peak * jnp.where(s < w, s / w, (1 + jnp.cos(jnp.pi * done)) / 2)

    return rate


def make(text: str, d_model: int, steps: int) -> optax.Schedule:
    """`'noam(warmup=400)'`, `'cosine(peak=1e-3)'`, or optax's: `'linear_schedule(…)'`.

    `noam` depends on d_model, and `cosine` ends with the steps of the whole training.

    Raises:
      ValueError: no schedule has that name, its arguments are wrong, or it gives no
        number.
    """
    name, arguments = spec.parse(text)
    ours = {
        'noam': functools.partial(noam, d_model),
        'cosine': functools.partial(cosine, steps),
    }
    if name in ours:
        spec.check(name, ours[name], arguments)
    elif name not in available():
        known = ', '.join(available())
        raise ValueError(f'{ranges.shown(name)} is not one of {known}')
    else:
        _refuse_long(arguments)
    function = ours.get(name) or getattr(optax.schedules, name)
    try:
        schedule = function(**arguments)
        rate = jax.eval_shape(schedule, 0)
    # Optax looks at few of its arguments: what its arithmetic makes of the others may
    # be any error.
    except Exception as error:
        reason = str(error).split('\n')[0] or type(error).__name__
        raise ValueError(f'{ranges.shown(text)}: {reason}') from None
    if not _is_number(rate):
        raise ValueError(f'{ranges.shown(text)} gives no number for a rate')
    return schedule


def goes_by_steps(text: str) -> bool:
    """Whether the rates of a schedule depend on the steps of the whole training."""
    return spec.parse(text)[0] == 'cosine'


def available() -> list[str]:
    """The names that `make` knows."""
    return [*OURS, *(name for name in vars(optax.schedules) if _OPTAX.fullmatch(name))]


def check_rates(text: str, d_model: int, steps: int) -> None:
    """Refuses a schedule by its rates over so many steps, which a device computes.

    Raises:
      ValueError: as `make`; or a rate is negative or not finite.
    """
    schedule = make(text, d_model, steps)
    if spec.parse(text)[0] in OURS:
        return  # the ranges of their arguments leave no such rate
    counts = [steps * i // 100 for i in range(101)]
    rates = jax.jit(jax.vmap(schedule))(jnp.asarray(counts, jnp.int32))
    rates = rates.tolist()
    # By rounding, one that ends at 0 may end below it.
    least = -1e-6 * max((x for x in rates if 0 < x < math.inf), default=0.0)
    for count, rate in zip(counts, rates, strict=True):
        if not least <= rate < math.inf:
            raise ValueError(
                f'{ranges.shown(text)} gives a rate of {rate:g} at step {count:,}; '
                'it must be at least 0 and finite'
            )


def _refuse_long(arguments: dict[str, Any]) -> None:
    for argument, value in arguments.items():
        for number in spec.numbers_in(value):
            if isinstance(number, int):
                ranges.check(argument, Annotated[int | bool, Range()], number)


def _is_number(rate: Any) -> bool:
    if not isinstance(rate, jax.ShapeDtypeStruct) or rate.shape:
        return False
    return jnp.issubdtype(rate.dtype, jnp.number)
