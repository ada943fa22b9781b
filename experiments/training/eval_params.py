"""What a model is evaluated with, where that is not what is trained: schedule-free optimizers.

They take gradients at y and keep z; what is evaluated is x, their average, y = β x + (1 − β) z
(Defazio et al. 2024). A checkpoint holds x as its `params`, and the whole state beside it as
`training`: who reads a checkpoint need not know the optimizer.
"""

from typing import Any

import jax
import optax

from experiments.runtime import devices
from flaxformer_lite.training.train_step import TrainState

_TRAINING = 'training'


def variables(state: TrainState) -> Any:
    """What `model.apply` takes to evaluate: of a schedule-free optimizer the average."""
    averaging = _schedule_free(state)
    if averaging is None:
        return state.variables
    average = jax.jit(
        optax.contrib.schedule_free_eval_params, out_shardings=devices.everywhere()
    )
    return state.variables | {'params': average(averaging, state.params)}


def to_save(state: TrainState) -> Any:
    """The tree that a checkpoint holds."""
    if _schedule_free(state) is None:
        return state
    return variables(state) | {_TRAINING: state}


def to_restore(abstract: TrainState) -> Any:
    """The part of that tree which training goes on from."""
    return abstract if _schedule_free(abstract) is None else {_TRAINING: abstract}


def restored(tree: Any) -> TrainState:
    """The state in what was restored."""
    return tree if isinstance(tree, TrainState) else tree[_TRAINING]


def _schedule_free(state: TrainState) -> Any:
    kind = optax.contrib.ScheduleFreeState
    parts = jax.tree.leaves(state.opt_state, is_leaf=lambda x: isinstance(x, kind))
    return next((part for part in parts if isinstance(part, kind)), None)
