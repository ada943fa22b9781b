"""Training as pure functions: a state, a batch and a key in, the next state and metrics out."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from flaxformer_lite.architectures.base import Model
from flaxformer_lite.learning import Batch, Learnt, learn
from flaxformer_lite.losses import Sums


class State(struct.PyTreeNode):
    """All that training carries from one step to the next.

    Attributes:
      step: int32, updates tried so far.
      skipped: int32, how many updates were not finite and so were not made.
      statistics: what a norm over batches has seen of them; {} without one.
    """

    step: jax.Array
    params: Any
    opt_state: optax.OptState
    skipped: jax.Array
    statistics: Any = struct.field(default_factory=dict)

    @property
    def variables(self) -> Any:
        """What `model.apply` takes."""
        found = {'statistics': self.statistics} if self.statistics else {}
        return {'params': self.params} | found


class Metrics(struct.PyTreeNode):
    """One step's figures: the loss's, and those of `Learnt`; the norm is that before clipping."""

    sums: Sums
    gradient_norm: jax.Array
    others: dict[str, jax.Array] = struct.field(default_factory=dict)


def init_variables(model: Model, key: jax.Array) -> Any:
    """The first parameters, and statistics if there are any, by the key and the model alone."""
    token_BT = jnp.ones((1, 1), jnp.int32)
    collections = ['params', 'statistics']
    return model.init(key, token_BT, token_BT, method='outputs', mutable=collections)


def init(
    model: Model, optimizer: optax.GradientTransformation, key: jax.Array
) -> State:
    """The first state."""
    variables = init_variables(model, key)
    # Two zeros, and copies of what an optimizer keeps of the first parameters (Prodigy does): one
    # array in two places could not be donated.
    step, skipped = jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)
    opt_state = jax.tree.map(jnp.copy, optimizer.init(variables['params']))
    return State(step=step, opt_state=opt_state, skipped=skipped, **variables)


def make_step(
    model: Model,
    optimizer: optax.GradientTransformation,
    *,
    label_smoothing=0.1,
    accumulate=1,
) -> Callable[[State, Batch, jax.Array], tuple[State, Metrics]]:
    """The training step as a pure function (state, batch, dropout key) → (state, metrics).

    The loss is the mean over the batch's tokens. An update that is not finite is not made, so the
    state stays good; `skipped` counts it.

    With `accumulate` the batch is worked off in so many parts, its rows divided among them evenly,
    and their gradients are summed: the same update in a part of the memory, but for what goes by
    all tokens at once, which goes by those of a part (norm `batch`, feed-forward `mixture`).

    Raises:
      ValueError: when the step is traced, if `accumulate` does not divide the rows.
    """

    def total(state, batch, key) -> tuple[Learnt, Any]:
        def of_part(statistics, part):
            settings = dict(label_smoothing=label_smoothing, dropout_key=part[1])
            return learn(
                model,
                state.replace(statistics=statistics).variables,
                part[0],
                **settings,
            )

        if accumulate == 1:
            return of_part(state.statistics, (batch, key))

        def add(carry, part):
            new, statistics = of_part(carry[1], part)
            return (jax.tree.map(jnp.add, carry[0], new), statistics), None

        parts = jax.tree.map(lambda x: _parts(x, accumulate), batch)
        parts = parts, jax.random.split(key, accumulate)
        first = jax.tree.map(lambda x: x[0], parts)
        shapes, _ = jax.eval_shape(of_part, state.statistics, first)
        zeros = jax.tree.map(jnp.zeros_like, shapes)
        (learnt, statistics), _ = jax.lax.scan(add, (zeros, state.statistics), parts)
        sums, others, gradient = learnt
        return (
            sums,
            jax.tree.map(lambda x: x / accumulate, others),
            gradient,
        ), statistics

    def step(state: State, batch: Batch, key: jax.Array) -> tuple[State, Metrics]:
        learnt, statistics = total(state, batch, jax.random.fold_in(key, state.step))
        sums, others, gradient = learnt
        gradient = jax.tree.map(lambda g: g / jnp.maximum(sums.tokens, 1), gradient)
        norm = optax.tree.norm(gradient)
        updates, opt_state = optimizer.update(gradient, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        new = state.replace(params=params, opt_state=opt_state, statistics=statistics)
        finite = jnp.isfinite(sums.loss) & jnp.isfinite(norm)
        kept = jax.tree.map(lambda new, old: jnp.where(finite, new, old), new, state)
        kept = kept.replace(step=state.step + 1, skipped=state.skipped + ~finite)
        return kept, Metrics(sums, norm, others)

    return step


def _parts(x_BT: jax.Array, count: int) -> jax.Array:
    """(B, T) → (count, B / count, T): neighbours apart, so that every device has some of each."""
    if len(x_BT) % count:
        raise ValueError(
            f'accumulate={count} does not divide the {len(x_BT)} rows of a batch'
        )
    return jnp.swapaxes(x_BT.reshape(len(x_BT) // count, count, *x_BT.shape[1:]), 0, 1)
