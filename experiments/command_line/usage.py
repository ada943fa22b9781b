"""What `--help` says of configs: a config's fields, and the variants that they may name."""

import textwrap
from typing import Any

from experiments.config.flat import flatten

COLUMN = 30  # where values stand
WIDTH = 100


def text(name: str, config: Any, configs: list[str]) -> str:
    """The fields of a config with their values, and what those that name a variant may name."""
    # They import JAX, which the command line itself does without.
    from experiments.config.check import FIELDS
    from flaxformer_lite.ranges import Choices, limit_of

    lines = [f'configs: {", ".join(configs)}', '', f'fields of {name}:']
    for field, value in flatten(config.to_dict()).items():
        limit = limit_of(FIELDS.get(field))
        words = f' ({", ".join(limit.words)})' if isinstance(limit, Choices) else ''
        shown = '(empty)' if value in (None, '') else value
        lines.append(_row(field, f'{shown}{words}'))
    lines += ['', 'variants, with the arguments that NAME(argument=value) may give:']
    lines += [_row(field, ', '.join(names)) for field, names in _variants().items()]
    lines.append('  model.decoder_* and model.cross_* may name the same')
    return '\n'.join(lines)


def _variants() -> dict[str, list[str]]:
    from flaxformer_lite.config import spec, variants
    from flaxformer_lite.training import schedules

    package = 'experiments.data.sources'
    found = {
        'data': [
            _call(name, spec.parameters(spec.find(package, name)))
            for name in spec.available(package)
        ]
    }
    for kind in variants.FOLDERS:
        found[f'model.{kind}'] = [
            _call(name, variants.arguments(kind, name)) for name in variants.names(kind)
        ]
    return found | {'optimizer.schedule': schedules.available()}


def _call(name: str, arguments: dict[str, Any]) -> str:
    if not arguments:
        return name
    return f'{name}({", ".join(arguments)})'


def _row(name: str, value: str) -> str:
    return textwrap.fill(
        value,
        WIDTH,
        initial_indent=f'  {name}'.ljust(COLUMN),
        subsequent_indent=' ' * COLUMN,
        break_long_words=False,
    )
