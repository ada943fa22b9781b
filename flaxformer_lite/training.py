"""Training as pure functions: a state, a batch and a key in, the next state and metrics out."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from flaxformer_lite.losses import Sums, smoothed_cross_entropy
from flaxformer_lite.architectures.base import Model

Batch = Mapping[str, jax.Array]
# A batch's arrays, int32 (rows, length): tokens, 0 where there is none; inputs are the labels
# shifted right behind a start token; segments count a row's pairs from 1, positions are in each.
ARRAYS = (
    *('source', 'source_segments', 'source_positions'),
    *('inputs', 'labels', 'target_segments', 'target_positions'),
)


class State(struct.PyTreeNode):
    """All that training carries from one step to the next.

    Attributes:
      step: int32, updates tried so far.
      params: float32 parameters.
      opt_state: the optimizer's.
      skipped: int32, how many updates were not finite and so were not made.
    """

    step: jax.Array
    params: Any
    opt_state: optax.OptState
    skipped: jax.Array


class Metrics(struct.PyTreeNode):
    """One step's figures: the loss sums, and the norm of the mean gradient before clipping."""

    sums: Sums
    gradient_norm: jax.Array


def init_params(model: Model, key: jax.Array) -> Any:
    """The first parameters, which depend on the key and the model alone."""
    token_BT = jnp.ones((1, 1), jnp.int32)
    return model.init(key, token_BT, token_BT)['params']


def init(model: Model, optimizer: optax.GradientTransformation, key: jax.Array) -> State:
    """The first state."""
    params = init_params(model, key)
    # Two zeros: one array in two places could not be donated.
    step, skipped = jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)
    return State(step, params, optimizer.init(params), skipped)


def loss_sums(
    model: Model,
    params: Any,
    batch: Batch,
    *,
    label_smoothing: float = 0.0,
    dropout_key: jax.Array | None = None,
) -> Sums:
    """The loss's sums over a batch of the arrays that `ARRAYS` names."""
    h_BTD, table_VD = model.apply(
        {'params': params},
        batch['source'],
        batch['inputs'],
        batch['source_segments'],
        batch['target_segments'],
        batch['source_positions'],
        batch['target_positions'],
        method='outputs',
        rngs=None if dropout_key is None else {'dropout': dropout_key},
    )
    return smoothed_cross_entropy(h_BTD, table_VD, batch['labels'], label_smoothing, model.dtype)


def make_step(
    model: Model,
    optimizer: optax.GradientTransformation,
    *,
    label_smoothing: float = 0.1,
    accumulate: int = 1,
) -> Callable[[State, Batch, jax.Array], tuple[State, Metrics]]:
    """The training step as a pure function (state, batch, dropout key) → (state, metrics).

    The loss is the mean over the batch's tokens. An update that is not finite is not made, so the
    state stays good; `skipped` counts it.

    Args:
      accumulate: the batch is worked off in so many parts, its rows divided among them evenly, and
        their gradients are summed: the same update in a part of the memory.

    Raises:
      ValueError: when the step is traced, if `accumulate` does not divide the rows.
    """

    def sums_and_gradient(params, batch, key):
        def loss(params):
            sums = loss_sums(model, params, batch, label_smoothing=label_smoothing, dropout_key=key)
            return sums.loss, sums

        gradient, sums = jax.grad(loss, has_aux=True)(params)
        return sums, gradient

    def total(params, batch, key):
        if accumulate == 1:
            return sums_and_gradient(params, batch, key)
        parts = jax.tree.map(lambda x: _parts(x, accumulate), batch)
        keys = jax.random.split(key, accumulate)
        zeros = jax.tree.map(
            lambda x: jnp.zeros(x.shape, x.dtype),
            jax.eval_shape(sums_and_gradient, params, jax.tree.map(lambda x: x[0], parts), key),
        )

        def add(carry, part):
            return jax.tree.map(jnp.add, carry, sums_and_gradient(params, *part)), None

        return jax.lax.scan(add, zeros, (parts, keys))[0]

    def step(state: State, batch: Batch, key: jax.Array) -> tuple[State, Metrics]:
        sums, gradient = total(state.params, batch, jax.random.fold_in(key, state.step))
        gradient = jax.tree.map(lambda g: g / jnp.maximum(sums.tokens, 1), gradient)
        norm = optax.tree.norm(gradient)
        updates, opt_state = optimizer.update(gradient, state.opt_state, state.params)
        new = state.replace(params=optax.apply_updates(state.params, updates), opt_state=opt_state)
        finite = jnp.isfinite(sums.loss) & jnp.isfinite(norm)
        kept = jax.tree.map(lambda new, old: jnp.where(finite, new, old), new, state)
        kept = kept.replace(step=state.step + 1, skipped=state.skipped + ~finite)
        return kept, Metrics(sums, norm)

    return step


def _parts(x_BT: jax.Array, count: int) -> jax.Array:
    """(B, T) → (count, B / count, T): neighbours apart, so that every device has some of each."""
    if len(x_BT) % count:
        raise ValueError(f'accumulate={count} does not divide the {len(x_BT)} rows of a batch')
    return jnp.swapaxes(x_BT.reshape(len(x_BT) // count, count, *x_BT.shape[1:]), 0, 1)
