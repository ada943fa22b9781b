"""The optimizer that a config describes (paper §5.3)."""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import optax

from experiments.config.schema import ExperimentConfig, OptimizerConfig
from experiments.errors import UserError, user_errors
from experiments.optimizers import eval_params, optax_specs
from flaxformer_lite.config import variants
from flaxformer_lite.init.base import Init
from flaxformer_lite.layers.scanned_stack import stack_layers, unstack_layers
from flaxformer_lite.models.base import Model
from flaxformer_lite.training import schedules

LONG = 1 << 30  # steps, more than any training has
# Those whose arguments are the fields b1, b2, eps and weight_decay; others have
# arguments of their own.
BY_FIELDS = ('adam', 'adamw')
ADAMS = ('b1', 'b2', 'eps', 'weight_decay')
# A step of theirs is as long as the learning rate says, whatever a gradient's size: the
# rates of an initialisation hold for them. An update that was scaled would also part
# schedule-free optimizers from the sequences that they keep.
_OF_ONE_LENGTH = (
    'adabelief adam adamax adamaxw adamw amsgrad lion radam sign_sgd signum yogi'
).split()
# These move each number by its own gradients alone, and so do not see a difference
# between the matrix of one layer and those of all. A test holds it.
ENTRYWISE = (
    'adabelief adadelta adagrad adam adamax adamaxw adamw adan amsgrad lion radam '
    'rmsprop sgd sign_sgd signum yogi contrib.schedule_free_adamw '
    'contrib.schedule_free_sgd'
).split()
# The matrices of linear maps, and the tables of embeddings and of logits.
DECAYING = ('kernel', 'embedding', 'source_embedding', 'output')


@functools.lru_cache(maxsize=8)
def make(
    config: ExperimentConfig, model: Model, steps: int = LONG
) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """The optimizer of a config, and its learning rate by the count of updates so far.

    `adam` is Kingma and Ba's (2015). `adamw` also takes learning rate · weight_decay ·
    w from each weight w that `decays` is true of (Loshchilov and Hutter 2019). Both go
    by the fields of `optimizer`. Any other is optax's own, by its spec. A gradient
    whose norm over all parameters is above `clip` is scaled down to it; 0 leaves it as
    it is. With `train.ema` it keeps an average, as `eval_params.with_ema` says.

    Args:
      config: the whole config.
      model: says what the learning rate of each parameter is multiplied by.
      steps: the length of the training, which some schedules go by; by default longer
        than any, for use before it is known.

    Raises:
      UserError: as `check`.
    """
    update, schedule = _from_optax(config, steps)
    name, _ = _named(config.optimizer)
    if model.scans_layers and name not in ENTRYWISE:
        update = separately(update, model.layer_periods)
    if config.optimizer.clip:
        update = optax.chain(optax.clip_by_global_norm(config.optimizer.clip), update)
    if _has_lr_multipliers(config):
        update = optax.chain(update, optax.stateless(_scale_by_multipliers(model)))
    if config.train.ema:
        update = eval_params.with_ema(update, config.train.ema)
    return update, schedule


def _from_optax(
    config: ExperimentConfig, steps: int
) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """The optimizer that the fields name, and its learning rate."""
    settings = config.optimizer
    name, arguments = _named(settings)
    if name != 'adamw' and settings.weight_decay:
        mend = 'choose that, or set weight_decay to 0'
        if name != 'adam':
            mend = f'write {name}(weight_decay={settings.weight_decay}), if it has that'
        raise UserError(
            f'optimizer.weight_decay={settings.weight_decay} is for '
            f'optimizer.name=adamw: {mend}'
        )
    if config.train.ema and name.startswith('contrib.schedule_free'):
        raise UserError(
            f'train.ema={config.train.ema}: optimizer.name={name} keeps an average of '
            'its own: set train.ema to 0, or choose another optimizer'
        )
    if _has_lr_multipliers(config):
        _check_lr_multipliers(config, name)
    try:
        schedule = schedules.make(settings.schedule, config.model.d_model, steps)
        jax.eval_shape(schedule, 0)  # an argument of the wrong type is met only here
    except (ValueError, TypeError) as error:
        raise UserError(f'optimizer.schedule: {error}') from None
    return optax_specs.make(name, arguments, schedule, decays), schedule


def _named(settings: OptimizerConfig) -> tuple[str, dict[str, Any]]:
    """The optimizer's name and its arguments, of the spec and of the fields."""
    name, arguments = optax_specs.split(settings.name)
    if name not in BY_FIELDS:
        return name, arguments
    fields = ADAMS if name == 'adamw' else ADAMS[:-1]
    for field in fields:
        if field in arguments:
            raise UserError(
                f'optimizer.name={settings.name}: for {name}, {field} is the field '
                f'optimizer.{field}'
            )
    return name, arguments | {field: getattr(settings, field) for field in fields}


def check_rates(config: ExperimentConfig) -> None:
    """Refuses a schedule with negative or infinite rates, computed on a device.

    Raises:
      UserError: names the schedule, the rate and its step.
    """
    steps = config.train.steps or LONG
    with user_errors('optimizer.schedule: '):
        schedules.check_rates(config.optimizer.schedule, config.model.d_model, steps)


def check(config: ExperimentConfig) -> None:
    """Refuses an optimizer that cannot be made, or does not fit the initialisation.

    Raises:
      UserError: names the field of `optimizer`, its value and what it may be.
    """
    _from_optax(config, LONG)


def _check_lr_multipliers(config: ExperimentConfig, name: str) -> None:
    """Refuses optimizers and schedules that the initialisation's rates do not fit."""
    if name not in _OF_ONE_LENGTH:
        raise UserError(
            f'optimizer.name={name}: the learning rates that '
            f'model.init={config.model.init} gives each parameter are for Adam and its '
            f'like: choose one of {", ".join(_OF_ONE_LENGTH)}'
        )
    if schedules.goes_by(config.optimizer.schedule, 'd_model'):
        raise UserError(
            f'optimizer.schedule={config.optimizer.schedule} goes by d_model, and '
            f'model.init={config.model.init} has learning rates of its own for that: '
            'choose another, such as cosine(peak=1e-3)'
        )


def _has_lr_multipliers(config: ExperimentConfig) -> bool:
    if config.model.init is None:
        return False
    with user_errors():
        init = variants.find(config.model, 'init')
    return init.lr_multiplier is not Init.lr_multiplier


def _scale_by_multipliers(model: Model) -> Any:
    """Multiplies each parameter's update by what its initialisation says."""

    def scale_leaf(path, x):
        return x * model.lr_multiplier(tuple(entry.key for entry in path))

    return lambda updates, params: jax.tree_util.tree_map_with_path(scale_leaf, updates)


def decays(params: Any) -> Any:
    """True for what weight decay draws to 0: `DECAYING`.

    Their entries are many, can overfit, and mean least at 0. All else stays: an entry
    of a bias or of a norm's scale sets the level of one feature; a table of positions
    says where tokens stand; and what an attention has of its own may start as the
    identity, as `bilinear`'s and `talking_heads`' matrices do, where 0 would mean that
    nothing is attended to.
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, w: path[-1].key in DECAYING, params
    )


def separately(
    optimizer: optax.GradientTransformation, periods: Mapping[str, int]
) -> optax.GradientTransformation:
    """The optimizer that treats each layer's part of a stacked parameter by itself.

    Its updates are those of the same model with separate layers, which `adafactor`,
    `lamb` or `contrib.muon` choose by whole matrices. Its state is of separate layers;
    the program grows with their number.

    Args:
      optimizer: of separate layers.
      periods: the model's `layer_periods`. Parameters that are not trained are missing
        here, so that they cannot be read off the others.
    """

    def init(params):
        return optimizer.init(unstack_layers(params, periods))

    def update(updates, state, params=None):
        updates, state = optimizer.update(
            unstack_layers(updates, periods), state, unstack_layers(params, periods)
        )
        return stack_layers(updates, periods), state

    return optax.GradientTransformation(init, update)
