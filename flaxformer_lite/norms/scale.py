"""Scale normalization (Nguyen and Salazar 2019, "Transformers without Tears")."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.norms.base import Norm
from flaxformer_lite.validation import Epsilon


class ScaleNorm(Norm):
    """g · x / ‖x‖ over features, in float32, with one learned g, initially √d_model.

    Source: Nguyen and Salazar 2019. Use it with `fl.residual.PreNorm` for translation
    with little data, as the source does.

    Attributes:
      epsilon: Added to ‖x‖² inside the root.

    Examples:
      >>> import flaxformer_lite as fl
      >>> norm = fl.norms.ScaleNorm()
      >>> model = fl.Transformer(vocab_size=100, norm=norm)
    """

    divides_in: ClassVar[str | None] = '__call__'
    epsilon: Epsilon = 1e-6

    @nn.compact
    def __call__(self, x_BTD):
        x_BTD = x_BTD.astype(jnp.float32)
        init = nn.initializers.constant(x_BTD.shape[-1] ** 0.5)
        g = self.param('scale', init, ())
        square_BT1 = jnp.square(x_BTD).sum(-1, keepdims=True)
        inverse_BT1 = jax.lax.rsqrt(square_BT1 + self.epsilon)
        return g * x_BTD * inverse_BT1
