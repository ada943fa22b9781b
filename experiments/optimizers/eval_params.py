"""The parameters that a model is evaluated with: trained or averaged.

Schedule-free optimizers take gradients at y = β x + (1 − β) z and store z. Evaluation
uses x, an average of past z (Defazio et al. 2024). `train.ema` averages the parameters
trained so far (Polyak and Juditsky 1992), with decaying weights.

A checkpoint holds the average as its `params`, and the training state as `training`, so
readers need not know the optimizer.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from flaxformer_lite.training import freezing
from flaxformer_lite.training.train_step import TrainState

_TRAINING = 'training'


class Ema(NamedTuple):
    """The state of an optimizer from `with_ema`.

    Attributes:
      count: Number of updates, int32.
      average: At first the initial parameters.
    """

    inner: Any
    count: jax.Array
    average: Any


def with_ema(
    optimizer: optax.GradientTransformation, decay: float
) -> optax.GradientTransformation:
    """Wraps an optimizer to also keep an average of the parameters:

        averageₜ = Σᵢ dᵗ⁻ⁱ θᵢ / Σᵢ dᵗ⁻ⁱ,  i = 1 … t

    This is eₜ / (1 − dᵗ) with eₜ = d eₜ₋₁ + (1 − d) θₜ and e₀ = 0.

    Args:
      optimizer: Last of a chain, whose updates are added to the parameters.
      decay: d, in (0, 1).
    """

    def init(params):
        return Ema(optimizer.init(params), jnp.zeros((), jnp.int32), params)

    def update(updates: Any, state: Any, params: Any = None):
        updates, inner = optimizer.update(updates, state.inner, params)
        count = state.count + 1
        share = (1 - decay) / -jnp.expm1(count * math.log(decay))
        new = optax.apply_updates(params, updates)
        average = optax.incremental_update(new, state.average, share)
        return updates, Ema(inner, count, average)

    return optax.GradientTransformation(init, update)


def variables(state: TrainState) -> Any:
    """Returns the variables for evaluation: the average if the optimizer keeps one."""
    averaging = _averaging(state)
    if averaging is None:
        return state.variables
    own = averaging.average if isinstance(averaging, Ema) else averaging.z
    params_by_path = freezing.paths(state.params)
    # The average covers the trained parameters only.
    frozen_paths = frozenset(params_by_path.keys() - freezing.paths(own).keys())
    trained, frozen = freezing.split(state.params, frozen_paths)
    if not isinstance(averaging, Ema):
        shardings = jax.tree.map(lambda x: x.sharding, trained)
        average = optax.contrib.schedule_free_eval_params
        own = jax.jit(average, out_shardings=shardings)(averaging, trained)
    return state.variables | {'params': freezing.join(own, frozen)}


def to_save(state: TrainState, base_paths: frozenset[str] = frozenset()) -> Any:
    """Returns the arrays of a checkpoint, without the parameters in `base_paths`."""
    if _averaging(state) is None:
        return _without_paths(state, base_paths)
    found = variables(state)
    own, _ = freezing.split(found['params'], base_paths)
    return found | {'params': own, _TRAINING: _without_paths(state, base_paths)}


def to_restore(abstract: TrainState, base_paths: frozenset[str] = frozenset()) -> Any:
    """Returns the subtree of a checkpoint that training resumes from."""
    own = _without_paths(abstract, base_paths)
    return own if _averaging(abstract) is None else {_TRAINING: own}


def restored(tree: Any) -> TrainState:
    """Returns the training state in a restored tree."""
    return tree if isinstance(tree, TrainState) else tree[_TRAINING]


def _without_paths(state: TrainState, base_paths: frozenset[str]) -> TrainState:
    if not base_paths:
        return state
    own, _ = freezing.split(state.params, base_paths)
    return state.replace(params=own)


def _averaging(state: TrainState) -> Any:

    def is_averaging(x):
        return isinstance(x, Ema | optax.contrib.ScheduleFreeState)

    parts = jax.tree.leaves(state.opt_state, is_leaf=is_averaging)
    return next(filter(is_averaging, parts), None)
