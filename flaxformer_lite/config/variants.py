"""Config fields that name a component, and what the components require."""

import contextlib
import math
from typing import Any

from flaxformer_lite import validation
from flaxformer_lite.config import schema, spec
from flaxformer_lite.config.schema import ModelConfig
from flaxformer_lite.config.spec import Folder, Spec

# The folder and the base class of each kind of field.
FOLDERS = {
    'architecture': Folder('flaxformer_lite.models', 'Model'),
    'attention': Folder('flaxformer_lite.attention', 'Attention'),
    'positions': Folder('flaxformer_lite.positions', 'Positions'),
    'norm': Folder('flaxformer_lite.norms', 'Norm'),
    'residual': Folder('flaxformer_lite.residual', 'Residual'),
    'feed_forward': Folder('flaxformer_lite.feed_forward', 'FeedForward'),
    'block': Folder('flaxformer_lite.layers.blocks', 'Block'),
    'init': Folder('flaxformer_lite.init', 'Init'),
}
# Not part of a `model` config: components of training and decoding.
SCHEDULES = Folder('flaxformer_lite.training.schedules', 'Schedule')
LOSSES = Folder('flaxformer_lite.losses', 'Loss')
STRATEGIES = Folder('flaxformer_lite.decoding.strategies', 'Strategy')
PROCESSORS = Folder('flaxformer_lite.decoding.processors', 'Processor')

# One object serves all layers, so these fields can't have patterns.
_OF_ALL_LAYERS = ('architecture', 'init')


# Arguments that `build` passes to every class of a kind. Others are the user's.
GIVEN = {
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
}


def folder(field: str) -> Folder:
    """Returns the folder of a field: that of `'norm'` for `'decoder.norm'`."""
    return FOLDERS[_plain(field)]


def fields() -> list[str]:
    """Returns all fields that name a component."""
    return [name for name in schema.fields() if _plain(name) in FOLDERS]


def _plain(field: str) -> str:
    """Returns the field without its section: `'decoder.norm'` → `'norm'`."""
    return field.rpartition('.')[2]


def _own_fields() -> list[str]:
    """Returns the fields specific to the decoder or to cross-attention."""
    return [name for name in schema.fields() if '.' in name]


def names(field: str) -> list[str]:
    """Returns the components that a field may name."""
    return folder(field).names()


def arguments(kind: str, name: str) -> dict[str, Any]:
    """Returns the arguments that a spec may set: name → annotation."""
    cls, _ = FOLDERS[kind].find(name)
    takes = spec.parameters(cls)
    if kind == 'architecture':
        return {argument: takes[argument] for argument in cls.own_arguments}
    return {x: annotation for x, annotation in takes.items() if x not in GIVEN[kind]}


def of_layers(config: ModelConfig) -> list[ModelConfig]:
    """Returns the config of each layer of a period, in which no field is a pattern.

    A pattern `'[a, b]'` repeats over the layers: layer i uses entry i mod 2. If
    patterns have different lengths, the period is their least common multiple, limited
    to the depth.

    Raises:
      ValueError: a pattern is malformed, or its field applies to all layers; names the
        field.
    """
    patterns = {}
    for field in fields():
        text = config.get(field)
        if text is not None:
            patterns[field] = _entries(field, text)
    depth = max(config.num_layers, config.value('num_layers', 'decoder'))
    period = min(depth, math.lcm(*map(len, patterns.values())))
    return [
        config.with_values(
            {field: texts[i % len(texts)] for field, texts in patterns.items()}
        )
        for i in range(period)
    ]


def _entries(field: str, text: Spec) -> list[Spec]:
    with naming(field):
        found = spec.entries(text)
        if found != [text] and field in _OF_ALL_LAYERS:
            raise ValueError(
                f'{validation.quote(text)} is a pattern over layers, but {field} is '
                'the same for all layers. Give a single spec.'
            )
    return found


def find(config: ModelConfig, field: str) -> type:
    """Returns the class that a field names. The field must not be a pattern.

    Raises:
      ValueError: as `Folder.find`; the message names the field.
    """
    with naming(field):
        cls, _ = folder(field).find(config.get(field))
    return cls


def make(field: str, text: Spec, **given: Any) -> Any:
    """Builds the object of a spec in a field.

    `given` are arguments that every class of this kind takes.

    Raises:
      ValueError: as `Folder.make`; the message names the field.
    """
    with naming(field):
        return folder(field).make(text, **given)


@contextlib.contextmanager
def naming(field: str):
    """Prefixes the message of a ValueError with the field's name."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f'model.{field}: {error}') from None


def unused_fields(config: ModelConfig) -> set[str]:
    """Returns the fields that have no effect, given the other fields.

    Raises:
      ValueError: the architecture or residual is unknown.
    """
    return set.intersection(*map(_unused_fields, of_layers(config)))


def _unused_fields(config: ModelConfig) -> set[str]:
    architecture = find(config, 'architecture')
    unused = set(architecture.unused_fields)
    # If a field has no effect, neither has the decoder's version of it.
    unused |= {name for name in _own_fields() if _plain(name) in unused}
    if 'residual' in unused:
        return unused
    encoder_unused = _unused_with(config, 'residual')
    if not architecture.has_decoder_beside_encoder:
        return unused | encoder_unused | set(_own_fields())
    if config.merged_attention:
        unused |= {name for name in _own_fields() if name.startswith('cross.')}
    decoder_field = config.deciding_field('residual', 'decoder')
    decoder_unused = _unused_with(config, decoder_field)
    # The decoder may use fields that the encoder ignores.
    in_both = {
        name
        for name in encoder_unused
        if name in decoder_unused or config.get(f'decoder.{name}') is not None
    }
    return unused | in_both | {f'decoder.{name}' for name in decoder_unused}


def _unused_with(config: ModelConfig, field: str) -> set[str]:
    """Returns the fields that a residual connection doesn't use."""
    unused = set(find(config, field).unused_fields)
    # The norm of embeddings is used with any residual connection.
    return unused - {'norm'} if config.norm_embeddings else unused


def check(config: ModelConfig) -> None:
    """Checks that sizes fit each other, before anything is built.

    Raises:
      ValueError: names the fields, their values and the fix.
    """
    config = of_layers(config)[0]
    architecture = find(config, 'architecture')
    roles = ['encoder']
    if architecture.has_decoder_beside_encoder:
        roles += ['decoder', 'cross']
    if 'num_heads' not in architecture.unused_fields:
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
    """Raises ValueError if source and target share a matrix but differ in width."""
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
    """Raises ValueError for sizes that conflict with heads as slices of d_model."""
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
