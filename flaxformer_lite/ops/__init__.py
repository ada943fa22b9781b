"""Operations tuned for speed or memory, each with the formula that it computes.

Each file defines `reference`, the formula in a few lines, then the tuned version and
why it is faster. The public function selects one of them through `choose`:

- By default, it runs the tuned version. Versions for one platform only fall back to
  `reference` elsewhere.
- Within `with flaxformer_lite.ops.use_reference():`, it always runs the reference.

Most tuned versions define custom gradients, which exclude forward mode.
References do not, so `jax.jvp`, Hessian-vector products and `jax.hessian` work
within `use_reference`, for example for the loss of a model:

    def loss(params):
        return flaxformer_lite.loss_sums(model, {'params': params}, batch).loss

    with flaxformer_lite.ops.use_reference():
        product = jax.jvp(jax.grad(loss), (params,), (vector,))[1]

Results agree up to rounding, except for dropout, which draws other random bits. The
references are slower and need more memory, such as for all logits of a batch.
"""

from flaxformer_lite.ops.choose import use_reference

__all__ = ['use_reference']
