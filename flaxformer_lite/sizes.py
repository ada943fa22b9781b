"""The sizes of a stack, which a model's parts are given by name."""

import dataclasses
from typing import Literal

Role = Literal['encoder', 'decoder', 'decoder_only', 'prefix_only', 'encoder_only']


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of one stack and of its attention; the defaults are the paper's base model.

    Attributes:
      d_model: the width of the residual stream.
      num_heads: query heads.
      num_kv_heads: key and value heads, a divisor of `num_heads`.
      d_k: the width of one head's queries and keys.
      d_v: the width of one head's values; free of d_k and of d_model.
      d_ff: the inner width of the feed-forward network.
      d_k_derived: whether d_k is d_model / num_heads, and so grows with d_model.
      role: which stack it is: the 'encoder' or 'decoder' of a pair, or one alone, of
        which 'prefix_only' is a decoder that sees all of the source.
      encoder_layers: the encoder's depth; 0 where there is none.
      decoder_layers: the decoder's depth; 0 where there is none.
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
        """The depth of this stack."""
        if self.role.startswith('encoder'):
            return self.encoder_layers
        return self.decoder_layers

    @property
    def causal(self) -> bool:
        """Whether a token sees only those before it."""
        return self.role.startswith('decoder')
