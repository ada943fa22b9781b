"""The fields of a `model` config that name a file, and what those files need."""

import contextlib
import dataclasses
from typing import Any

from flaxformer_lite.config import spec
from flaxformer_lite.config.schema import ModelConfig

# The folder whose files each kind of field names.
FOLDERS = {
    'architecture': 'models',
    'attention': 'attention',
    'positions': 'positions',
    'norm': 'norms',
    'residual': 'residual',
    'feed_forward': 'feed_forward',
    'init': 'init',
}


# What `build` gives every class of a kind. Its other arguments are the user's to give.
GIVEN = {
    'attention': (),
    'positions': ('sizes',),
    'norm': (),
    'residual': ('norm', 'dropout', 'sizes'),
    'feed_forward': ('sizes', 'dense'),
    'init': ('sizes',),
}


def folder(field: str) -> str:
    """`'decoder_norm'` → `'norms'`."""
    return FOLDERS[_plain(field)]


def fields() -> list[str]:
    """All fields that name a file."""
    names = [field.name for field in dataclasses.fields(ModelConfig)]
    return [name for name in names if _plain(name) in FOLDERS]


def _plain(field: str) -> str:
    """`'decoder_norm'` and `'cross_norm'` → `'norm'`."""
    return field.removeprefix('decoder_').removeprefix('cross_')


def _own_fields() -> list[str]:
    """The fields of the decoder alone, and of its attention to the source."""
    names = [field.name for field in dataclasses.fields(ModelConfig)]
    return [name for name in names if _plain(name) != name]


def names(field: str) -> list[str]:
    """The files that a field may name."""
    return spec.available(f'flaxformer_lite.{folder(field)}')


def arguments(kind: str, name: str) -> dict[str, Any]:
    """The arguments that a spec may give a file of a kind: name → annotation."""
    cls = spec.find(f'flaxformer_lite.{FOLDERS[kind]}', name)
    takes = spec.parameters(cls)
    if kind == 'architecture':
        return {argument: takes[argument] for argument in cls.own_arguments}
    return {x: annotation for x, annotation in takes.items() if x not in GIVEN[kind]}


def find(config: ModelConfig, field: str) -> type:
    """The class that a field names.

    Raises:
      ValueError: there is no such file; the message names the field.
    """
    with naming(field):
        name, _ = spec.parse(getattr(config, field))
        return spec.find(f'flaxformer_lite.{folder(field)}', name)


def make(field: str, text: str, **given: Any) -> Any:
    """The object that a spec in a field names.

    Args:
      field: named in errors.
      text: the spec; its arguments are the user's.
      given: arguments that every class of this kind takes.

    Raises:
      ValueError: as `spec.make`; the message names the field.
    """
    with naming(field):
        return spec.make(f'flaxformer_lite.{folder(field)}', text, **given)


@contextlib.contextmanager
def naming(field: str):
    """Puts the field's name before the message of a ValueError."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f'model.{field}: {error}') from None


def unused_fields(config: ModelConfig) -> set[str]:
    """The fields that change nothing, because of what other fields name.

    Raises:
      ValueError: there is no such architecture or residual.
    """
    architecture = find(config, 'architecture')
    unused = set(architecture.unused_fields)
    # Of a field that changes nothing, the decoder's own changes nothing either.
    unused |= {name for name in _own_fields() if _plain(name) in unused}
    if 'residual' in unused:
        return unused
    encoder_unused = _unused_with(config, 'residual')
    if not architecture.has_decoder_beside_encoder:
        return unused | encoder_unused | set(_own_fields())
    decoder_field = config.deciding_field('residual', 'decoder')
    decoder_unused = _unused_with(config, decoder_field)
    # What the encoder leaves alone, the decoder may use.
    in_both = {
        name
        for name in encoder_unused
        if name in decoder_unused or getattr(config, f'decoder_{name}') is not None
    }
    return unused | in_both | {f'decoder_{name}' for name in decoder_unused}


def _unused_with(config: ModelConfig, field: str) -> set[str]:
    """The fields that a residual connection leaves unused."""
    unused = set(find(config, field).unused_fields)
    # Embeddings have their norm with any of them.
    return unused - {'norm'} if config.norm_embeddings else unused


def check(config: ModelConfig) -> None:
    """Refuses sizes that do not fit each other, by name and before anything is made.

    Raises:
      ValueError: names the fields, their values and the mend.
    """
    architecture = find(config, 'architecture')
    roles = ['encoder']
    if architecture.has_decoder_beside_encoder:
        roles += ['decoder', 'cross']
    if 'num_heads' not in architecture.unused_fields:
        for role in roles:
            _check_heads(config, role)
    if not config.projections:
        _check_no_projections(config, roles)
        if config.attention_bias and 'cross' not in roles:
            raise ValueError(
                'model.projections=False leaves no matrices that '
                'model.attention_bias=True could give biases to: leave one out'
            )


def _check_heads(config: ModelConfig, role: str) -> None:
    heads_field = config.deciding_field('num_heads', role)
    heads = getattr(config, heads_field)
    kv_field = config.deciding_field('num_kv_heads', role)
    kv_heads = getattr(config, kv_field)
    widths = config.value('d_k', role), config.value('d_v', role)
    if None in widths and config.d_model % heads:
        raise ValueError(
            f'model.d_model={config.d_model} cannot be divided among '
            f'model.{heads_field}={heads}: change one, or set model.d_k and model.d_v'
        )
    if kv_heads is not None and heads % kv_heads:
        raise ValueError(
            f'model.{kv_field}={kv_heads} does not divide model.{heads_field}={heads}'
        )


def _check_no_projections(config: ModelConfig, roles: list[str]) -> None:
    """Without projections a head of self-attention is a slice of d_model."""
    for role in roles:
        if role == 'cross':
            continue
        for name in ('d_k', 'd_v', 'num_kv_heads'):
            field = config.deciding_field(name, role)
            if getattr(config, field) is not None:
                raise ValueError(
                    'model.projections=False makes heads slices of d_model: leave '
                    f'model.{field} empty'
                )
