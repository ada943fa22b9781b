"""The runner's components by config field."""

from typing import Any

from experiments.errors import user_errors
from flaxformer_lite.config import variants
from flaxformer_lite.config.spec import Component, Folder, Spec

SOURCES = Folder('experiments.data.sources', 'Source', group='flaxformer_lite.data')
FILTERS = Folder(
    'experiments.data.filters', 'Filter', True, True, 'flaxformer_lite.filters'
)
TOKENIZERS = Folder(
    'experiments.data.tokenizers', 'Tokenizer', True, group='flaxformer_lite.tokenizer'
)
OBJECTIVES = Folder(
    'experiments.data.objectives',
    'Objective',
    may_be_empty=True,
    group='flaxformer_lite.objective',
)
HOOKS = Folder('experiments.hooks', 'Hook', True, True, 'flaxformer_lite.hooks')
METRICS = Folder('experiments.metrics', 'Metric', True, group='flaxformer_lite.metrics')

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


def folder(field: str) -> Folder | None:
    """Returns the folder of a field; None if it has none, such as `optimizer.name`."""
    if field.startswith('model.'):
        return variants.FOLDERS.get(field.rpartition('.')[2])
    return FOLDERS.get(field)


def entries(field: str, spec: Spec | None) -> tuple[Component, ...]:
    """Returns the components of a field; `()` if it is empty."""
    if spec is None:
        return ()
    with user_errors(f'{field}: '):
        return Component.of(spec, FOLDERS[field]).entries


def make(field: str, spec: Spec | None, /, **given: Any) -> Any:
    """Builds the component of a field; returns None if it is empty."""
    components = list(make_all(field, spec, **given).values())
    return components[0] if components else None


def make_all(field: str, spec: Spec | None, /, **given: Any) -> dict[str, Any]:
    """Builds the components of a field, by text."""
    with user_errors(f'{field}: '):
        return {x.text: x.make(**given) for x in entries(field, spec)}
