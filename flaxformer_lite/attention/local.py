"""Sliding-window attention (Luong et al. 2015, §3.2; Child et al. 2019)."""

from typing import Annotated

from flaxformer_lite.attention.base import ScaledDotProduct
from flaxformer_lite.kv_cache import NO_POSITION
from flaxformer_lite.validation import Range, Size


class Local(ScaledDotProduct):
    """Scaled dot-product attention to the keys near the query.

    Sources: Luong et al. 2015, §3.2; Child et al. 2019. Use it where near tokens
    suffice, for example in every other layer.

    Attributes:
      window: Keys must be fewer than `window` positions away.
      window_after: The limit for keys after the query. Defaults to `window`.

    Examples:
      >>> import flaxformer_lite as fl
      >>> pattern = [fl.attention.Local(window=64), fl.attention.Softmax()]
      >>> model = fl.Transformer(vocab_size=100, attention=pattern)
    """

    by_distance = True
    window: Size = 16
    window_after: Annotated[int | None, Range(at_least=1)] = None

    def __call__(self, q_BTHK, kv, *, positions_BT, mask_BHTS, **others):
        distance_BTS = positions_BT[:, :, None] - kv.positions_BS[:, None, :]
        is_global_BS = kv.positions_BS == NO_POSITION
        after = self.window if self.window_after is None else self.window_after
        near_BTS = (-after < distance_BTS) & (distance_BTS < self.window)
        near_BTS |= is_global_BS[:, None]
        return super().__call__(
            q_BTHK,
            kv,
            positions_BT=positions_BT,
            mask_BHTS=mask_BHTS & near_BTS[:, None],
            **others,
        )
