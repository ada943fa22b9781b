"""The sizes of a stack, which components receive by name."""

import dataclasses
from typing import Literal

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
