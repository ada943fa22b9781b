"""The components that a config names, each built once."""

from typing import NamedTuple

import optax

from experiments import metrics, registries
from experiments.config.decoding import decoding_options
from experiments.config.schema import ExperimentConfig, OptimizerConfig, takes_best
from experiments.data import tokenizers
from experiments.data.filters.base import Filter
from experiments.data.objectives.base import Objective
from experiments.data.tokenizers.base import Tokenizer
from experiments.errors import UserError, user_errors
from experiments.hooks.base import Hook
from experiments.metrics.base import Metric
from experiments.optimizers import frozen, optax_specs
from experiments.optimizers.optimizer import (
    ADAMS,
    BY_FIELDS,
    LONG,
    SCALE_INVARIANT,
    Optimizer,
)
from flaxformer_lite.config import builder
from flaxformer_lite.config.spec import Component
from flaxformer_lite.generation import DecodingOptions
from flaxformer_lite.init.base import Init
from flaxformer_lite.losses.base import Loss
from flaxformer_lite.models.base import Model
from flaxformer_lite.special_tokens import DEFAULT_TOKENS, SpecialTokens
from flaxformer_lite.training import learning_rates
from flaxformer_lite.training.loss import as_loss


class Components(NamedTuple):
    """The components of a config.

    Attributes:
      tokenizer: The untrained tokenizer.
      filters, hooks: The components by spec.
      objective: The training objective, which gets the trained tokenizer later. None
        for translation.
      metrics: The metrics by name. They get the target language with the data.
      best_metric: Metric of the dev set that selects the best checkpoints.
      model: The model without `train.remat`, which only training programs need.
      frozen: Paths of the parameters that don't train.
      loss: The loss. It has the path of its teacher, which is loaded later.
    """

    tokenizer: Tokenizer
    filters: dict[str, Filter]
    objective: Objective | None
    hooks: dict[str, Hook]
    metrics: dict[str, Metric]
    best_metric: Metric
    decoding: DecodingOptions
    model: Model
    frozen: frozenset[str]
    loss: Loss
    optimizer: Optimizer


def build(
    config: ExperimentConfig,
    vocab_size: int | None = None,
    special_tokens: SpecialTokens = DEFAULT_TOKENS,
) -> Components:
    """Builds the components of a config, and checks constraints between its fields.

    Args:
      vocab_size: Defaults to the largest that the config's tokenizer can have. Sources
        then get the size of their own tokenizer, if they have one.
    """
    _check_limits(config)
    with user_errors('data: '):
        # Check only the name: importing the module of a source can be slow.
        registries.SOURCES.check_name(config.data.name)
    loss = _make_loss(config)
    tokenizer = tokenizers.make(config.tokenizer)
    by_name = metrics.make(config.evaluation.metrics)
    source_vocab_size = None
    if vocab_size is None:
        vocab_size = tokenizer.largest_vocab_size()
        source_vocab_size = tokenizer.source_vocab_size
    with user_errors():
        model = builder.build(
            config.model, vocab_size, special_tokens, source_vocab_size
        )
    _check_adapters(config, model)
    _check_remat(config, model)
    return Components(
        tokenizer=tokenizer,
        filters=registries.make_all('filters', config.filters),
        objective=registries.make('objective', config.objective, pieces=()),
        hooks=registries.make_all('train.hooks', config.train.hooks),
        metrics=by_name,
        best_metric=metrics.deciding(by_name, config.evaluation.best),
        decoding=decoding_options(config.evaluation),
        model=model,
        frozen=frozen.paths(config.train.freeze, model),
        loss=loss,
        optimizer=make_optimizer(config),
    )


def _make_loss(config: ExperimentConfig) -> Loss:
    teacher = config.train.teacher or None
    with user_errors('train.loss: '):
        for loss in config.train.loss.entries:
            if teacher is None and loss.accepted(teacher=None):
                raise UserError(
                    f'train.loss: {loss.name} needs a teacher. Set train.teacher.'
                )
        return as_loss(config.train.loss, teacher=teacher)


def _check_limits(config: ExperimentConfig) -> None:
    train, evaluation = config.train, config.evaluation
    if not (train.steps or train.epochs):
        raise UserError(
            'train.steps=0 and train.epochs=0: training would never end. Set one of '
            'them.'
        )
    if train.patience and not evaluation.every:
        raise UserError(
            f'train.patience={train.patience} has no effect with evaluation.every=0, '
            'which evaluates only at the end. Raise evaluation.every.'
        )
    field = 'keep_best' if takes_best(config) else 'keep'
    there = getattr(config.checkpoint, field)
    if evaluation.average > there:
        raise UserError(
            f'evaluation.average={evaluation.average} exceeds the number of '
            f'checkpoints kept, checkpoint.{field}={there}. Raise checkpoint.{field}.'
        )


def _check_adapters(config: ExperimentConfig, model: Model) -> None:
    """Raises UserError if adapters would train next to random matrices."""
    if model.dense.trained_parameters and not config.init_from:
        raise UserError(
            f'model.dense={config.model.dense} trains only adapters, so init_from must '
            'name the run whose parameters they adapt. Set it, or leave model.dense '
            'out.'
        )


def _check_remat(config: ExperimentConfig, model: Model) -> None:
    try:
        model.with_remat(config.train.remat)
    except ValueError:
        raise UserError(
            f'train.remat={config.train.remat} has no effect: '
            f'model.architecture={config.model.architecture} has no blocks to '
            'rematerialize. Leave it out.'
        ) from None


def make_optimizer(config: ExperimentConfig) -> Optimizer:
    """Resolves the optimizer and the schedule of a config.

    `adam` is Kingma and Ba's (2015). `adamw` also subtracts learning rate ·
    weight_decay · w from each weight w selected by `optax_specs.decays` (Loshchilov and
    Hutter 2019). Both use the fields of `optimizer`; any other is optax's own.
    """
    settings = config.optimizer
    component = _with_fields(settings)
    name = component.name
    if name != 'adamw' and settings.weight_decay:
        fix = 'Choose adamw, or set weight_decay to 0.'
        if name != 'adam':
            fix = (
                f'Write {name}(weight_decay={settings.weight_decay}) if the optimizer '
                'supports it.'
            )
        raise UserError(
            f'optimizer.weight_decay={settings.weight_decay} applies only to '
            f'optimizer.name=adamw. {fix}'
        )
    if config.train.ema and name.startswith('contrib.schedule_free'):
        raise UserError(
            f'train.ema={config.train.ema}: optimizer.name={name} already averages the '
            'parameters. Set train.ema to 0, or choose another optimizer.'
        )
    with user_errors('optimizer.schedule: '):
        schedule = learning_rates.make(settings.schedule, config.model.d_model, LONG)
    init = config.model.init
    with user_errors('model.init: '):
        has_lr_multipliers = bool(init and init.cls.lr_multiplier != Init.lr_multiplier)
    if has_lr_multipliers:
        _check_lr_multipliers(config, name, schedule)
    return Optimizer(
        optax_specs.resolve(component),
        schedule,
        settings.clip,
        config.train.ema,
        has_lr_multipliers,
    )


def _with_fields(settings: OptimizerConfig) -> Component:
    """Returns the optimizer's component, with the fields of adam and adamw."""
    component = settings.name
    if component.name not in BY_FIELDS:
        return component
    names = ADAMS if component.name == 'adamw' else ADAMS[:-1]
    for name in names:
        if name in component.arguments:
            raise UserError(
                f'optimizer.name={component}: {component.name} takes {name} from the '
                f'field optimizer.{name}. Set that field instead.'
            )
    return component.with_arguments(**{x: getattr(settings, x) for x in names})


def check_rates(config: ExperimentConfig, optimizer: Optimizer) -> None:
    """Raises UserError for negative or infinite learning rates; names the step."""
    steps = config.train.steps or LONG
    with user_errors(f'optimizer.schedule={config.optimizer.schedule}: '):
        learning_rates.check_rates(
            learning_rates.with_steps(optimizer.schedule, steps), steps
        )


def _check_lr_multipliers(
    config: ExperimentConfig, name: str, schedule: optax.Schedule
) -> None:
    if name not in SCALE_INVARIANT:
        raise UserError(
            f'optimizer.name={name} does not support the per-parameter learning rates '
            f'of model.init={config.model.init}. Choose one of '
            f'{", ".join(SCALE_INVARIANT)}.'
        )
    if learning_rates.depends_on(schedule, 'd_model'):
        raise UserError(
            f'optimizer.schedule={config.optimizer.schedule} depends on d_model, and '
            f'model.init={config.model.init} already scales learning rates with it. '
            'Choose another, such as cosine(peak=1e-3).'
        )
