"""The runner's components by config field."""

from flaxformer_lite.config import variants
from flaxformer_lite.config.spec import Folder

SOURCES = Folder('experiments.data.sources', 'Source')
FILTERS = Folder('experiments.data.filters', 'Filter', may_be_empty=True)
TOKENIZERS = Folder('experiments.data.tokenizers', 'Tokenizer')
OBJECTIVES = Folder('experiments.data.objectives', 'Objective', may_be_empty=True)
HOOKS = Folder('experiments.hooks', 'Hook', may_be_empty=True)
METRICS = Folder('experiments.metrics', 'Metric')

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
