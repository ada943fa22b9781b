"""The schema in words: what a field may be, and the table of the documentation.

python -m experiments.config.table >docs/configs.md
"""

from typing import Any

from experiments.config import schema
from flaxformer_lite import ranges
from flaxformer_lite.ranges import Choices, Pattern, Range

_HEAD = """# The fields of a config

Made by `python -m experiments.config.table >docs/configs.md` of the schema,
[`experiments/config/schema.py`](../experiments/config/schema.py) and
[`flaxformer_lite/config/schema.py`](../flaxformer_lite/config/schema.py).

A config file gives the fields that are not to have their defaults, and the command line
overrides any: `--config.model.num_heads=4`. The defaults are the paper's base model and
training. `python -m experiments.run --config=… --help` lists the same fields with their
values in a config, and the variants that they may name.
"""


def allowed(kind: Any) -> str:
    """What a field may be by its annotation: `int, at least 1; or empty`."""
    limit = ranges.limit_of(kind)
    kinds = ranges.types_of(kind)
    words = ' or '.join(x.__name__ for x in kinds if x is not type(None))
    if type in kinds:
        words = 'a name'
    if isinstance(limit, Choices):
        words = ', '.join(limit.words)
    if isinstance(limit, Pattern):
        words = 'a regular expression; or empty'
    if isinstance(limit, Range):
        words = f'{words}, {limit.words()}'
    if type(None) in kinds:
        words = f'{words}; or empty'
    return words


def shown(value: Any) -> str:
    """A value as the command line takes it."""
    return '(empty)' if value in (None, '') else str(value)


def markdown() -> str:
    """The page of the documentation that lists all fields."""
    lines = [_HEAD]
    for section in ['', *schema.sections()]:
        if section:
            lines += [f'## `{section}`', '']
        lines += ['| field | default | may be | meaning |', '|---|---|---|---|']
        for name, (kind, default, meaning) in schema.fields().items():
            if name.rpartition('.')[0] == section:
                default = f'`{shown(default)}`'
                lines.append(f'| `{name}` | {default} | {allowed(kind)} | {meaning} |')
        lines.append('')
    return '\n'.join(lines)


if __name__ == '__main__':
    print(markdown(), end='')
