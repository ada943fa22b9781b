"""Cross-entropy with label smoothing (paper §5.4; Szegedy et al. 2016, §7)."""

from flaxformer_lite.losses.base import Loss, smoothed_cross_entropy
from flaxformer_lite.ops.loss_of_logits import cross_entropy
from flaxformer_lite.validation import Rate


class CrossEntropy(Loss):
    """−Σ_v q(v) log p(v), with q = (1 − ε) · label + ε / V over the whole vocabulary.

    Sources: Vaswani et al. 2017, §5.4; Szegedy et al. 2016, §7. It is the default, with
    ε = 0.1.

    Attributes:
      label_smoothing: ε.

    Examples:
      >>> import jax.numpy as jnp
      >>> batch = {'labels': jnp.array([[1, 0]])}
      >>> losses = CrossEntropy(label_smoothing=0.0)(jnp.zeros((1, 2, 4)), batch)
      >>> print(losses, jnp.log(4.0))
      [[1.3862944 1.3862944]] 1.3862944
    """

    label_smoothing: Rate = 0.1

    def __call__(self, logits, batch):
        return smoothed_cross_entropy(logits, batch['labels'], self.label_smoothing)

    def formula(self, padding):
        return cross_entropy(self.label_smoothing, padding)
