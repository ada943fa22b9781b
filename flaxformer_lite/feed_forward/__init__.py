"""Position-wise feed-forward networks (paper §3.3).

A model takes one as `feed_forward`. Derive your own from `FeedForward`, or from `Gated`
if one linear map gates another.

- `GEGLU`, `SwiGLU`, `GatedTanh`: gated by GELU, SiLU and tanh
- `GELU`, `ReLU`, `SiLU`, `SquaredReLU`: one activation; `ReLU` is the paper's
- `Linear`: no activation
- `MixtureOfExperts`: each token uses some of several networks
"""

from typing import TYPE_CHECKING

from flaxformer_lite.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from flaxformer_lite.feed_forward.base import FeedForward as FeedForward
    from flaxformer_lite.feed_forward.base import Gated as Gated
    from flaxformer_lite.feed_forward.gated_tanh import GatedTanh as GatedTanh
    from flaxformer_lite.feed_forward.geglu import GEGLU as GEGLU
    from flaxformer_lite.feed_forward.gelu import GELU as GELU
    from flaxformer_lite.feed_forward.linear import Linear as Linear
    from flaxformer_lite.feed_forward.mixture import (
        MixtureOfExperts as MixtureOfExperts,
    )
    from flaxformer_lite.feed_forward.relu import ReLU as ReLU
    from flaxformer_lite.feed_forward.silu import SiLU as SiLU
    from flaxformer_lite.feed_forward.squared_relu import SquaredReLU as SquaredReLU
    from flaxformer_lite.feed_forward.swiglu import SwiGLU as SwiGLU
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
