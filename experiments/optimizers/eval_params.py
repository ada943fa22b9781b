"""Which parameters a model is evaluated with: of schedule-free optimizers, an average.

They take gradients at y and keep z; evaluation uses x, an average of past z, where
y = β x + (1 − β) z (Defazio et al. 2024). A checkpoint holds x as its `params`, and the
whole training state beside it as `training`. So a reader of checkpoints need not know
the optimizer.
"""

from typing import Any

import jax
import optax

from flaxformer_lite.training import freezing
from flaxformer_lite.training.train_step import TrainState

_TRAINING = 'training'


def variables(state: TrainState) -> Any:
    """The variables to evaluate with: of a schedule-free optimizer the average."""
    averaging = _schedule_free(state)
    if averaging is None:
        return state.variables
    every = freezing.paths(state.params)
    # It keeps z of what it trains, and of nothing else.
    held = frozenset(every.keys() - freezing.paths(averaging.z).keys())
    trained, frozen = freezing.split(state.params, held)
    where = jax.tree.map(lambda x: x.sharding, trained)
    average = jax.jit(optax.contrib.schedule_free_eval_params, out_shardings=where)
    params = freezing.join(average(averaging, trained), frozen)
    return state.variables | {'params': params}


def to_save(state: TrainState) -> Any:
    """The tree of arrays that a checkpoint of this state holds."""
    if _schedule_free(state) is None:
        return state
    return variables(state) | {_TRAINING: state}


def to_restore(abstract: TrainState) -> Any:
    """The part of a checkpoint's tree that training resumes from."""
    if _schedule_free(abstract) is None:
        return abstract
    return {_TRAINING: abstract}


def restored(tree: Any) -> TrainState:
    """The training state in a tree that was restored as `to_restore` says."""
    return tree if isinstance(tree, TrainState) else tree[_TRAINING]


def _schedule_free(state: TrainState) -> Any:
    """The state of a schedule-free optimizer; None where the optimizer is another."""
    kind = optax.contrib.ScheduleFreeState
    parts = jax.tree.leaves(state.opt_state, is_leaf=lambda x: isinstance(x, kind))
    return next((part for part in parts if isinstance(part, kind)), None)
