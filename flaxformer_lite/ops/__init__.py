"""What is tuned for speed or memory, and the formula that each tuned version computes.

Each file defines `reference`, the formula in a few lines, then the tuned version and why
it is faster. The public function beside them asks `choose`, the one place that decides
which of them runs:

- by default the tuned version; where one is for CPU only, `reference` on other platforms;
- within `use_reference()` the references, everywhere. They have no custom gradients, so
  that forward-mode differentiation, `jax.hessian` and Hessian-vector products work too.
"""

from flaxformer_lite.ops.choose import use_reference

__all__ = ['use_reference']
