"""Adapters: which parameters train, and how they are merged into their matrices.

A model has adapters if its matrices do, such as those of `LoRA`:

    model = fl.Transformer(vocab_size=8000, dense=fl.dense.LoRA(rank=8))
    frozen = adapters.frozen_paths(model, params)
    state = init_state(model, optimizer, key, frozen=frozen)
    step = make_train_step(model, optimizer, frozen=frozen)
    …
    plain = model.clone(dense=fl.dense.Dense())
    logits = plain.apply(adapters.merge(model, state.variables), source, inputs)
"""

import dataclasses
from typing import Any

from flaxformer_lite.layers.dense.base import Dense
from flaxformer_lite.models.base import Model
from flaxformer_lite.training import freezing


def frozen_paths(model: Model, params: Any) -> frozenset[str]:
    """Returns the paths of the parameters that the model's adapters leave fixed.

    Args:
      params: Parameters of the model, or their shapes.

    Raises:
      ValueError: The model has no matrix that its adapters are for.
    """
    trained = model.dense.trained_parameters
    if not trained:
        return frozenset()
    paths = freezing.paths(params)
    frozen = frozenset(path for path in paths if path.rpartition('/')[2] not in trained)
    if len(frozen) == len(paths):
        first, *_, last = sorted(x[:-7] for x in paths if x.endswith('/kernel'))
        raise ValueError(
            f'dense: {type(model.dense).__name__} matches no weight matrix. Choose '
            f'from {first}, …, {last}.'
        )
    return frozen


def compute_alike(model: Model, other: Model) -> bool:
    """Returns whether equal parameters of two models' adapters have equal effects.

    Ignores `on`: the parameters show which matrices have adapters.
    """
    ours, theirs = model.dense, other.dense
    own = {field.name for field in dataclasses.fields(ours)}
    own -= {field.name for field in dataclasses.fields(Dense)} | {'on'}
    return type(ours) is type(theirs) and all(
        getattr(ours, name) == getattr(theirs, name) for name in own
    )


def merge(model: Model, variables: Any) -> Any:
    """Returns the variables of the model without adapters that computes the same.

    Layers may be stacked.

    Args:
      variables: {'params': …} of the model, float32.
    """
    return variables | {'params': _merge_layers(model, variables['params'])}


def _merge_layers(model: Model, params: Any) -> Any:
    if 'kernel' in params:
        return model.dense.merge(params)
    return {
        name: _merge_layers(model, inner) if isinstance(inner, dict) else inner
        for name, inner in params.items()
    }
