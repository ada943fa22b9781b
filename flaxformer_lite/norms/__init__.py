"""Normalization layers.

A model takes one as `norm`; `fl.residual` determines where it is applied. Derive your
own from `Norm`.

- `BatchNorm`: over the tokens of a batch
- `DynamicTanh`: tanh(α x) instead of statistics
- `Identity`: none
- `LayerNorm`: the paper's
- `RMSNorm`: divides by the root mean square
- `ScaleNorm`: unit vectors with one learned length
"""

from typing import TYPE_CHECKING

from flaxformer_lite.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from flaxformer_lite.norms.base import Norm as Norm
    from flaxformer_lite.norms.batch import BatchNorm as BatchNorm
    from flaxformer_lite.norms.dynamic_tanh import DynamicTanh as DynamicTanh
    from flaxformer_lite.norms.identity import Identity as Identity
    from flaxformer_lite.norms.layer import LayerNorm as LayerNorm
    from flaxformer_lite.norms.rms import RMSNorm as RMSNorm
    from flaxformer_lite.norms.scale import ScaleNorm as ScaleNorm
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
