"""What `--help` says of configs: the fields, their values, and the variants to name."""

import textwrap
from typing import Any

from experiments.config import schema, table
from experiments.config.flat import flatten
from experiments.config.schema import ExperimentConfig

COLUMN = 30  # where values stand
WIDTH = 88


def text(name: str, config: ExperimentConfig, configs: list[str]) -> str:
    """Each field with its value in a config, what it may be and what it means.

    Args:
      name: the config's.
      config: the values.
      configs: the names of all configs of the project.
    """
    lines = [f'configs: {", ".join(configs)}', '', f'fields of {name}:']
    values = flatten(config.to_dict())
    for field, (kind, _, meaning) in schema.fields().items():
        value = table.shown(values[field])
        lines.append(_row(field, f'{value} · {meaning} [{table.allowed(kind)}]'))
    lines += ['', 'variants, with the arguments that NAME(argument=value) may give:']
    lines += [_row(field, ', '.join(names)) for field, names in _variants().items()]
    lines.append('  model.decoder_* and model.cross_* may name the same')
    return '\n'.join(lines)


def _variants() -> dict[str, list[str]]:
    # They import JAX, which the command line itself does without.
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
        initial_indent=f'  {name}'.ljust(COLUMN - 1) + ' ',
        subsequent_indent=' ' * COLUMN,
        break_long_words=False,
        break_on_hyphens=False,
    )
