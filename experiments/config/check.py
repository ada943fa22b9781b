"""What the fields of a config ask of each other, refused by name before work begins.

What a field by itself may be is checked when its section of the schema is made.
"""

from collections.abc import Iterable

from experiments.config.load import flatten
from experiments.config.schema import ExperimentConfig, profiled_steps, takes_best
from experiments.errors import UserError, user_errors
from experiments.optimizers import frozen, optax_specs, optimizer
from flaxformer_lite.config import build, spec, variants
from flaxformer_lite.models.base import Model
from flaxformer_lite.special_tokens import DEFAULT_TOKENS, SpecialTokens

# What only one way to decode asks for.
SEARCHES = {
    'beam': ('evaluation.beams', 'evaluation.alpha'),
    'sample': ('evaluation.temperature', 'evaluation.top_k', 'evaluation.top_p'),
}
# Where one of these has a value, other fields of the model may have no effect.
_DECIDING = ('architecture', 'residual', 'decoder_residual', 'merged_attention')


def check_config(config: ExperimentConfig) -> None:
    """Looks at what fields ask of each other; the model is `build_model`'s to look at.

    Raises:
      UserError: names the fields, their values and the mend.
    """
    with user_errors('data: '):
        # The name alone: a source's own file may take long to import.
        spec.check_name('experiments.data.sources', spec.parse(config.data)[0])
    with user_errors():
        variants.check(config.model)
    optimizer.check(config)
    profiled_steps(config)
    train, evaluation = config.train, config.evaluation
    if not (train.steps or train.epochs):
        raise UserError(
            'train.steps=0 and train.epochs=0: give one of them, to say when to end'
        )
    if train.patience and not evaluation.every:
        raise UserError(
            f'train.patience={train.patience} counts evaluations, and with '
            'evaluation.every=0 there is one, at the end: raise evaluation.every'
        )
    field = 'keep_best' if takes_best(config) else 'keep'
    there = getattr(config.checkpoint, field)
    if evaluation.average > there:
        raise UserError(
            f'evaluation.average={evaluation.average} checkpoints cannot be averaged '
            f'where checkpoint.{field}={there} are kept: raise checkpoint.{field}'
        )


def build_model(
    config: ExperimentConfig,
    vocab_size: int,
    special_tokens: SpecialTokens = DEFAULT_TOKENS,
) -> Model:
    """The model of a config and of a tokenizer's vocabulary and special tokens.

    It is without `train.remat`, which only training is about.

    Raises:
      UserError: names the field that it cannot be built with.
    """
    with user_errors():
        model = build.model(config.model, vocab_size, special_tokens)
    try:
        model.with_remat(config.train.remat)
    except ValueError:
        raise UserError(
            f'train.remat={config.train.remat} computes the blocks of a stack again, '
            f'and model.architecture={config.model.architecture} has none: leave it out'
        ) from None
    frozen.paths(config, model)
    return model


def check_overrides(config: ExperimentConfig, overrides: Iterable[str]) -> None:
    """Refuses to change fields that nothing is done with.

    Raises:
      UserError: names the field, and those that make it unused.
    """
    unused = _unused_fields(config)
    values = flatten(config.to_dict())
    for field in sorted(unused.keys() & set(overrides)):
        raise UserError(
            f'{field}={values[field]} changes nothing where {unused[field]}: leave it '
            'out'
        )


def _unused_fields(config: ExperimentConfig) -> dict[str, str]:
    """The fields that change nothing → what makes them so."""
    unused = {}
    with user_errors():
        names = variants.unused_fields(config.model)
    given = {field: getattr(config.model, field) for field in _DECIDING}
    reasons = [f'model.{field}={value}' for field, value in given.items() if value]
    for name in names:
        unused[f'model.{name}'] = ' and '.join(reasons)
    decode = config.evaluation.decode
    for search, fields in SEARCHES.items():
        if search != decode:
            unused |= dict.fromkeys(fields, f'evaluation.decode={decode}')
    name, _ = optax_specs.split(config.optimizer.name)
    if name not in optimizer.BY_FIELDS:
        for field in optimizer.ADAMS:
            reason = f'optimizer.name={name} takes arguments of its own'
            unused[f'optimizer.{field}'] = reason
    if not config.init_from:
        unused |= dict.fromkeys(('init_average', 'init_ignore'), 'init_from is empty')
    return unused
