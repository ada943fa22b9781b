"""Cross-entropy with label smoothing (paper §5.4; Szegedy et al. 2016, §7)."""

from flaxformer_lite.losses.base import Loss, smoothed_cross_entropy
from flaxformer_lite.ops.loss_of_logits import cross_entropy
from flaxformer_lite.validation import Rate


class CrossEntropy(Loss):
    """−Σ_v q(v) log p(v), with q = (1 − ε) · label + ε / V over the whole vocabulary.

    Attributes:
      label_smoothing: ε.
    """

    label_smoothing: Rate = 0.1

    def token_losses(self, logits_BTV, labels_BT, *more):
        return smoothed_cross_entropy(logits_BTV, labels_BT, self.label_smoothing)

    def formula(self, padding):
        return cross_entropy(self.label_smoothing, padding)
