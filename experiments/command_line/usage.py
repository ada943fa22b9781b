"""What `--help` says of configs: the fields, their values, and the variants to name."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.config import schema, table
from flaxformer_lite.config import spec, variants

COLUMN = 30  # where values stand
WIDTH = 88


def text(name: str, values: Mapping[str, Any], configs: Sequence[str]) -> str:
    """Each field with its value in a config, what it may be and what it means.

    Args:
      name: the config's.
      values: of its fields, such as `train.steps`.
      configs: the names of all configs of the project.
    """
    lines = [f'configs: {", ".join(configs)}', '', f'fields of {name}:']
    for field, (kind, _, meaning) in schema.fields().items():
        value = table.shown(values[field])
        lines.append(_row(field, f'{value} · {meaning} [{table.allowed(kind)}]'))
    # By the names of files: what a variant takes, only its class says, and those
    # import JAX.
    lines += ['', 'variants; docs/variants/ has what NAME(argument=value) may give:']
    lines.append(_row('data', ', '.join(spec.available('experiments.data.sources'))))
    for kind in variants.FOLDERS:
        lines.append(_row(f'model.{kind}', ', '.join(variants.names(kind))))
    lines.append('  model.decoder_* and model.cross_* may name the same')
    return '\n'.join(lines)


def _row(name: str, value: str) -> str:
    return textwrap.fill(
        value,
        WIDTH,
        initial_indent=f'  {name}'.ljust(COLUMN - 1) + ' ',
        subsequent_indent=' ' * COLUMN,
        break_long_words=False,
        break_on_hyphens=False,
    )
