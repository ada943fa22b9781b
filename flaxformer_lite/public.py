"""What `import flaxformer_lite` offers by name; see the package's own docstring."""

from flaxformer_lite import decoding, ops, sharding
from flaxformer_lite.config import build
from flaxformer_lite.ensembling import ensemble, ensemble_variables
from flaxformer_lite.generation import generate
from flaxformer_lite.introspection import (
    Record,
    ablation_masks,
    attention_stats,
    record,
)
from flaxformer_lite.pretrained.load import (
    describe_pretrained,
    from_pretrained,
    to_pretrained,
)
from flaxformer_lite.training import schedules
from flaxformer_lite.training.batch import make_batch
from flaxformer_lite.training.loss import loss_sums
from flaxformer_lite.training.train_step import (
    TrainState,
    init_state,
    make_train_step,
)

__all__ = [
    'Record',
    'TrainState',
    'ablation_masks',
    'attention_stats',
    'build',
    'decoding',
    'describe_pretrained',
    'ensemble',
    'ensemble_variables',
    'from_pretrained',
    'generate',
    'init_state',
    'loss_sums',
    'make_batch',
    'make_train_step',
    'ops',
    'record',
    'schedules',
    'sharding',
    'to_pretrained',
]
