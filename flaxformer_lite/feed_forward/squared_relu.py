"""Feed-forward network with squared ReLU (So et al. 2021, "Primer")."""

import jax

from flaxformer_lite.feed_forward.base import FeedForward


class SquaredReLU(FeedForward):
    """max(0, x W₁ + b₁)² W₂ + b₂.

    Source: So et al. 2021. Use it for language models, as the source does.

    Examples:
      >>> import flaxformer_lite as fl
      >>> feed_forward = fl.feed_forward.SquaredReLU()
      >>> model = fl.Transformer(vocab_size=100, feed_forward=feed_forward)
    """

    def activation(self, h_BTF):
        return jax.numpy.square(jax.nn.relu(h_BTF))
