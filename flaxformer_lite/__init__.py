"""The Transformer of "Attention Is All You Need" and its variants, in JAX and Flax.

`build.model` makes a model of a config; `make_batch` makes the arrays that it is
trained on; `init_state` and `make_train_step` train it; `generate` decodes.
"""

from flaxformer_lite import decoding, ops
from flaxformer_lite.config import build
from flaxformer_lite.ensemble import ensemble, ensemble_variables
from flaxformer_lite.generation import generate
from flaxformer_lite.introspection import (
    Record,
    ablation_masks,
    attention_stats,
    record,
)
from flaxformer_lite.training import schedules
from flaxformer_lite.training.batch import make_batch
from flaxformer_lite.training.loss import loss_sums
from flaxformer_lite.training.train_step import (
    TrainState,
    init_state,
    make_train_step,
)

__version__ = '0.2.0'

__all__ = [
    'Record',
    'TrainState',
    'ablation_masks',
    'attention_stats',
    'build',
    'decoding',
    'ensemble',
    'ensemble_variables',
    'generate',
    'init_state',
    'loss_sums',
    'make_batch',
    'make_train_step',
    'ops',
    'record',
    'schedules',
]
