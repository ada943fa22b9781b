"""What each field of a config may be; others are refused by name, before anything is made."""

from collections.abc import Iterable
from typing import Annotated, Any

from experiments import early_stopping, optax_specs, optimizer
from experiments.errors import UserError, nearest
from experiments.workdir import flatten
from flaxformer_lite import fields, ranges, spec
from flaxformer_lite.ranges import Choices, Range, Rate, Size

Count = Annotated[int, Range(at_least=0)]
Seed = Annotated[int, Range(at_least=0, below=2**32)]
SeedOrEmpty = Annotated[int | None, Range(at_least=0, below=2**32)]
# What each field may be.
FIELDS: dict[str, Any] = {
    'data': str,
    'tokenizer.vocab_size': Annotated[int, Range(at_least=5)],
    'batch.tokens': Size,
    'batch.max_length': Annotated[int, Range(at_least=2, at_most=2**20)],
    'batch.packed': bool,
    'train.steps': Count,
    'train.epochs': Count,
    'train.patience': Count,
    'train.label_smoothing': Rate,
    'train.seed': Seed,
    'train.init_seed': SeedOrEmpty,
    'train.data_seed': SeedOrEmpty,
    'train.dropout_seed': SeedOrEmpty,
    'train.accumulate': Size,
    'train.on_nonfinite': Annotated[str, Choices('stop', 'skip')],
    'train.log_every': Size,
    'evaluation.every': Count,
    'evaluation.sets': str,
    'evaluation.decode': Annotated[str, Choices('beam', 'greedy', 'sample')],
    'evaluation.beams': Annotated[int, Range(at_least=1, at_most=10_000)],
    # Above, a long sentence's penalty is more than a float32 can be.
    'evaluation.alpha': Annotated[float, Range(at_least=0, at_most=10)],
    'evaluation.extra_length': Annotated[int, Range(at_least=1, at_most=2**20)],
    # Below, logits over it are more than a float32 can be: 0 is what greedy decoding is.
    'evaluation.temperature': Annotated[float, Range(at_least=1e-6)],
    'evaluation.top_k': Count,
    'evaluation.top_p': Annotated[float, Range(above=0, at_most=1)],
    'evaluation.average': Size,
    'evaluation.average_of': Annotated[str, Choices('last', 'best')],
    'evaluation.batch_tokens': Size,
    'checkpoint.every': Size,
    'checkpoint.keep': Size,
    'checkpoint.keep_best': Count,
}
FIELDS |= {f'model.{name}': kind for name, kind in fields.FIELDS.items()}
FIELDS |= {f'optimizer.{name}': kind for name, kind in optimizer.FIELDS.items()}
# What only one way to decode asks for.
SEARCHES = {
    'beam': ('evaluation.beams', 'evaluation.alpha'),
    'sample': ('evaluation.temperature', 'evaluation.top_k', 'evaluation.top_p'),
}


def check(config: Any) -> None:
    """Looks at every field: whether it is there, and whether it is what it may be.

    Raises:
      UserError: names the field, the value and what it may be.
    """
    _check_fields(config)
    _check_data(config.data)
    try:
        fields.check(config.model)
    except ValueError as error:
        raise UserError(str(error)) from None
    optimizer.make(config)
    if not (config.train.steps or config.train.epochs):
        raise UserError(
            'train.steps=0 and train.epochs=0: give one of them, to say when to end'
        )
    early_stopping.check(config)
    which = 'keep_best' if early_stopping.takes_best(config) else 'keep'
    needed, kept = config.evaluation.average, config.checkpoint[which]
    if needed > kept:
        raise UserError(
            f'evaluation.average={needed} checkpoints cannot be averaged where '
            f'checkpoint.{which}={kept} are kept: raise checkpoint.{which}'
        )


def check_overrides(config: Any, overrides: Iterable[str]) -> None:
    """Refuses to change fields that nothing is done with.

    Raises:
      UserError: names the field, and those that make it idle.
    """
    _check_fields(config)
    try:
        names = fields.idle(config.model)
    except ValueError as error:
        raise UserError(str(error)) from None
    makers = ('architecture', 'residual', 'decoder_residual')
    named = [f'model.{x}={config.model[x]}' for x in makers if config.model[x]]
    idle = dict.fromkeys((f'model.{name}' for name in names), ' and '.join(named))
    decode = config.evaluation.decode
    for other, names in SEARCHES.items():
        if other != decode:
            idle |= dict.fromkeys(names, f'evaluation.decode={decode}')
    name, _ = optax_specs.split(config.optimizer.name)
    if name not in optimizer.BY_FIELDS:
        own = (f'optimizer.{field}' for field in optimizer.ADAMS)
        idle |= dict.fromkeys(own, f'optimizer.name={name} takes arguments of its own')
    for field in sorted(idle.keys() & set(overrides)):
        raise UserError(
            f'{field}={_get(config, field)} changes nothing where {idle[field]}: leave it out'
        )


def check_value(name: str, annotation: Any, value: Any) -> None:
    """`ranges.check`, for a field or a flag.

    Raises:
      UserError: names it, its value and what it may be.
    """
    try:
        ranges.check(name, annotation, value)
    except ValueError as error:
        raise UserError(str(error)) from None


def missing(config: Any) -> list[str]:
    """The fields that every config has, and this one has not."""
    values = flatten(config.to_dict())
    return [field for field in FIELDS if field not in values]


def _check_fields(config: Any) -> None:
    values = flatten(config.to_dict())
    if missing(config):
        raise UserError(f'the config has no field {missing(config)[0]}: give it one')
    strange = [field for field in values if field not in FIELDS]
    if strange:
        known = nearest(strange[0], FIELDS)
        raise UserError(f'nothing reads the field {strange[0]} of the config{known}')
    for field, annotation in FIELDS.items():
        check_value(field, annotation, values[field])


def _check_data(text: str) -> None:
    """Looks at the name alone: a source's own file may take long to import."""
    try:
        spec.check_name('experiments.data', spec.parse(text)[0])
    except ValueError as error:
        raise UserError(f'data: {error}') from None


def _get(config: Any, field: str) -> Any:
    return flatten(config.to_dict())[field]
