"""Attention to a window of near tokens (Luong et al. 2015, §3.2; Child et al. 2019)."""

import jax.numpy as jnp

from flaxformer_lite.attention.base import Attention
from flaxformer_lite.ranges import Size


class Local(Attention):
    """Scaled dot-product attention to keys less than `window` positions away on either side."""

    window: Size = 16

    def __call__(self, q_BTHK, kv, *, pos_BT, mask_BHTS, **others):
        distance_BTS = jnp.abs(pos_BT[:, :, None] - kv.pos_BS[:, None, :])
        mask_BHTS = mask_BHTS & (distance_BTS < self.window)[:, None]
        return super().__call__(
            q_BTHK, kv, pos_BT=pos_BT, mask_BHTS=mask_BHTS, **others
        )
