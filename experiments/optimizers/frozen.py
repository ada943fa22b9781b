"""Parameters that `train.freeze` and adapters exclude from training."""

import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from experiments.errors import UserError, user_errors
from experiments.runtime import mesh
from flaxformer_lite import adapters
from flaxformer_lite.layers.scanned_stack import stack_layers
from flaxformer_lite.models.base import Model
from flaxformer_lite.training import freezing
from flaxformer_lite.validation import quote


def paths(pattern: str, model: Model) -> frozenset[str]:
    """Returns the paths of the model's frozen parameters.

    Adapters (`model.dense`) leave all other parameters fixed.

    Args:
      pattern: `train.freeze`. It is searched in paths with separate layers, such as
        'encoder/layer_0/feed_forward/up/kernel', also if the model scans its layers.
    """
    frozen = frozenset()
    if model.dense.trained_parameters:
        params = _params(model)
        with user_errors():
            frozen = adapters.frozen_paths(model, params)
    if not pattern:
        return frozen
    separate = freezing.paths(_params(model.with_separate_layers()))
    found = {path: re.search(pattern, path) is not None for path in sorted(separate)}
    where = f'train.freeze={quote(pattern)}'
    if not any(found.values()):
        first, *_, last = found
        raise UserError(
            f'{where} matches no parameter. The parameters are {first}, …, {last}.'
        )
    if model.scans_layers:
        found = _stacked_paths(found, model.layer_periods, where)
    matching = {path for path, is_frozen in found.items() if is_frozen}
    if len(frozen | matching) == len(found):
        raise UserError(
            f'{where} matches every parameter that would train. Narrow the pattern.'
        )
    return frozen | matching


def _stacked_paths(
    found: dict[str, bool], periods: Mapping[str, int], where: str
) -> dict[str, bool]:
    """Maps separate layers' flags, which must agree, to stacked parameters."""
    flags = freezing.from_paths({path: jnp.asarray(x) for path, x in found.items()})
    stacked = {}
    for path, flag in freezing.paths(stack_layers(flags, periods)).items():
        if flag.any() != flag.all():
            raise UserError(
                f'{where} matches only some of the layers that model.scan_layers=True '
                f'stacks in {path}. Freeze all or none of them, or set '
                'model.scan_layers=False.'
            )
        stacked[path] = bool(flag.all())
    return stacked


def _params(model: Model) -> Any:
    # Their paths don't depend on the vocabulary size, so all sizes share a trace.
    key = jax.eval_shape(jax.random.key, 0)
    with user_errors():
        variables = mesh.first_variables.eval_shape(model.clone(vocab_size=1), key, {})
    return variables['params']
