"""The paper's feed-forward network (§3.3, equation 2)."""

from flaxformer_lite.feed_forward.base import FeedForward
from flaxformer_lite.ops.relu import relu


class Relu(FeedForward):
    """max(0, x W₁ + b₁) W₂ + b₂."""

    def activation(self, h_BTF):
        # Rounded first, which gives the same: so it is what W₂ takes and keeps.
        return relu(h_BTF.astype(self.dense.dtype))
