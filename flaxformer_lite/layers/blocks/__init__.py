"""Blocks: the sublayers of a layer and their order.

A model takes one as `block`. Derive your own from `Block` or from one of the others.

- `Parallel`: all sublayers from the same input
- `Sequential`: the paper's, one sublayer after another
- `ValueResidual`: sequential, with the values of the first layer in later ones
"""

from typing import TYPE_CHECKING

from flaxformer_lite.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from flaxformer_lite.layers.blocks.base import Block as Block
    from flaxformer_lite.layers.blocks.parallel import Parallel as Parallel
    from flaxformer_lite.layers.blocks.sequential import Sequential as Sequential
    from flaxformer_lite.layers.blocks.value_residual import (
        ValueResidual as ValueResidual,
    )
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
