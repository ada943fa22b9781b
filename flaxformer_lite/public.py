"""The public names of `flaxformer_lite`."""

from flaxformer_lite import decoding as decoding
from flaxformer_lite import interventions as interventions
from flaxformer_lite import ops as ops
from flaxformer_lite import sharding as sharding
from flaxformer_lite.config import build as build
from flaxformer_lite.ensembling import ensemble as ensemble
from flaxformer_lite.ensembling import ensemble_variables as ensemble_variables
from flaxformer_lite.generation import generate as generate
from flaxformer_lite.interventions import intervene as intervene
from flaxformer_lite.introspection import Record as Record
from flaxformer_lite.introspection import attention_stats as attention_stats
from flaxformer_lite.introspection import record as record
from flaxformer_lite.scoring import TokenScores as TokenScores
from flaxformer_lite.scoring import log_probs as log_probs
from flaxformer_lite.training import schedules as schedules
from flaxformer_lite.training.batch import make_batch as make_batch
from flaxformer_lite.training.loss import loss_sums as loss_sums
from flaxformer_lite.training.loss_scale import LossScale as LossScale
from flaxformer_lite.training.train_step import TrainState as TrainState
from flaxformer_lite.training.train_step import init_state as init_state
from flaxformer_lite.training.train_step import make_train_step as make_train_step
