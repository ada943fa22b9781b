"""Attention to a window of near tokens (Luong et al. 2015, §3.2; Child et al. 2019)."""

import jax.numpy as jnp

from flaxformer_lite.attention.base import ScaledDotProduct
from flaxformer_lite.ranges import Size


class Local(ScaledDotProduct):
    """Scaled dot-product attention to the keys near the query.

    Attributes:
      window: keys must be less than so many positions away, on either side.
    """

    window: Size = 16

    def __call__(self, q_BTHK, kv, *, positions_BT, mask_BHTS, **others):
        distance_BTS = positions_BT[:, :, None] - kv.positions_BS[:, None, :]
        near_BTS = jnp.abs(distance_BTS) < self.window
        return super().__call__(
            q_BTHK,
            kv,
            positions_BT=positions_BT,
            mask_BHTS=mask_BHTS & near_BTS[:, None],
            **others,
        )
