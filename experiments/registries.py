"""The runner's components by config field."""

from flaxformer_lite.config import variants
from flaxformer_lite.config.spec import Folder

SOURCES = Folder('experiments.data.sources', 'Source', group='flaxformer_lite.data')
FILTERS = Folder(
    'experiments.data.filters', 'Filter', True, group='flaxformer_lite.filters'
)
TOKENIZERS = Folder(
    'experiments.data.tokenizers', 'Tokenizer', group='flaxformer_lite.tokenizer'
)
OBJECTIVES = Folder(
    'experiments.data.objectives', 'Objective', True, group='flaxformer_lite.objective'
)
HOOKS = Folder('experiments.hooks', 'Hook', True, group='flaxformer_lite.hooks')
METRICS = Folder('experiments.metrics', 'Metric', group='flaxformer_lite.metrics')

FOLDERS = {
    'data': SOURCES,
    'filters': FILTERS,
    'tokenizer': TOKENIZERS,
    'objective': OBJECTIVES,
    'optimizer.schedule': variants.SCHEDULES,
    'train.loss': variants.LOSSES,
    'train.hooks': HOOKS,
    'evaluation.metrics': METRICS,
    'evaluation.decode': variants.STRATEGIES,
    'evaluation.processors': variants.PROCESSORS,
}
