"""Which parameters a model is evaluated with: those it trains, or an average of them.

Schedule-free optimizers take gradients at y and keep z; evaluation uses x, an average
of past z, where y = β x + (1 − β) z (Defazio et al. 2024). `train.ema` has an average
of what was trained so far (Polyak and Juditsky 1992), whose weights fall by step.

A checkpoint holds the average as its `params`, and the whole training state beside it
as `training`. So a reader of checkpoints need not know the optimizer.
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
    """The state of an optimizer `with_ema`.

    Attributes:
      inner: of the optimizer itself.
      count: int32, updates made.
      average: of the parameters that are trained; their first values before any update.
    """

    inner: Any
    count: jax.Array
    average: Any


def with_ema(
    optimizer: optax.GradientTransformation, decay: float
) -> optax.GradientTransformation:
    """The optimizer, which also keeps an average of the parameters that it makes:

        averageₜ = Σᵢ dᵗ⁻ⁱ θᵢ / Σᵢ dᵗ⁻ⁱ,  i = 1 … t

    This is eₜ / (1 − dᵗ) of eₜ = d eₜ₋₁ + (1 − d) θₜ with e₀ = 0: as Adam's means, its
    weights have the sum 1 at every step, and the first values θ₀ have none.

    Args:
      optimizer: the last of a chain: what it returns is added to the parameters.
      decay: d, above 0 and below 1.
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
    """The variables to evaluate with: the average, where the optimizer keeps one."""
    averaging = _averaging(state)
    if averaging is None:
        return state.variables
    own = averaging.average if isinstance(averaging, Ema) else averaging.z
    every = freezing.paths(state.params)
    # It is of what is trained, and of nothing else.
    held = frozenset(every.keys() - freezing.paths(own).keys())
    trained, frozen = freezing.split(state.params, held)
    if not isinstance(averaging, Ema):
        shardings = jax.tree.map(lambda x: x.sharding, trained)
        average = optax.contrib.schedule_free_eval_params
        own = jax.jit(average, out_shardings=shardings)(averaging, trained)
    return state.variables | {'params': freezing.join(own, frozen)}


def to_save(state: TrainState) -> Any:
    """The tree of arrays that a checkpoint of this state holds."""
    if _averaging(state) is None:
        return state
    return variables(state) | {_TRAINING: state}


def to_restore(abstract: TrainState) -> Any:
    """The part of a checkpoint's tree that training resumes from."""
    if _averaging(abstract) is None:
        return abstract
    return {_TRAINING: abstract}


def restored(tree: Any) -> TrainState:
    """The training state in a tree that was restored as `to_restore` says."""
    return tree if isinstance(tree, TrainState) else tree[_TRAINING]


def _averaging(state: TrainState) -> Any:
    """The state of an optimizer that keeps an average; None where it does not."""

    def is_averaging(x):
        return isinstance(x, Ema | optax.contrib.ScheduleFreeState)

    parts = jax.tree.leaves(state.opt_state, is_leaf=is_averaging)
    return next(filter(is_averaging, parts), None)
