"""What the fields of a config ask of each other, refused by name before work begins.

What a field by itself may be is checked when its section of the schema is made.
"""

from collections.abc import Iterable

from experiments.config.derived import profiled_steps, takes_best
from experiments.config.flat import flatten
from experiments.config.schema import ExperimentConfig
from experiments.errors import UserError
from experiments.optimizers import frozen, optax_specs, optimizer
from flaxformer_lite.config import build, spec, variants
from flaxformer_lite.models.base import Model
from flaxformer_lite.ranges import shown
from flaxformer_lite.special_tokens import DEFAULT_TOKENS, SpecialTokens

# What only one way to decode asks for.
SEARCHES = {
    'beam': ('evaluation.beams', 'evaluation.alpha'),
    'sample': ('evaluation.temperature', 'evaluation.top_k', 'evaluation.top_p'),
}


def check(config: ExperimentConfig) -> None:
    """Looks at what fields ask of each other; the model is `build_model`'s to look at.

    Raises:
      UserError: names the fields, their values and the mend.
    """
    _check_data(config.data)
    try:
        variants.check(config.model)
    except ValueError as error:
        raise UserError(str(error)) from None
    optimizer.check(config)
    if not (config.train.steps or config.train.epochs):
        raise UserError(
            'train.steps=0 and train.epochs=0: give one of them, to say when to end'
        )
    _check_patience(config)
    _check_profile(config)
    _check_average(config)


def build_model(
    config: ExperimentConfig,
    vocab_size: int,
    special_tokens: SpecialTokens = DEFAULT_TOKENS,
) -> Model:
    """The model of a config, without `train.remat`, which only training is about.

    Args:
      config: the run's.
      vocab_size: the tokenizer's.
      special_tokens: the tokenizer's.

    Raises:
      UserError: names the field that it cannot be built with.
    """
    try:
        model = build.model(config.model, vocab_size, special_tokens)
    except ValueError as error:
        raise UserError(str(error)) from None
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
    unused = {**_unused_of_model(config), **_unused_of_evaluation(config)}
    name, _ = optax_specs.split(config.optimizer.name)
    if name not in optimizer.BY_FIELDS:
        for field in optimizer.ADAMS:
            reason = f'optimizer.name={name} takes arguments of its own'
            unused[f'optimizer.{field}'] = reason
    if not config.init_from:
        unused |= dict.fromkeys(('init_average', 'init_ignore'), 'init_from is empty')
    values = flatten(config.to_dict())
    for field in sorted(unused.keys() & set(overrides)):
        raise UserError(
            f'{field}={values[field]} changes nothing where {unused[field]}: leave it '
            'out'
        )


def _unused_of_model(config: ExperimentConfig) -> dict[str, str]:
    """The fields of `model` that change nothing → what makes them so."""
    try:
        names = variants.unused_fields(config.model)
    except ValueError as error:
        raise UserError(str(error)) from None
    reasons = []
    for field in ('architecture', 'residual', 'decoder_residual', 'merged_attention'):
        value = getattr(config.model, field)
        if value:
            reasons.append(f'model.{field}={value}')
    return {f'model.{name}': ' and '.join(reasons) for name in names}


def _unused_of_evaluation(config: ExperimentConfig) -> dict[str, str]:
    unused = {}
    decode = config.evaluation.decode
    for search, fields in SEARCHES.items():
        if search != decode:
            unused |= dict.fromkeys(fields, f'evaluation.decode={decode}')
    return unused


def _check_patience(config: ExperimentConfig) -> None:
    """Refuses a run that would wait for evaluations that never come."""
    if config.train.patience and not config.evaluation.every:
        raise UserError(
            f'train.patience={config.train.patience} counts evaluations, and with '
            'evaluation.every=0 there is one, at the end: raise evaluation.every'
        )


def _check_profile(config: ExperimentConfig) -> None:
    try:
        profiled_steps(config)
    except ValueError:
        raise UserError(
            f'train.profile={shown(config.train.profile)}: give the first and the last '
            "step, such as '10:13'"
        ) from None


def _check_average(config: ExperimentConfig) -> None:
    needed = config.evaluation.average
    field, kept = 'checkpoint.keep', config.checkpoint.keep
    if takes_best(config):
        field, kept = 'checkpoint.keep_best', config.checkpoint.keep_best
    if needed > kept:
        raise UserError(
            f'evaluation.average={needed} checkpoints cannot be averaged where '
            f'{field}={kept} are kept: raise {field}'
        )


def _check_data(text: str) -> None:
    """Looks at the name alone: a source's own file may take long to import."""
    try:
        spec.check_name('experiments.data.sources', spec.parse(text)[0])
    except ValueError as error:
        raise UserError(f'data: {error}') from None
