"""The sizes of a stack, which components receive by name.

A model and a `model` config have the same fields. The functions here read either.
"""

import dataclasses
import operator
from typing import Any, Literal

from flaxformer_lite.validation import Range

# Larger values are typos. Each layer takes 0.1 seconds to trace.
WIDTH = Range(at_least=1, at_most=2**24)
DEPTH = Range(at_least=1, at_most=1000)
HEADS = Range(at_least=1, at_most=2**16)

# Default of a component's attribute that the model sets if the user doesn't.
SET_BY_MODEL: Any = None

Role = Literal['encoder', 'decoder', 'decoder_only', 'prefix_only', 'encoder_only']


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of one stack and its attention. Default to the paper's base model.

    Attributes:
      num_kv_heads: Number of key-value heads, a divisor of `num_heads`.
      d_k_derived: Whether d_k grows with d_model, as d_model / num_heads. μP then
        treats d_k as a width that grows.
      role: 'encoder' or 'decoder' of an encoder-decoder, or a single stack.
        'prefix_only' is a decoder that sees the whole source.
      encoder_layers, decoder_layers: Number of layers of each stack; 0 if there is
        none. DeepNorm scales by both.
    """

    d_model: int = 512
    num_heads: int = 8
    num_kv_heads: int = 8
    d_k: int = 64
    d_v: int = 64
    d_ff: int = 2048
    d_k_derived: bool = True
    role: Role = 'encoder'
    encoder_layers: int = 6
    decoder_layers: int = 6

    @property
    def num_layers(self) -> int:
        if self.role.startswith('encoder'):
            return self.encoder_layers
        return self.decoder_layers

    @property
    def causal(self) -> bool:
        """True if tokens attend only to themselves and earlier tokens."""
        return self.role.startswith('decoder')


def fields_of(fields: Any, name: str, role: str) -> list[str]:
    """Returns the fields that a stack reads for a value; the last one decides.

    Args:
      fields: A model or its config, with overrides in `decoder` and `cross`, if any.
      name: A field that the decoder and cross-attention may override.
      role: 'encoder', 'decoder', 'cross', or the role of a single stack.
    """
    sections = {'decoder': ['decoder'], 'cross': ['cross', 'decoder']}.get(role, [])
    if role == 'cross' and name in ('attention', 'positions'):
        sections = ['cross']
    found = []
    for section in sections:
        overrides = getattr(fields, section)
        if hasattr(overrides, name):
            found.append(f'{section}.{name}')
            if getattr(overrides, name) is not None:
                return found
    return [*found, name]


def deciding_field(fields: Any, name: str, role: str) -> str:
    """Returns the field that applies to a stack: `'decoder.norm'` or `'norm'`."""
    return fields_of(fields, name, role)[-1]


def value_of(fields: Any, name: str, role: str) -> Any:
    """Returns the value that applies to a stack."""
    return operator.attrgetter(deciding_field(fields, name, role))(fields)


def sizes_of(fields: Any, role: Role) -> Sizes:
    """Returns the sizes of a stack and of its self-attention."""
    encoder_layers = decoder_layers = fields.num_layers
    if role == 'encoder_only':
        decoder_layers = 0
    elif role in ('decoder_only', 'prefix_only'):
        encoder_layers = 0
    else:
        decoder_layers = value_of(fields, 'num_layers', 'decoder')
    return Sizes(
        d_model=value_of(fields, 'd_model', role),
        d_ff=value_of(fields, 'd_ff', role),
        role=role,
        encoder_layers=encoder_layers,
        decoder_layers=decoder_layers,
        **_attention_sizes(fields, role),
    )


def cross_sizes_of(fields: Any) -> Sizes:
    """Returns the sizes of a decoder, with those of its attention to the source."""
    sizes = sizes_of(fields, 'decoder')
    return dataclasses.replace(sizes, **_attention_sizes(fields, 'cross'))


def _attention_sizes(fields: Any, role: str) -> dict[str, Any]:
    num_heads = value_of(fields, 'num_heads', role)
    num_kv_heads = value_of(fields, 'num_kv_heads', role)
    d_k = value_of(fields, 'd_k', role)
    d_v = value_of(fields, 'd_v', role)
    derived = value_of(fields, 'd_model', role) // num_heads
    return dict(
        num_heads=num_heads,
        num_kv_heads=num_heads if num_kv_heads is None else num_kv_heads,
        d_k=derived if d_k is None else d_k,
        d_v=derived if d_v is None else d_v,
        d_k_derived=d_k is None,
    )
