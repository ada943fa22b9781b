"""Initializers of a model's matrices.

A model takes one as `initializer`. Derive your own from `Init`.

- `DeepNorm`: Xavier, smaller for the values and outputs of deep models
- `Kaiming`: variance 2 / inputs
- `MuP`: variances by which the best learning rate doesn't depend on the width
- `Normal`: a normal distribution of constant width
- `Xavier`: uniform, with variance 2 / (inputs + outputs)
"""

from typing import TYPE_CHECKING

from flaxformer_lite.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from flaxformer_lite.init.base import Init as Init
    from flaxformer_lite.init.deepnorm import DeepNorm as DeepNorm
    from flaxformer_lite.init.kaiming import Kaiming as Kaiming
    from flaxformer_lite.init.mu_p import MuP as MuP
    from flaxformer_lite.init.normal import Normal as Normal
    from flaxformer_lite.init.xavier import Xavier as Xavier
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
