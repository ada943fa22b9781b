"""Residual connections around sublayers (paper §3.1).

A model takes one as `residual`. Derive your own from `Residual`.

- `DeepNorm`: post-norm with a scaled residual stream, for deep models
- `HyperConnections`, `ManifoldHyperConnections`: several residual streams
- `LayerScale`: pre-norm with learned scales of the sublayers' outputs
- `NGPT`: unit vectors, interpolated by learned rates
- `NoResidual`: none
- `PostNorm`: the paper's, LayerNorm(x + Sublayer(x))
- `PreNorm`: x + Sublayer(LayerNorm(x))
- `ReZero`: x + α Sublayer(x), with α = 0 at first
- `SandwichNorm`: pre-norm with a norm of the sublayer's output, too
"""

from typing import TYPE_CHECKING

from flaxformer_lite.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from flaxformer_lite.residual.base import Residual as Residual
    from flaxformer_lite.residual.deepnorm import DeepNorm as DeepNorm
    from flaxformer_lite.residual.hyper import HyperConnections as HyperConnections
    from flaxformer_lite.residual.layer_scale import LayerScale as LayerScale
    from flaxformer_lite.residual.mhc import (
        ManifoldHyperConnections as ManifoldHyperConnections,
    )
    from flaxformer_lite.residual.ngpt import NGPT as NGPT
    from flaxformer_lite.residual.none import NoResidual as NoResidual
    from flaxformer_lite.residual.post_norm import PostNorm as PostNorm
    from flaxformer_lite.residual.pre_norm import PreNorm as PreNorm
    from flaxformer_lite.residual.rezero import ReZero as ReZero
    from flaxformer_lite.residual.sandwich import SandwichNorm as SandwichNorm
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
