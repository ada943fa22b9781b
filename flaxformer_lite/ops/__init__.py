"""Operations tuned for speed or memory, each with the formula that it computes.

Each file defines `reference`, the formula, then the tuned version and why it is faster.
The public function runs `reference` within `use_reference` and on platforms without a
tuned version.

Most tuned versions define custom gradients, which exclude forward mode. Within
`use_reference`, `jax.jvp`, Hessian-vector products and `jax.hessian` work.

Results agree up to rounding; dropout draws other random bits.
"""

from typing import TYPE_CHECKING

from flaxformer_lite.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from flaxformer_lite.ops.choose import use_reference as use_reference
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
