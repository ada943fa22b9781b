"""Generates the table of all fields for the documentation.

python -m experiments.config.table >docs/configs.md
"""

from experiments.config.schema import allowed, fields, sections, shown

_HEAD = """# The fields of a config

Made by `python -m experiments.config.table >docs/configs.md` of the schema,
[`experiments/config/schema.py`](../experiments/config/schema.py) and
[`flaxformer_lite/config/schema.py`](../flaxformer_lite/config/schema.py).

A config file gives the fields that are not to have their defaults, and the command line
overrides any: `--config.model.num_heads=4`. The defaults are the paper's base model and
training. `python -m experiments.run --config=… --help` lists the same fields with their
values in a config, and the variants that they may name.
"""


def markdown() -> str:
    """Returns the documentation page that lists all fields."""
    lines = [_HEAD]
    for section in ['', *sections()]:
        if section:
            lines += [f'## `{section}`', '']
        lines += ['| field | default | may be | meaning |', '|---|---|---|---|']
        for name, (kind, default, meaning) in fields().items():
            if name.rpartition('.')[0] == section:
                default = f'`{shown(default)}`'
                lines.append(f'| `{name}` | {default} | {allowed(kind)} | {meaning} |')
        lines.append('')
    return '\n'.join(lines)


if __name__ == '__main__':
    print(markdown(), end='')
