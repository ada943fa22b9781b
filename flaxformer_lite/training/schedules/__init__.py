"""Learning-rate schedules.

    optimizer = optax.adam(fl.schedules.Noam(d_model=512, warmup=4000))

They are optax schedules: functions of the number of updates. Derive your own from
`Schedule`.

- `Cosine`: linear warmup, then cosine decay
- `Noam`: the paper's (§5.3), linear warmup, then the inverse square root
"""

from typing import TYPE_CHECKING

from flaxformer_lite.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from flaxformer_lite.training.schedules.base import Schedule as Schedule
    from flaxformer_lite.training.schedules.cosine import Cosine as Cosine
    from flaxformer_lite.training.schedules.noam import Noam as Noam
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
