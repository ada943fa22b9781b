"""Builds the components that a config names, each once, with errors before work begins.

The schema checks single fields when a section is created.
"""

from typing import NamedTuple

import optax

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
from experiments.registries import SOURCES
from flaxformer_lite.config import build as model_build
from flaxformer_lite.models.base import Model
from flaxformer_lite.special_tokens import DEFAULT_TOKENS, SpecialTokens
from flaxformer_lite.training.loss import as_loss


class Components(NamedTuple):
    """The components of a config that need neither data nor a teacher.

    Attributes:
      tokenizer: The untrained tokenizer.
      filters: The filters of training pairs, by spec.
      objective: The objective, which has no tokenizer yet; None is translation.
      hooks: The hooks, by spec.
      best_metric: The metric that selects the best checkpoints.
      model: The model, without `train.remat`.
      frozen: Paths of the parameters that `train.freeze` excludes from training.
      optimizer: The optimizer, with a schedule for a training of any length.
    """

    tokenizer: Tokenizer
    filters: dict[str, Filter]
    objective: Objective | None
    hooks: dict[str, Hook]
    best_metric: Metric
    model: Model
    frozen: frozenset[str]
    optimizer: optax.GradientTransformation


def build(
    config: ExperimentConfig,
    vocab_size: int | None = None,
    special_tokens: SpecialTokens = DEFAULT_TOKENS,
) -> Components:
    """Builds the components of a config, and checks constraints between its fields.

    Args:
      config: The config.
      vocab_size: Defaults to the largest vocabulary size that the config's tokenizer
        can have. Sources then get the size of their own tokenizer, if they have one.
      special_tokens: The special tokens of the vocabulary.

    Raises:
      UserError: Names the fields, their values and the fix.
    """
    with user_errors('data: '):
        # Check only the name: importing the module of a source can be slow.
        SOURCES.check_name(config.data)
    with user_errors('train.loss: '):
        as_loss(config.train.loss, teacher=config.train.teacher or None)
    search.make(config.evaluation)
    _check_limits(config)
    tokenizer = tokenizers.make(config.tokenizer)
    of_pairs = filters.make(config.filters)
    objective = objectives.make(config.objective)
    of_run = hooks.make(config.train.hooks)
    best = metrics.deciding(config.evaluation.metrics, config.evaluation.best)
    source_vocab_size = None
    if vocab_size is None:
        vocab_size = tokenizer.largest_vocab_size()
        source_vocab_size = tokenizer.source_vocab_size
    with user_errors():
        model = model_build.model(config.model, vocab_size, special_tokens)
        model = model.clone(source_vocab_size=source_vocab_size)
    _check_remat(config, model)
    _check_adapters(config, model)
    update, _ = optimizer.make(config, model)
    return Components(
        tokenizer=tokenizer,
        filters=of_pairs,
        objective=objective,
        hooks=of_run,
        best_metric=best,
        model=model,
        frozen=frozen.paths(config, model),
        optimizer=update,
    )


def _check_limits(config: ExperimentConfig) -> None:
    """Raises UserError if limits of training and evaluation contradict each other."""
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
