"""Root mean square normalisation (Zhang and Sennrich 2019)."""

from flaxformer_lite.norms.base import Norm, unit
from flaxformer_lite.ranges import Epsilon


class Rms(Norm):
    """x / √(E x² + ε) · γ over features, in float32."""

    biased = False
    epsilon: Epsilon = 1e-6

    def normalized(self, x_BTD, valid_BT):
        return unit(x_BTD, self.epsilon)
