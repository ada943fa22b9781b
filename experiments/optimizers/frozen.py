"""Parameters that `train.freeze` and adapters exclude from training."""

import dataclasses
from typing import Any

import jax

from experiments.errors import user_errors
from experiments.runtime import mesh
from flaxformer_lite import adapters
from flaxformer_lite.models.base import Model
from flaxformer_lite.training import freezing


def paths(pattern: str, model: Model) -> frozenset[str]:
    """Returns the paths of the model's frozen parameters.

    Adapters (`model.dense`) leave all other parameters fixed.

    Args:
      pattern: `train.freeze`, as in `freezing.matching`.
    """
    if not (pattern or model.dense.trained_parameters):
        return frozenset()
    params = _params(model)
    with user_errors():
        frozen = adapters.frozen_paths(model, params)
        if pattern:
            frozen = freezing.matching(pattern, params, frozen, 'train.freeze')
    return frozen


def _params(model: Model) -> Any:
    # Their paths don't depend on the vocabulary size, so all sizes share a trace.
    vocab_size = 1 + max(dataclasses.astuple(model.special_tokens))
    small = model.clone(vocab_size=vocab_size)
    key = jax.eval_shape(jax.random.key, 0)
    with user_errors():
        variables = mesh.first_variables.eval_shape(small, key, {})
    return variables['params']
