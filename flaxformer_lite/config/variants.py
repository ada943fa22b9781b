"""Config fields that name a component, and what the components require."""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from flaxformer_lite import validation
from flaxformer_lite.config import schema
from flaxformer_lite.config.schema import FOLDERS, ModelConfig, folder
from flaxformer_lite.config.spec import Folder, Spec
from flaxformer_lite.sizes import fields_of

# Not part of a `model` config: components of training and decoding.
SCHEDULES = Folder('flaxformer_lite.training.schedules', 'Schedule')
LOSSES = Folder('flaxformer_lite.losses', 'Loss', lists=True)
STRATEGIES = Folder('flaxformer_lite.decoding.strategies', 'Strategy')
PROCESSORS = Folder(
    'flaxformer_lite.decoding.processors', 'Processor', lists=True, may_be_empty=True
)


def fields() -> list[str]:
    """Returns the config fields that name a component."""
    return [name for name in schema.fields() if _without_section(name) in FOLDERS]


def _without_section(field: str) -> str:
    """Returns the field without its section: `'decoder.norm'` → `'norm'`."""
    return field.rpartition('.')[2]


def names(field: str) -> list[str]:
    """Returns the names of a field's components."""
    return folder(field).names()


def arguments(kind: str, name: str) -> dict[str, Any]:
    """Returns the arguments that a spec may set: name → annotation."""
    found = FOLDERS[kind].find(name)
    takes = found.parameters
    if kind == 'architecture':
        return {argument: takes[argument] for argument in found.cls.own_arguments}
    return takes


def of_layers(config: ModelConfig) -> list[ModelConfig]:
    """Returns the config of each layer of a period, in which no field is a pattern.

    Layer i uses entry i mod 2 of a pattern `'[a, b]'`.
    """
    patterns = {
        field: config.get(field).entries for field in fields() if config.get(field)
    }
    depth = max(config.num_layers, config.value('num_layers', 'decoder'))
    period = min(depth, math.lcm(*map(len, patterns.values())))
    return [
        config.with_values(
            {field: entries[i % len(entries)] for field, entries in patterns.items()}
        )
        for i in range(period)
    ]


def shortest_period(layers: Sequence[Any]) -> int:
    """Returns the smallest n for which layer i equals layer i mod n.

    Examples:
      >>> shortest_period(['local', 'softmax', 'local'])
      2
    """
    return next(
        n
        for n in range(1, len(layers) + 1)
        if all(layer == layers[i % n] for i, layer in enumerate(layers))
    )


def find(config: ModelConfig, field: str) -> Any:
    """Returns the class that a field names. The field must not be a pattern."""
    with naming(field):
        return config.get(field).cls


def make(field: str, spec: Spec, **given: Any) -> Any:
    """Builds the component of a field."""
    with naming(field):
        return folder(field).make(spec, **given)


def naming(field: str) -> AbstractContextManager[None]:
    """Prefixes the message of a ValueError with the field's name."""
    return validation.naming(f'model.{field}')


def unused_fields(config: ModelConfig) -> set[str]:
    """Returns the fields that have no effect, given the other fields."""
    return set(schema.fields()).difference(*map(_used_fields, of_layers(config)))


def _used_fields(config: ModelConfig) -> set[str]:
    architecture = find(config, 'architecture')
    there = {'architecture', *config.architecture.parameters}
    groups = {name: x.split('.')[0] for name, x in schema.NAMES_IN_CLASSES.items()}
    there |= {name for name, group in groups.items() if group in there}
    used = set()
    for role in _roles(config, there):
        unused = set()
        if 'residual' in there:
            residual = find(config, config.deciding_field('residual', role))
            # The norm of embeddings is used with any residual connection.
            still_used = {'norm'} if config.norm_embeddings else set()
            unused = set(residual.unused_fields) - still_used
        for name in {_without_section(field) for field in schema.fields()} & there:
            if name not in unused:
                used.update(fields_of(config, name, role))
    return used - set(architecture.unused_fields)


def _roles(config: ModelConfig, there: set[str]) -> list[str]:
    """Returns the roles whose fields a model reads; a single stack is an encoder."""
    if 'decoder' not in there:
        return ['encoder']
    if 'cross' not in there or config.merged_attention:
        return ['encoder', 'decoder']
    return ['encoder', 'decoder', 'cross']
