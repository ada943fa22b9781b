"""Root mean square normalisation (Zhang and Sennrich 2019)."""

from flaxformer_lite.norms.base import Norm
from flaxformer_lite.ops.rms import divide_by_rms
from flaxformer_lite.ranges import Epsilon


class Rms(Norm):
    """x / √(E x² + ε) ⊙ γ over features, in float32.

    Attributes:
      epsilon: ε.
    """

    biased = False
    epsilon: Epsilon = 1e-6

    def normalize(self, x_BTD):
        return divide_by_rms(x_BTD, self.epsilon, False)
