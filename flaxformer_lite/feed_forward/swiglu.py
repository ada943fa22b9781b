"""Gated feed-forward network with Swish (Shazeer 2020, equation 6)."""

import jax

from flaxformer_lite.feed_forward.base import Gated


class SwiGLU(Gated):
    """(Swish(x W) ⊙ x V) W₂.

    Examples:
      >>> import jax, jax.numpy as jnp
      >>> from flaxformer_lite.sizes import Sizes
      >>> network = SwiGLU(sizes=Sizes(d_model=4, d_ff=16))

      >>> shapes = jax.eval_shape(network.init, jax.random.key(0), jnp.ones((1, 3, 4)))
      >>> sorted(shapes['params']), shapes['params']['gate']['kernel'].shape
      (['down', 'gate', 'up'], (4, 16))
    """

    def activation(self, h_BTF):
        return jax.nn.silu(h_BTF)
