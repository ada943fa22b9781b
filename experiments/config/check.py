"""Validation across config fields, with errors before work begins.

The schema checks single fields when a section is created.
"""

from collections.abc import Iterable

import jax

from experiments import hooks, metrics
from experiments.config import search
from experiments.config.load import flatten
from experiments.config.schema import (
    ExperimentConfig,
    takes_best,
)
from experiments.data import filters, objectives, tokenizers
from experiments.errors import UserError, user_errors
from experiments.optimizers import frozen, optax_specs, optimizer
from experiments.registries import SOURCES
from flaxformer_lite import testing
from flaxformer_lite.config import build, spec, variants
from flaxformer_lite.models.base import Model
from flaxformer_lite.special_tokens import DEFAULT_TOKENS, SpecialTokens
from flaxformer_lite.training.loss import as_loss

# The values of these fields can make other fields of the model ineffective.
_DECIDING = ('architecture', 'residual', 'decoder.residual', 'merged_attention')


def check_config(config: ExperimentConfig) -> None:
    """Checks constraints between fields. `build_model` checks those of the model.

    Raises:
      UserError: Names the fields, their values and the fix.
    """
    with user_errors('data: '):
        # Check only the name: importing the module of a source can be slow.
        SOURCES.check_name(config.data)
    filters.make(config.filters)
    tokenizers.make(config.tokenizer)
    objectives.make(config.objective)
    with user_errors():
        variants.check(config.model)
    with user_errors('train.loss: '):
        as_loss(config.train.loss, teacher=config.train.teacher or None)
    hooks.make(config.train.hooks)
    optimizer.check(config)
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
    metrics.deciding(evaluation.metrics, evaluation.best)
    search.make(evaluation)
    field = 'keep_best' if takes_best(config) else 'keep'
    there = getattr(config.checkpoint, field)
    if evaluation.average > there:
        raise UserError(
            f'evaluation.average={evaluation.average} exceeds the number of '
            f'checkpoints kept, checkpoint.{field}={there}. Raise checkpoint.{field}.'
        )


def build_model(
    config: ExperimentConfig,
    vocab_size: int | None = None,
    special_tokens: SpecialTokens = DEFAULT_TOKENS,
) -> Model:
    """Builds the model of a config, without `train.remat`.

    Args:
      vocab_size: Defaults to the largest vocabulary size that the config's tokenizer
        can have. Sources then get the size of their own tokenizer, if they have one.
      special_tokens: The special tokens of the vocabulary.

    Raises:
      UserError: The model cannot be built, or `train.remat` has no effect on it. Names
        the field.
    """
    source_vocab_size = None
    if vocab_size is None:
        tokenizer = tokenizers.make(config.tokenizer)
        vocab_size = tokenizer.largest_vocab_size()
        source_vocab_size = tokenizer.source_vocab_size
    with user_errors():
        model = build.model(config.model, vocab_size, special_tokens)
        model = model.clone(source_vocab_size=source_vocab_size)
    try:
        model.with_remat(config.train.remat)
    except ValueError:
        raise UserError(
            f'train.remat={config.train.remat} has no effect: '
            f'model.architecture={config.model.architecture} has no blocks to '
            'rematerialize. Leave it out.'
        ) from None
    frozen.paths(config, model)
    return model


def check_backend(config: ExperimentConfig) -> None:
    """Checks that the components support the current backend of JAX.

    Describing and planning a run don't need this check. Call `build_model` first.

    Raises:
      UserError: Names the field and the backend that it needs.
    """
    used = set(variants.fields()) - variants.unused_fields(config.model)
    here = jax.default_backend()
    for layer in variants.of_layers(config.model):
        for field in sorted(used):
            part = layer.get(field)
            if part is None:
                continue
            backend = getattr(variants.find(layer, field), 'backend', None)
            if backend not in (None, here):
                raise UserError(
                    f'model.{field}: {part} runs only on a {backend}, and JAX uses the '
                    f'{here} here. Use a machine with a {backend}, or choose another '
                    'such as blockwise.'
                )


def source_features(config: ExperimentConfig, model: Model) -> int | None:
    """Returns the size of vector sources, or None if sources are ids."""
    if tokenizers.make(config.tokenizer).reads_vectors:
        return model.source_vocab_size
    return None


def check_contracts(config: ExperimentConfig) -> None:
    """Tests user-defined components against the quick contracts.

    `train.check_parts=False` disables this. Components of the model are tested in a
    small model with all components of the config.

    Raises:
      UserError: A contract is broken. Names the components and the smallest example.
    """
    if not config.train.check_parts:
        return
    fields = {name: config.model.get(name) for name in variants.fields()}
    given = {name: part for name, part in fields.items() if part is not None}
    elsewhere = [f'model.{x}={given[x]}' for x in given if _is_elsewhere(given[x])]
    if elsewhere:
        depth = len(variants.of_layers(config.model))
        with user_errors():
            model = testing.small_model(**given, num_layers=depth)
        findings = testing.model_findings(model, quick=True)
        _refuse_broken(' and '.join(elsewhere), findings)
    settings = config.optimizer
    others = {
        'train.loss': (config.train.loss, testing.loss_findings),
        'optimizer.schedule': (settings.schedule, testing.schedule_findings),
        'optimizer.name': (settings.name, optax_specs.findings),
    }
    for field, (part, find) in others.items():
        if _is_elsewhere(part):
            _refuse_broken(f'{field}={part}', find(part))


def _is_elsewhere(part: spec.Spec) -> bool:
    """Returns whether a spec names a user-defined component, also in a list."""
    names = [spec.parse(entry)[0] for entry in spec.entries(part)]
    return any('.' in name.removeprefix(optax_specs.CONTRIB) for name in names)


def _refuse_broken(named: str, findings: Iterable[testing.Finding]) -> None:
    for finding in testing.broken(findings):
        raise UserError(
            f"{named}: failed contract '{finding.contract}': {finding.detail}. Debug "
            'it with python -m experiments.check, or set train.check_parts=False to '
            'skip the check.'
        )


def check_overrides(config: ExperimentConfig, overrides: Iterable[str]) -> None:
    """Raises UserError if an overridden field has no effect.

    The message names the field, and the fields that make it unused.
    """
    unused = unused_fields(config)
    values = flatten(config.to_dict())
    for field in sorted(unused.keys() & set(overrides)):
        raise UserError(
            f'{field}={values[field]} has no effect where {unused[field]}. Leave it '
            'out.'
        )


def unused_fields(config: ExperimentConfig) -> dict[str, str]:
    """Returns the fields that have no effect → the reason."""
    unused = {}
    with user_errors():
        names = variants.unused_fields(config.model)
    reasons = []
    for field in _DECIDING:
        value = config.model.get(field)
        if value:
            reasons.append(f'model.{field}={value}')
    for name in names:
        unused[f'model.{name}'] = ' and '.join(reasons)
    name, _ = optax_specs.split(config.optimizer.name)
    if name not in optimizer.BY_FIELDS:
        for field in optimizer.ADAMS[:-1]:  # `optimizer.check` reports weight_decay
            reason = f'optimizer.name={name} takes arguments of its own'
            unused[f'optimizer.{field}'] = reason
    arguments = set()
    with user_errors('train.loss: '):
        for entry in spec.entries(config.train.loss):
            loss, _ = variants.LOSSES.find(entry)
            arguments.update(spec.parameters(loss))
    if 'teacher' not in arguments:
        unused['train.teacher'] = f'train.loss={config.train.loss}'
    if not config.init_from:
        unused |= dict.fromkeys(('init_average', 'init_ignore'), 'init_from is empty')
    return unused
