"""Positions in embeddings, in queries and keys, or in attention scores (paper §3.5).

A model takes them as `positions`. A list is a pattern over layers: to use two kinds in
each layer, derive a class from one of them. Derive your own from `Positions`.

- `ALiBi`: scores fall linearly with the distance
- `Learned`: a learned vector for each position
- `NoPositions`: none
- `Rotary`: rotates queries and keys (RoPE)
- `Shaw`: learned vectors for clipped distances, added to keys and values
- `Sinusoidal`: the paper's sines and cosines
- `SinusoidalT2T`: in the order of Tensor2Tensor, sines first
- `T5`: a learned bias for each range of distances
- `TransformerXL`: scores from sinusoids of the distance
"""

from typing import TYPE_CHECKING

from flaxformer_lite.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from flaxformer_lite.positions.alibi import ALiBi as ALiBi
    from flaxformer_lite.positions.base import Positions as Positions
    from flaxformer_lite.positions.learned import Learned as Learned
    from flaxformer_lite.positions.none import NoPositions as NoPositions
    from flaxformer_lite.positions.rotary import Rotary as Rotary
    from flaxformer_lite.positions.shaw import Shaw as Shaw
    from flaxformer_lite.positions.sinusoidal import Sinusoidal as Sinusoidal
    from flaxformer_lite.positions.sinusoidal_t2t import SinusoidalT2T as SinusoidalT2T
    from flaxformer_lite.positions.t5 import T5 as T5
    from flaxformer_lite.positions.transformer_xl import TransformerXL as TransformerXL
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
