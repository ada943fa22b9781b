"""What is tuned for speed or memory, and the formula that each tuned version computes.

Each file defines `reference`, the formula in a few lines, then the tuned version and
why it is faster. The public function beside them asks `choose`, the one place that
decides which of them runs:

- by default the tuned version; one for CPU only gives way to `reference` elsewhere;
- within `with flaxformer_lite.ops.use_reference():` the references, everywhere.

Tuned versions have gradients of their own, of which JAX can take no forward-mode
derivative. The references have none. So within `use_reference` all of `jax.jvp`,
Hessian-vector products and `jax.hessian` work, of a model's loss for example:

    def loss(params):
        return flaxformer_lite.loss_sums(model, {'params': params}, batch).loss

    with flaxformer_lite.ops.use_reference():
        product = jax.jvp(jax.grad(loss), (params,), (vector,))[1]

Results stay the same but for rounding and for dropout, which takes other random bits.
The references are slower and need more memory: all logits of a batch, for one.
"""

from flaxformer_lite.ops.choose import use_reference

__all__ = ['use_reference']
