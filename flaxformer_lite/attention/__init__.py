"""Attention: maps queries, keys and values to outputs (paper §3.2.1).

A model takes one as `attention`. Derive your own from `Attention`, or from
`ScaledDotProduct` if it changes the softmax of Q Kᵀ / √d_k.

- `Additive`: scores from a network of one layer (Bahdanau et al. 2015)
- `Bilinear`: scores q W k (Luong et al. 2015)
- `Blockwise`: `Softmax` in blocks of keys, in less memory
- `Cosine`: scores of unit vectors, with a learned temperature
- `Differential`, `DifferentialV2`: difference of two attention maps
- `Flash`: `Softmax` by cuDNN, on a GPU
- `Forgetting`: softmax with a gate that forgets older keys
- `Gated`: softmax whose heads a sigmoid gates
- `Linear`: a feature map instead of the softmax, linear in the length
- `Local`: softmax over a window of positions
- `ReLU`, `Sigmoid`: other functions than the softmax
- `Sink`: softmax with a learned logit that takes attention from the keys
- `Softmax`: the paper's, softmax(Q Kᵀ / √d_k) V
- `TalkingHeads`: softmax with linear maps over the heads around it

`scores` and `__call__` of an attention get a `KeyValues`, the projected tokens.
"""

from typing import TYPE_CHECKING

from flaxformer_lite.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from flaxformer_lite.attention.additive import Additive as Additive
    from flaxformer_lite.attention.base import Attention as Attention
    from flaxformer_lite.attention.base import ScaledDotProduct as ScaledDotProduct
    from flaxformer_lite.attention.bilinear import Bilinear as Bilinear
    from flaxformer_lite.attention.blockwise import Blockwise as Blockwise
    from flaxformer_lite.attention.cosine import Cosine as Cosine
    from flaxformer_lite.attention.differential import Differential as Differential
    from flaxformer_lite.attention.differential_v2 import (
        DifferentialV2 as DifferentialV2,
    )
    from flaxformer_lite.attention.flash import Flash as Flash
    from flaxformer_lite.attention.forgetting import Forgetting as Forgetting
    from flaxformer_lite.attention.gated import Gated as Gated
    from flaxformer_lite.attention.linear import Linear as Linear
    from flaxformer_lite.attention.local import Local as Local
    from flaxformer_lite.attention.relu import ReLU as ReLU
    from flaxformer_lite.attention.sigmoid import Sigmoid as Sigmoid
    from flaxformer_lite.attention.sink import Sink as Sink
    from flaxformer_lite.attention.softmax import Softmax as Softmax
    from flaxformer_lite.attention.talking_heads import TalkingHeads as TalkingHeads
    from flaxformer_lite.kv_cache import KeyValues as KeyValues
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
