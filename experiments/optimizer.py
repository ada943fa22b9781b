"""The optimizer that a config describes (paper §5.3)."""

import difflib
from typing import Any

import jax
import optax

from experiments.errors import UserError
from flaxformer_lite import build, ranges, schedules
from flaxformer_lite.init.base import Init
from flaxformer_lite.ranges import Epsilon, NotNegative, Rate

NAMES = ('adam', 'adamw')
LONG = 1 << 30  # steps, more than any training has
# What each field of `optimizer` may be.
FIELDS = {
    'name': str,
    'b1': Rate,
    'b2': Rate,
    'eps': Epsilon,  # or a gradient of 0 makes a step of 0 / 0
    'weight_decay': NotNegative,
    'clip': NotNegative,
    'schedule': str,
}


def make(
    config: Any, steps: int = LONG
) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """What a whole config's `optimizer` says, and its learning rate by the count of updates so far.

    `steps` is the length of the training, which some schedules go by; by default longer than any,
    for who asks before it is known.

    `adam` is Kingma and Ba's (2015); `adamw` also takes learning rate · weight_decay · w from each
    weight w (Loshchilov and Hutter 2019). A gradient whose norm over all parameters is above `clip`
    is scaled down to it; 0 leaves it as it is.

    Raises:
      UserError: names the field of `optimizer`, its value and what it may be.
    """
    settings = config.optimizer
    _check(settings)
    schedule = _schedule(settings.schedule, config.model.d_model, steps)
    adam = schedule, settings.b1, settings.b2, settings.eps
    if settings.name == 'adam':
        update = optax.adam(*adam)
    else:
        update = optax.adamw(*adam, weight_decay=settings.weight_decay, mask=_matrices)
    if settings.clip:
        update = optax.chain(optax.clip_by_global_norm(settings.clip), update)
    return _at_own_rates(update, config), schedule


def check_rates(config: Any) -> None:
    """Refuses a schedule that gives negative or infinite rates; it computes them, on a device.

    Raises:
      UserError: names the schedule, the rate and its step.
    """
    steps = config.train.steps or LONG
    schedule, d_model = config.optimizer.schedule, config.model.d_model
    try:
        schedules.check_rates(schedule, d_model, steps)
    except ValueError as error:
        raise UserError(f'optimizer.schedule: {error}') from None


def _at_own_rates(update: optax.GradientTransformation, config: Any) -> Any:
    """The same, with each parameter's step multiplied by what its initialisation says."""
    try:
        initial = build.model(config.model, vocab_size=1).dense.initial
    except ValueError as error:
        raise UserError(str(error)) from None
    if type(initial).rate is Init.rate:
        return update
    if config.optimizer.schedule.startswith('noam'):
        raise UserError(
            f'optimizer.schedule={config.optimizer.schedule} goes by d_model, and model.init='
            f'{config.model.init} has rates of its own for that: choose another, such as '
            'cosine(peak=1e-3)'
        )

    def scale(updates: Any, params: Any) -> Any:
        def of_leaf(path: Any, x: jax.Array) -> jax.Array:
            return x * initial.rate(tuple(entry.key for entry in path))

        return jax.tree_util.tree_map_with_path(of_leaf, updates)

    return optax.chain(update, optax.stateless(scale))


def _matrices(params: Any) -> Any:
    """True for what decays: matrices, whose entries are many and can overfit. An entry of a bias or
    of a norm's scale sets the level of one feature, which pulling it to 0 would take away.
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, w: w.ndim >= 2 and path[-1].key != 'bias', params
    )


def _check(settings: Any) -> None:
    if settings.name not in NAMES:
        near = difflib.get_close_matches(settings.name, NAMES, n=1)
        hint = f'; did you mean {near[0]!r}?' if near else ''
        raise UserError(
            f'optimizer.name must be one of {", ".join(NAMES)}, not {settings.name!r}{hint}'
        )
    for field, annotation in FIELDS.items():
        try:
            ranges.check(f'optimizer.{field}', annotation, settings[field])
        except ValueError as error:
            raise UserError(str(error)) from None
    if settings.name == 'adam' and settings.weight_decay:
        raise UserError(
            f'optimizer.weight_decay={settings.weight_decay} is for optimizer.name=adamw: '
            'choose that, or set weight_decay to 0'
        )


def _schedule(spec: str, d_model: int, steps: int) -> optax.Schedule:
    try:
        schedule = schedules.make(spec, d_model, steps)
        jax.eval_shape(schedule, 0)  # an argument of the wrong type is met only here
    except (ValueError, TypeError) as error:
        raise UserError(f'optimizer.schedule: {error}') from None
    return schedule
