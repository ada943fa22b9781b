"""Layer normalization (Ba et al. 2016; paper §3.1)."""

from typing import ClassVar

from flaxformer_lite.norms.base import Norm
from flaxformer_lite.ops.rms import divide_by_rms
from flaxformer_lite.validation import Epsilon


class LayerNorm(Norm):
    """(x − E x) / √(Var x + ε) ⊙ γ + β over features, the variance biased, in float32.

    Attributes:
      epsilon: ε.

    Examples:
      >>> import jax
      >>> x_BTD = jax.numpy.array([[[1.0, 3.0]]])
      >>> print(LayerNorm().init_with_output(jax.random.key(0), x_BTD)[0].round(3))
      [[[-1.  1.]]]
    """

    divides_in: ClassVar[str | None] = 'normalize'
    centers: ClassVar[bool] = True
    epsilon: Epsilon = 1e-6

    def normalize(self, x_BTD):
        return divide_by_rms(x_BTD, self.epsilon, True)
