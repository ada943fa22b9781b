"""The optimizer of a config (paper §5.3)."""

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

LONG = 1 << 30  # steps, more than in any training
# Optimizers with the fields b1, b2, eps and weight_decay. Others have arguments in
# their spec.
BY_FIELDS = ('adam', 'adamw')
ADAMS = ('b1', 'b2', 'eps', 'weight_decay')
# Optimizers whose step size depends on the learning rate, not on the gradient's size.
# An initialization's learning rates apply to them. Scaling updates would also break the
# sequences that schedule-free optimizers keep.
_OF_ONE_LENGTH = (
    'adabelief adam adamax adamaxw adamw amsgrad lion radam sign_sgd signum yogi'
).split()
# Optimizers that update each entry from its own gradients, so stacked layers make no
# difference. A test checks this.
ENTRYWISE = (
    'adabelief adadelta adagrad adam adamax adamaxw adamw adan amsgrad lion radam '
    'rmsprop sgd sign_sgd signum yogi contrib.schedule_free_adamw '
    'contrib.schedule_free_sgd'
).split()
# The matrices of linear maps, and the tables of embeddings and of logits.
DECAYING = ('kernel', 'embedding', 'source_embedding', 'output', 'lora_a', 'lora_b')


def make(
    config: ExperimentConfig, model: Model, steps: int = LONG
) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """Builds the optimizer of a config, and its learning rate by number of updates.

    `adam` is Kingma and Ba's (2015). `adamw` also subtracts learning rate ·
    weight_decay · w from each weight w selected by `decays` (Loshchilov and Hutter
    2019). Both use the fields of `optimizer`. Any other is optax's own, by its spec.

    `clip` limits the norm of the gradient over all parameters; 0 disables it. With
    `train.ema` the optimizer keeps an average, as in `eval_params.with_ema`.

    Args:
      model: Has the learning rate multiplier of each parameter.
      steps: The length of the training, used by some schedules. Defaults to more than
        any training.
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
    settings = config.optimizer
    name, arguments = _named(settings)
    if name != 'adamw' and settings.weight_decay:
        mend = 'Choose adamw, or set weight_decay to 0.'
        if name != 'adam':
            mend = (
                f'Write {name}(weight_decay={settings.weight_decay}) if the optimizer '
                'supports it.'
            )
        raise UserError(
            f'optimizer.weight_decay={settings.weight_decay} applies only to '
            f'optimizer.name=adamw. {mend}'
        )
    if config.train.ema and name.startswith('contrib.schedule_free'):
        raise UserError(
            f'train.ema={config.train.ema}: optimizer.name={name} already averages the '
            'parameters. Set train.ema to 0, or choose another optimizer.'
        )
    if _has_lr_multipliers(config):
        _check_lr_multipliers(config, name)
    try:
        schedule = schedules.make(settings.schedule, config.model.d_model, steps)
        jax.eval_shape(schedule, 0)  # detects an argument of the wrong type
    except (ValueError, TypeError) as error:
        raise UserError(f'optimizer.schedule: {error}') from None
    return optax_specs.make(name, arguments, schedule, decays), schedule


def _named(settings: OptimizerConfig) -> tuple[str, dict[str, Any]]:
    name, arguments = optax_specs.split(settings.name)
    if name not in BY_FIELDS:
        return name, arguments
    fields = ADAMS if name == 'adamw' else ADAMS[:-1]
    for field in fields:
        if field in arguments:
            raise UserError(
                f'optimizer.name={settings.name}: {name} takes {field} from the field '
                f'optimizer.{field}. Set that field instead.'
            )
    return name, arguments | {field: getattr(settings, field) for field in fields}


def check_rates(config: ExperimentConfig) -> None:
    """Raises UserError for negative or infinite learning rates; names the step."""
    steps = config.train.steps or LONG
    with user_errors('optimizer.schedule: '):
        schedules.check_rates(config.optimizer.schedule, config.model.d_model, steps)


def _check_lr_multipliers(config: ExperimentConfig, name: str) -> None:
    if name not in _OF_ONE_LENGTH:
        raise UserError(
            f'optimizer.name={name} does not support the per-parameter learning rates '
            f'of model.init={config.model.init}. Choose one of '
            f'{", ".join(_OF_ONE_LENGTH)}.'
        )
    if schedules.goes_by(config.optimizer.schedule, 'd_model'):
        raise UserError(
            f'optimizer.schedule={config.optimizer.schedule} depends on d_model, and '
            f'model.init={config.model.init} already scales learning rates with it. '
            'Choose another, such as cosine(peak=1e-3).'
        )


def _has_lr_multipliers(config: ExperimentConfig) -> bool:
    if config.model.init is None:
        return False
    with user_errors():
        init = variants.find(config.model, 'init')
    return init.lr_multiplier is not Init.lr_multiplier


def _scale_by_multipliers(model: Model) -> Any:

    def scale_leaf(path, x):
        return x * model.lr_multiplier(tuple(entry.key for entry in path))

    return lambda updates, params: jax.tree_util.tree_map_with_path(scale_leaf, updates)


def decays(params: Any) -> Any:
    """Returns True for parameters with weight decay: `DECAYING`.

    These have many entries, can overfit, and have the least effect at 0. Biases and
    norm scales set the level of one feature, and position tables encode positions.
    Attention parameters may start as the identity, and would attend to nothing at 0.
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, w: path[-1].key in DECAYING, params
    )


def separately(
    optimizer: optax.GradientTransformation, periods: Mapping[str, int]
) -> optax.GradientTransformation:
    """Wraps an optimizer to treat the layers of stacked parameters separately.

    `adafactor`, `lamb` and `contrib.muon` compute updates from whole matrices. The
    state has separate layers, and the program grows with their number.

    Args:
      periods: The model's `layer_periods`, because frozen parameters are missing.
    """

    def init(params):
        return optimizer.init(unstack_layers(params, periods))

    def update(updates, state, params=None):
        updates, state = optimizer.update(
            unstack_layers(updates, periods), state, unstack_layers(params, periods)
        )
        return stack_layers(updates, periods), state

    return optax.GradientTransformation(init, update)
