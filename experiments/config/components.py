"""The components that a config names, each built once."""

from typing import NamedTuple

from experiments import hooks, metrics
from experiments.config import search
from experiments.config.schema import ExperimentConfig, takes_best
from experiments.data import filters, objectives, tokenizers
from experiments.data.filters.base import Filter
from experiments.data.objectives.base import Objective
from experiments.data.tokenizers.base import Tokenizer
from experiments.errors import UserError, user_errors
from experiments.hooks.base import Hook
from experiments.metrics.base import Metric
from experiments.optimizers import frozen, optimizer
from experiments.optimizers.optimizer import Optimizer
from experiments.registries import SOURCES
from flaxformer_lite.config import build as model_build
from flaxformer_lite.generation import DecodingOptions
from flaxformer_lite.losses.base import Loss
from flaxformer_lite.models.base import Model
from flaxformer_lite.special_tokens import DEFAULT_TOKENS, SpecialTokens
from flaxformer_lite.training.loss import as_loss


class Components(NamedTuple):
    """The components of a config.

    Attributes:
      tokenizer: Untrained.
      filters, hooks: By spec.
      objective: Without a tokenizer; None for translation.
      metrics: By name, without a language.
      best_metric: Selects the best checkpoints.
      model: Without `train.remat`.
      frozen: Paths of the parameters that don't train.
      loss: With the path of the teacher instead of its model.
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
        SOURCES.check_name(config.data)
    with user_errors('train.loss: '):
        loss = as_loss(config.train.loss, teacher=config.train.teacher or None)
    decoding = search.make(config.evaluation)
    tokenizer = tokenizers.make(config.tokenizer)
    of_pairs = filters.make(config.filters)
    objective = objectives.make(config.objective)
    of_run = hooks.make(config.train.hooks)
    by_name = metrics.make(config.evaluation.metrics)
    source_vocab_size = None
    if vocab_size is None:
        vocab_size = tokenizer.largest_vocab_size()
        source_vocab_size = tokenizer.source_vocab_size
    with user_errors():
        model = model_build.model(config.model, vocab_size, special_tokens)
        model = model.clone(source_vocab_size=source_vocab_size)
    _check_adapters(config, model)
    _check_remat(config, model)
    return Components(
        tokenizer=tokenizer,
        filters=of_pairs,
        objective=objective,
        hooks=of_run,
        metrics=by_name,
        best_metric=metrics.deciding(by_name, config.evaluation.best),
        decoding=decoding,
        model=model,
        frozen=frozen.paths(config, model),
        loss=loss,
        optimizer=optimizer.make(config),
    )


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
