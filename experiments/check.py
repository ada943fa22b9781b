"""Refuses a config whose numbers cannot work, by name and before anything is made."""

import math
from collections.abc import Iterable
from typing import Any

from experiments import early_stopping, optax_specs, optimizer
from experiments.errors import UserError
from flaxformer_lite import fields

# field: the least it may be, and what it must stay below.
RANGES = {
    'tokenizer.vocab_size': (5, math.inf),
    'batch.tokens': (1, math.inf),
    'batch.max_length': (2, math.inf),
    'train.steps': (0, math.inf),
    'train.epochs': (0, math.inf),
    'train.patience': (0, math.inf),
    'train.label_smoothing': (0, 1),
    'train.seed': (0, 2**32),
    'train.init_seed': (0, 2**32),
    'train.data_seed': (0, 2**32),
    'train.dropout_seed': (0, 2**32),
    'train.accumulate': (1, math.inf),
    'train.log_every': (1, math.inf),
    'evaluation.every': (0, math.inf),
    'evaluation.beams': (1, math.inf),
    'evaluation.alpha': (0, math.inf),
    'evaluation.extra_length': (1, math.inf),
    'evaluation.top_k': (0, math.inf),
    'evaluation.average': (1, math.inf),
    'evaluation.batch_tokens': (1, math.inf),
    'checkpoint.every': (1, math.inf),
    'checkpoint.keep': (1, math.inf),
    'checkpoint.keep_best': (0, math.inf),
}
CHOICES = {
    'train.on_nonfinite': ('stop', 'skip'),
    'evaluation.decode': ('beam', 'greedy', 'sample'),
    'evaluation.average_of': ('last', 'best'),
}
# What only one way to decode asks for.
SEARCHES = {
    'beam': ('evaluation.beams', 'evaluation.alpha'),
    'sample': ('evaluation.temperature', 'evaluation.top_k', 'evaluation.top_p'),
}


def check(config: Any) -> None:
    """Looks at every field that is a number or one of a few words.

    Raises:
      UserError: names the field, the value and what it may be.
    """
    try:
        fields.check(config.model)
    except ValueError as error:
        raise UserError(str(error)) from None
    optimizer.make(config)
    for field, (least, below) in RANGES.items():
        value = _get(config, field)
        if value is not None and not least <= value < below:
            upper = '' if below == math.inf else f' and below {below}'
            raise UserError(f'{field} must be at least {least}{upper}, not {value}')
    for field, choices in CHOICES.items():
        if _get(config, field) not in choices:
            raise UserError(
                f'{field} must be one of {", ".join(choices)}, not {_get(config, field)!r}'
            )
    if not (config.train.steps or config.train.epochs):
        raise UserError(
            'train.steps=0 and train.epochs=0: give one of them, to say when to end'
        )
    if not config.evaluation.temperature > 0:
        raise UserError(
            f'evaluation.temperature must be above 0, not {config.evaluation.temperature}'
        )
    if not 0 < config.evaluation.top_p <= 1:
        raise UserError(
            f'evaluation.top_p must be above 0 and at most 1, not {config.evaluation.top_p}'
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
        own = (f'optimizer.{field}' for field in optimizer.FIELDS)
        idle |= dict.fromkeys(own, f'optimizer.name={name} takes arguments of its own')
    for field in sorted(idle.keys() & set(overrides)):
        raise UserError(
            f'{field}={_get(config, field)} changes nothing where {idle[field]}: leave it out'
        )


def _get(config: Any, field: str) -> Any:
    section, name = field.split('.')
    return getattr(getattr(config, section), name)
