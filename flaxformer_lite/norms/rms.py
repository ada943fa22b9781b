"""Root mean square normalization (Zhang and Sennrich 2019)."""

from typing import Annotated, ClassVar

import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.norms.base import Norm
from flaxformer_lite.ops.rms import divide_by_rms
from flaxformer_lite.validation import Epsilon, Range


class RMSNorm(Norm):
    """x / √(E x² + ε) ⊙ (c + w) over features, in float32.

    Source: Zhang and Sennrich 2019. Use it as a cheaper `LayerNorm`, as in recent
    language models.

    Attributes:
      offset: c, a constant: 1 in Gemma, 0 elsewhere. w is learned; c + w starts at 1.
      learned: Whether there is a w. Otherwise the gain is 1.

    Examples:
      >>> import flaxformer_lite as fl
      >>> norm = fl.norms.RMSNorm()
      >>> model = fl.Transformer(vocab_size=100, norm=norm)
    """

    biased = False
    divides_in: ClassVar[str | None] = 'normalize'
    epsilon: Epsilon = 1e-6
    offset: Annotated[float, Range(at_least=0, at_most=1)] = 0.0
    learned: bool = True

    def normalize(self, x_BTD):
        return divide_by_rms(x_BTD, self.epsilon, False)

    def gain(self, features):
        if not self.learned:
            return jnp.ones(features)
        init = nn.initializers.constant(1 - self.offset)
        return self.offset + self.param('scale', init, features)
