"""Layer normalization (Ba et al. 2016; paper §3.1)."""

from typing import ClassVar

from flaxformer_lite.norms.base import Norm
from flaxformer_lite.ops.rms import divide_by_rms
from flaxformer_lite.validation import Epsilon


class LayerNorm(Norm):
    """(x − E x) / √(Var x + ε) ⊙ γ + β over features, the variance biased.

    Source: Ba et al. 2016. It is the paper's norm (§3.1) and the default.

    Examples:
      >>> import flaxformer_lite as fl
      >>> norm = fl.norms.LayerNorm(epsilon=1e-5)
      >>> model = fl.Transformer(vocab_size=100, norm=norm)
    """

    divides_in: ClassVar[str | None] = 'normalize'
    centers: ClassVar[bool] = True
    epsilon: Epsilon = 1e-6

    def normalize(self, x_BTD):
        return divide_by_rms(x_BTD, self.epsilon, True)
