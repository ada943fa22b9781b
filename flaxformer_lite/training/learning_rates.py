"""Learning-rate schedules by name, and properties of schedules."""

import copy
import dataclasses
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import optax

from flaxformer_lite import validation
from flaxformer_lite.config.spec import Component, Spec
from flaxformer_lite.config.variants import SCHEDULES

_OPTAX = re.compile('[a-z].*_schedule')


def make(spec: Spec, d_model: int, steps: int) -> optax.Schedule:
    """Returns a schedule: `'noam(warmup=400)'` or optax's `'linear_schedule(…)'`.

    Args:
      steps: Total number of training steps.

    Raises:
      ValueError: The schedule is unknown, its arguments are invalid, or its rate isn't
        a number.

    Examples:
      >>> rate = make('noam(warmup=400)', d_model=512, steps=1000)
      >>> [f'{rate(count):.1e}' for count in (0, 399, 999)]
      ['5.5e-06', '2.2e-03', '1.4e-03']
    """
    component = Component.of(spec, SCHEDULES)
    name, arguments = component.name, component.arguments
    ours = None
    if '.' in name or name in SCHEDULES.names():
        ours = component.make(**component.accepted(d_model=d_model, steps=steps))
    elif name not in available():
        raise ValueError(
            f'{validation.quote(name)} is not one of {", ".join(available())}, nor a '
            'class of your own'
        )
    try:
        schedule = ours or getattr(optax.schedules, name)(**arguments)
        rate = jax.eval_shape(schedule, 0)
    # Optax validates few arguments, so its arithmetic may raise any exception.
    except Exception as error:
        reason = str(error).split('\n')[0] or type(error).__name__
        raise ValueError(f'{component}: {reason}') from None
    if not _is_number(rate):
        raise ValueError(f'{component} does not return a learning rate')
    return schedule


def depends_on(schedule: optax.Schedule, field: str) -> bool:
    """Returns whether a schedule has an argument `field`: `d_model` or `steps`.

    Examples:
      >>> rate = make('cosine(peak=1e-3)', d_model=512, steps=100)
      >>> depends_on(rate, 'steps'), depends_on(rate, 'd_model')
      (True, False)
    """
    return field in getattr(schedule, '__dataclass_fields__', ())


def with_steps(schedule: optax.Schedule, steps: int) -> optax.Schedule:
    """Returns a schedule for a training of another length."""
    if not depends_on(schedule, 'steps'):
        return schedule
    own: Any = schedule  # not a function of optax
    return dataclasses.replace(own, steps=steps)


def with_peak(schedule: optax.Schedule, peak: jax.Array) -> optax.Schedule:
    """Returns a schedule with another peak, which may be traced."""
    other: Any = copy.copy(schedule)
    object.__setattr__(other, 'peak', peak)  # a tracer has no range to check
    return other


def available() -> list[str]:
    """Returns the names of all schedules."""
    of_optax = filter(_OPTAX.fullmatch, vars(optax.schedules))
    return [*SCHEDULES.names(), *of_optax]


def check_rates(schedule: optax.Schedule, steps: int) -> None:
    """Checks the rates of a training, computed on a device.

    Raises:
      ValueError: A rate is negative or not finite.
    """
    if type(schedule).__module__.startswith(f'{SCHEDULES.package}.'):
        return  # their argument ranges exclude invalid rates
    counts = [steps * i // 100 for i in range(101)]
    rates = jax.jit(jax.vmap(schedule))(jnp.asarray(counts, jnp.int32))
    rates = rates.tolist()
    # Rounding may push a rate that ends at 0 slightly below 0.
    least = -1e-6 * max((x for x in rates if 0 < x < math.inf), default=0.0)
    for count, rate in zip(counts, rates, strict=True):
        if not least <= rate < math.inf:
            raise ValueError(
                f'the rate at step {count:,} is {rate:g}; it must be at least 0 and '
                'finite'
            )


def _is_number(rate: Any) -> bool:
    if not isinstance(rate, jax.ShapeDtypeStruct) or rate.shape:
        return False
    return jnp.issubdtype(rate.dtype, jnp.number)
