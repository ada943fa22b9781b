"""Losses of a batch's labels, given the logits.

    step = fl.make_train_step(model, optimizer, loss=fl.losses.Focal(gamma=1.0))

A list of losses is their sum. Derive your own from `Loss`.

- `CrossEntropy`: with label smoothing, the paper's (§5.4)
- `Distillation`: with the distribution of a teacher
- `Focal`: less weight for labels that are predicted well
- `RDrop`: with the divergence of two dropout passes
- `Sum`: several losses
- `ZLoss`: penalty of large normalizers
"""

from typing import TYPE_CHECKING

from flaxformer_lite.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from flaxformer_lite.losses.base import Loss as Loss
    from flaxformer_lite.losses.base import Sum as Sum
    from flaxformer_lite.losses.cross_entropy import CrossEntropy as CrossEntropy
    from flaxformer_lite.losses.distillation import Distillation as Distillation
    from flaxformer_lite.losses.focal import Focal as Focal
    from flaxformer_lite.losses.r_drop import RDrop as RDrop
    from flaxformer_lite.losses.z_loss import ZLoss as ZLoss
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
