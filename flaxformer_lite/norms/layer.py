"""Layer normalisation (Ba et al. 2016; paper §3.1)."""

from flaxformer_lite.norms.base import Norm, unit
from flaxformer_lite.ranges import Epsilon


class Layer(Norm):
    """(x − E x) / √(Var x + ε) · γ + β over features, the variance biased, in float32."""

    epsilon: Epsilon = 1e-6

    def normalized(self, x_BTD, valid_BT):
        return unit(x_BTD, self.epsilon, centered=True)
