"""Feed-forward network with ReLU, the paper's (§3.3, equation 2)."""

from flaxformer_lite.feed_forward.base import FeedForward
from flaxformer_lite.ops.relu import relu


class ReluFeedForward(FeedForward):
    """max(0, x W₁ + b₁) W₂ + b₂.

    Examples:
      >>> import jax, jax.numpy as jnp
      >>> from flaxformer_lite.sizes import Sizes
      >>> network = ReluFeedForward(sizes=Sizes(d_model=4, d_ff=16), bias=False)

      >>> shapes = jax.eval_shape(network.init, jax.random.key(0), jnp.ones((1, 3, 4)))
      >>> jax.tree.map(jnp.shape, shapes['params'])
      {'down': {'kernel': (16, 4)}, 'up': {'kernel': (4, 16)}}
    """

    def activation(self, h_BTF):
        # Rounding before ReLU gives the same result, and the residual already has the
        # dtype that W₂ takes.
        return relu(h_BTF.astype(self.dense.dtype))
