"""Config fields that name a component, and what the components require."""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from flaxformer_lite import validation
from flaxformer_lite.config import schema
from flaxformer_lite.config.schema import FOLDERS, ModelConfig, folder
from flaxformer_lite.config.spec import Folder, Spec

# Not part of a `model` config: components of training and decoding.
SCHEDULES = Folder('flaxformer_lite.training.schedules', 'Schedule')
LOSSES = Folder('flaxformer_lite.losses', 'Loss', lists=True)
STRATEGIES = Folder('flaxformer_lite.decoding.strategies', 'Strategy')
PROCESSORS = Folder(
    'flaxformer_lite.decoding.processors', 'Processor', lists=True, may_be_empty=True
)

# Arguments that `build` passes to every class of a kind. Specs set the others.
BUILD_ARGS = {
    'attention': (),
    'positions': ('sizes',),
    'norm': (),
    'residual': ('norm', 'dropout', 'sizes'),
    'feed_forward': ('sizes', 'dense'),
    'block': (
        'self_attention',
        'feed_forward',
        'residual',
        'cross_attention',
        'merged',
    ),
    'init': ('sizes',),
    'dense': ('features', 'input_axes', 'bias', 'dtype', 'kernel_init'),
}


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
    return {
        x: annotation for x, annotation in takes.items() if x not in BUILD_ARGS[kind]
    }


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
    used = set()
    for role in _roles(config):
        unused = set(architecture.unused_fields)
        if 'residual' not in unused:
            residual = find(config, config.deciding_field('residual', role))
            # The norm of embeddings is used with any residual connection.
            still_used = {'norm'} if config.norm_embeddings else set()
            unused |= set(residual.unused_fields) - still_used
        for name in {_without_section(field) for field in schema.fields()} - unused:
            used.update(config.fields_of(name, role))
    return used - set(architecture.unused_fields)


def _roles(config: ModelConfig) -> list[str]:
    """Returns the roles whose fields a model reads; a single stack is an encoder."""
    if not find(config, 'architecture').has_decoder_beside_encoder:
        return ['encoder']
    if config.merged_attention:
        return ['encoder', 'decoder']
    return ['encoder', 'decoder', 'cross']


def check(config: ModelConfig) -> None:
    """Raises ValueError if the sizes of a layer don't fit each other."""
    roles = _roles(config)
    if 'num_heads' not in find(config, 'architecture').unused_fields:
        _check_tie(config, roles)
        for role in roles:
            _check_heads(config, role)
    if not config.projections:
        _check_no_projections(config, roles)
        if config.attention_bias and 'cross' not in roles:
            raise ValueError(
                'model.projections=False removes the matrices that '
                'model.attention_bias=True adds biases to. Leave one out.'
            )


def _check_tie(config: ModelConfig, roles: list[str]) -> None:
    width = config.value('d_model', roles[-1])
    if config.tie not in ('decoder', 'none') and width != config.d_model:
        raise ValueError(
            f'model.tie={config.tie} shares source and target embeddings, but '
            f'model.d_model={config.d_model} differs from '
            f'model.decoder.d_model={width}. Set model.tie to decoder or none.'
        )


def _check_heads(config: ModelConfig, role: str) -> None:
    heads_field = config.deciding_field('num_heads', role)
    heads = config.get(heads_field)
    kv_field = config.deciding_field('num_kv_heads', role)
    kv_heads = config.get(kv_field)
    widths = config.value('d_k', role), config.value('d_v', role)
    width_field = config.deciding_field('d_model', role)
    width = config.get(width_field)
    if None in widths and width % heads:
        raise ValueError(
            f'model.{width_field}={width} cannot be divided among '
            f'model.{heads_field}={heads}: change one, or set model.d_k and model.d_v'
        )
    if kv_heads is not None and heads % kv_heads:
        raise ValueError(
            f'model.{kv_field}={kv_heads} does not divide model.{heads_field}={heads}'
        )


def _check_no_projections(config: ModelConfig, roles: list[str]) -> None:
    for role in roles:
        if role == 'cross':
            continue
        for name in ('d_k', 'd_v', 'num_kv_heads'):
            field = config.deciding_field(name, role)
            if config.get(field) is not None:
                raise ValueError(
                    'model.projections=False makes heads slices of d_model, so '
                    f'model.{field} has no effect. Leave it empty.'
                )
