"""Rotary positions (Su et al. 2021, "RoFormer", equation 15)."""

from typing import Annotated

import jax.numpy as jnp

from flaxformer_lite.positions.base import Positions
from flaxformer_lite.validation import Positive, Range


class Rotary(Positions):
    """Rotation of query and key features 2i, 2i + 1 by pos / scale · λ^(−2i / d_k).

    Source: Su et al. 2021, equation 15. Use it as in recent language models; scores
    then depend only on distances.

    Attributes:
      max_wavelength: λ.
      scale: Position interpolation: divides positions (Chen et al. 2023, "Extending
        Context Window …").

    Raises:
      ValueError: d_k is odd.

    Examples:
      >>> import flaxformer_lite as fl
      >>> positions = fl.positions.Rotary()
      >>> model = fl.Transformer(vocab_size=100, positions=positions)
    """

    max_wavelength: Annotated[float, Range(at_least=1)] = 10000.0
    scale: Positive = 1.0

    def __post_init__(self):
        super().__post_init__()
        if self.sizes.d_k % 2:
            raise ValueError(
                f'd_k must be even for rotary positions, not {self.sizes.d_k}'
            )

    def rotate(self, x_BTHK, positions_BT):
        angle = self._angles(positions_BT)[:, :, None]
        sin = jnp.sin(angle)
        cos = jnp.cos(angle)
        even = x_BTHK[..., 0::2]
        odd = x_BTHK[..., 1::2]
        new_even = even * cos - odd * sin
        new_odd = even * sin + odd * cos
        pairs = jnp.stack([new_even, new_odd], -1)
        return pairs.reshape(x_BTHK.shape)

    def _angles(self, positions_BT):
        d_k = self.sizes.d_k
        exponent = -jnp.arange(0, d_k, 2, dtype=jnp.float32) / d_k
        rate = self.max_wavelength**exponent
        positions_BT = positions_BT.astype(jnp.float32) / self.scale
        return positions_BT[:, :, None] * rate[None, None]
