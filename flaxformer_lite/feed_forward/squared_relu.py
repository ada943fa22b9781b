"""Feed-forward network with squared ReLU (So et al. 2021, "Primer")."""

import jax

from flaxformer_lite.feed_forward.base import FeedForward


class SquaredReLU(FeedForward):
    """max(0, x W₁ + b₁)² W₂ + b₂."""

    def activation(self, h_BTF):
        return jax.numpy.square(jax.nn.relu(h_BTF))
