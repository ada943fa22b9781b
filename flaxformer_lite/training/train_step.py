"""The training step: a pure function of a state, a batch and a key."""

from collections.abc import Callable, Mapping, Set
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from flaxformer_lite.config.deprecated_text import warn_of_text
from flaxformer_lite.config.variants import LOSSES
from flaxformer_lite.layers.scanned_stack import stack_layers
from flaxformer_lite.models.base import Model
from flaxformer_lite.ops.loss_of_logits import LossSums
from flaxformer_lite.remat import Remat
from flaxformer_lite.sharding import is_divided_by_data, sum_over_data
from flaxformer_lite.training import freezing
from flaxformer_lite.training.batch import Batch, check_batch
from flaxformer_lite.training.loss import (
    DEFAULT_LOSS,
    Losses,
    StepOutput,
    as_loss,
    depends_on_other_rows,
    loss_and_grads,
)
from flaxformer_lite.training.loss_scale import LossScale
from flaxformer_lite.validation import naming


class TrainState(struct.PyTreeNode):
    """The state that training carries from step to step.

    Attributes:
      step: int32. Number of attempted updates.
      skipped: int32. Number of updates that were not finite. Learning rate schedules
        count only the applied ones.
      batch_stats: Running statistics of batch norms, or {}.
      loss_scale: Dynamic loss scale of a float16 model; None for other dtypes.
    """

    step: jax.Array
    params: Any
    opt_state: optax.OptState
    skipped: jax.Array
    batch_stats: Any = struct.field(default_factory=dict)
    loss_scale: LossScale | None = None

    @classmethod
    def create(
        cls,
        variables: Any,
        optimizer: optax.GradientTransformation,
        frozen: Set[str] | str = frozenset(),
        loss_scale: LossScale | None = None,
    ) -> 'TrainState':
        """Returns the initial state for existing variables.

        Args:
          variables: {'params': …} and running statistics. Donating the state donates
            them, too.
          frozen: Parameters to keep, which have no optimizer state: a regular
            expression such as 'encoder|embedding', which is searched in paths such as
            'encoder/layer_0/feed_forward/up/kernel', or a set of whole paths.
          loss_scale: `LossScale.for_model(model)`; required for a float16 model.
        """
        trained, _ = freezing.split(variables['params'], frozen)
        state = cls(
            step=jnp.zeros((), jnp.int32),
            skipped=jnp.zeros((), jnp.int32),
            opt_state=optimizer.init(trained),
            loss_scale=loss_scale,
            **variables,
        )
        return _copy_shared_arrays(state)

    @property
    def variables(self) -> Any:
        if not self.batch_stats:
            return {'params': self.params}
        return {'params': self.params, 'batch_stats': self.batch_stats}


class Metrics(struct.PyTreeNode):
    """Metrics of one step.

    Attributes:
      sums: Sums over the batch's target tokens. `sums.others` has the sum of each loss
        of a list, by name.
      gradient_norm: Norm of the gradient of the mean loss per token, before clipping.
      aux_metrics: Metrics that modules of the model report.
      loss_scale: Loss scale of the step; 1 for models that aren't float16.
    """

    sums: LossSums
    gradient_norm: jax.Array
    aux_metrics: dict[str, jax.Array] = struct.field(default_factory=dict)
    loss_scale: jax.Array | float = 1.0

    @property
    def loss(self) -> jax.Array:
        """Mean loss per target token."""
        return self.sums.loss / self.sums.tokens

    @property
    def accuracy(self) -> jax.Array:
        """Fraction of target tokens that are the most likely ones."""
        return self.sums.correct / self.sums.tokens


TrainStep = Callable[[TrainState, Batch, jax.Array], tuple[TrainState, Metrics]]


def init_variables(
    model: Model, key: jax.Array, given: Mapping[str, jax.Array] | None = None
) -> Any:
    """Initializes the parameters and running statistics.

    They depend only on the key and the model, not on whether it scans its layers.

    Args:
      given: Initial values that replace others, by path with separate layers:
        {'params/encoder/layer_0/feed_forward/up/kernel': array}.

    Examples:
      >>> import flaxformer_lite
      >>> model = flaxformer_lite.config.build({'num_layers': 1}, vocab_size=10)
      >>> shapes = jax.eval_shape(lambda: init_variables(model, jax.random.key(0)))
      >>> sorted(shapes['params'])
      ['decoder', 'embedding', 'encoder']
    """
    if model.scans_layers:
        separate = init_variables(model.with_separate_layers(), key, given)
        return stack_layers(separate, model.layer_periods)
    token_BT = jnp.ones((1, 1), jnp.int32)
    variables = model.init(
        key,
        token_BT,
        token_BT,
        method='logit_factors',
        mutable=['params', 'batch_stats'],
    )
    if not given:
        return variables
    return freezing.from_paths({**freezing.paths(variables), **given})


def init_state(
    model: Model,
    optimizer: optax.GradientTransformation,
    key: jax.Array,
    given: Mapping[str, jax.Array] | None = None,
    frozen: Set[str] | str = frozenset(),
) -> TrainState:
    """Returns the initial state of training, with parameters from an initializer.

    For existing variables, such as those of a checkpoint, use `TrainState.create`.

        state = fl.init_state(model, optax.adam(3e-4), jax.random.key(0))

    Args:
      given: Initial values that replace others, by path with separate layers:
        {'params/encoder/layer_0/feed_forward/up/kernel': array}.
      frozen: As in `TrainState.create`.
    """
    variables = init_variables(model, key, given)
    loss_scale = LossScale.for_model(model)
    return TrainState.create(variables, optimizer, frozen, loss_scale)


def _copy_shared_arrays(state: TrainState) -> TrainState:
    """Copies repeated arrays, because an array can be donated only once."""
    seen = set()

    def own(x):
        if id(x) in seen:
            return jnp.copy(x)
        seen.add(id(x))
        return x

    return jax.tree.map(own, state)


def make_train_step(
    model: Model,
    optimizer: optax.GradientTransformation,
    *,
    loss: Losses = DEFAULT_LOSS,
    accumulate: int = 1,
    remat: Remat = 'none',
    frozen: Set[str] | str = frozenset(),
) -> TrainStep:
    """Returns the training step: (state, batch, dropout key) → (state, metrics).

        step = jax.jit(fl.make_train_step(model, optimizer, loss=fl.losses.Focal()))

    The step minimizes the mean loss per token. It skips updates that are not finite.

    Args:
      loss: As in `loss_sums`.
      accumulate: Number of microbatches whose gradients are summed, to save memory.
        Only norm `batch` and feed-forward `mixture` depend on it.
      remat: Rematerialization policy, as in `Model.with_remat`.
      frozen: Parameters to keep, as in `TrainState.create`: '^encoder/' keeps the
        encoder, but not embeddings that it shares. Pass the same to `init_state`.

    Raises:
      ValueError: The loss or `remat` is unknown, or the model has no blocks. Tracing
        the step: the batch lacks an array, `accumulate` doesn't divide its rows,
        `frozen` matches no parameter or isn't that of the state, or a float16 model's
        state has no `loss_scale`.

    Examples:
      >>> import flaxformer_lite
      >>> sizes = {'d_model': 8, 'num_layers': 1}
      >>> model = flaxformer_lite.config.build(sizes, vocab_size=10)

      >>> batch = flaxformer_lite.make_batch([[5, 6, 1]], [[8, 9, 1]], model=model)

      >>> optimizer = optax.sgd(0.1)
      >>> key = jax.random.key(0)
      >>> state = jax.jit(init_state, static_argnums=(0, 1))(model, optimizer, key)
      >>> step = jax.jit(make_train_step(model, optimizer))

      >>> state, metrics = step(state, batch, key)
      >>> int(state.step), int(metrics.sums.tokens), bool(metrics.gradient_norm > 0)
      (1, 3, True)
    """
    model = model.with_remat(remat)
    with naming('loss'):
        loss_fn = as_loss(loss)
    warn_of_text('loss', loss, LOSSES)

    def batch_gradients(whole, batch):
        variables, key, loss, loss_scale = whole

        def part_gradients(variables, batch, key):
            return loss_and_grads(
                model, variables, batch, loss, key, frozen, loss_scale
            )

        if accumulate == 1:
            return part_gradients(variables, batch, key)
        return _sum_over_parts(part_gradients, accumulate, variables, batch, key)

    def train_step(state, batch, key):
        check_batch(batch)
        key = jax.random.fold_in(key, state.step)
        function = batch_gradients
        if _can_sum_over_data(model, accumulate, state.variables, batch, key):
            function = sum_over_data(batch_gradients)
        scale = _loss_scale(model, state)
        output, batch_stats = function((state.variables, key, loss_fn, scale), batch)
        tokens = model.special_tokens
        gradients = tokens.adjust_gradients(output.gradients, state.params)
        output = output._replace(gradients=gradients)
        return _update(optimizer, state, output, batch_stats, frozen)

    return train_step


def _loss_scale(model: Model, state: TrainState) -> jax.Array | float:
    if state.loss_scale is not None:
        return state.loss_scale.scale
    if model.dense.dtype == jnp.float16:
        raise ValueError(
            'state.loss_scale: a float16 model needs one. Begin with init_state, or '
            'pass loss_scale=LossScale.for_model(model) to TrainState.create.'
        )
    return 1.0


def _can_sum_over_data(
    model: Model, accumulate: int, variables: Any, batch: Batch, key: jax.Array
) -> bool:
    rows = len(batch['labels'])
    if rows % accumulate or not is_divided_by_data(rows // accumulate):
        return False
    return not depends_on_other_rows(model, variables, batch, key)


def _check_optimizer_state(
    optimizer: optax.GradientTransformation, state: TrainState, trained: Any
) -> None:
    expected = jax.eval_shape(optimizer.init, trained)
    if jax.tree.structure(state.opt_state) != jax.tree.structure(expected):
        raise ValueError(
            'state.opt_state: belongs to other parameters or another optimizer. Pass '
            'the same optimizer and the same frozen to init_state and make_train_step.'
        )


def _update(
    optimizer: optax.GradientTransformation,
    state: TrainState,
    output: StepOutput,
    batch_stats: Any,
    frozen: Set[str] | str,
) -> tuple[TrainState, Metrics]:
    trained, frozen_params = freezing.split(state.params, frozen)
    _check_optimizer_state(optimizer, state, trained)
    tokens = jnp.maximum(output.sums.tokens, 1)
    loss_scale = state.loss_scale
    divisor = tokens if loss_scale is None else tokens * loss_scale.scale
    gradients = jax.tree.map(lambda g: g / divisor, output.gradients)
    norm = optax.tree.norm(gradients)
    is_finite = jnp.isfinite(output.sums.loss) & jnp.isfinite(norm)
    # Optimizer state has the dtypes of the parameters.
    gradients = jax.tree.map(lambda g, x: g.astype(x.dtype), gradients, trained)

    def updated():
        updates, opt_state = optimizer.update(gradients, state.opt_state, trained)
        return state.replace(
            params=freezing.join(optax.apply_updates(trained, updates), frozen_params),
            opt_state=opt_state,
            batch_stats=batch_stats,
        )

    # Not `jnp.where` over all arrays: XLA would copy the optimizer state before it
    # writes the new one, which doubles its memory.
    kept = jax.lax.cond(is_finite, updated, lambda: state)
    kept = kept.replace(step=state.step + 1, skipped=state.skipped + ~is_finite)
    if loss_scale is not None:
        kept = kept.replace(loss_scale=loss_scale.adjusted(is_finite))
    scale = 1.0 if loss_scale is None else loss_scale.scale
    return kept, Metrics(output.sums, norm, output.aux_metrics, scale)


def _sum_over_parts(
    part_gradients: Callable, count: int, variables: Any, batch: Batch, key: jax.Array
) -> tuple[StepOutput, Any]:
    batches = jax.tree.map(lambda x_BT: _split_rows(x_BT, count), batch)
    keys = jax.random.split(key, count)
    parts = batches, keys

    def add_part(carry, part):
        total, batch_stats = carry
        given = variables | {'batch_stats': batch_stats}
        output, batch_stats = part_gradients(given, *part)
        total = jax.tree.map(jnp.add, total, output)
        return (total, batch_stats), None

    first_part = jax.tree.map(lambda x: x[0], parts)
    shapes, _ = jax.eval_shape(part_gradients, variables, *first_part)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), shapes)
    start = zeros, variables.get('batch_stats', {})
    (total, batch_stats), _ = jax.lax.scan(add_part, start, parts)
    means = jax.tree.map(lambda x: x / count, total.aux_metrics)
    return total._replace(aux_metrics=means), batch_stats


def _split_rows(x_BT: jax.Array, count: int) -> jax.Array:
    """Splits rows into microbatches: (B, T) → (count, B / count, T).

    Adjacent rows go to different microbatches, so each device has rows of all.
    """
    rows = len(x_BT)
    if rows % count:
        raise ValueError(
            f'accumulate={count} does not divide the {rows} rows of a batch'
        )
    x_BCT = x_BT.reshape(rows // count, count, *x_BT.shape[1:])
    return jnp.swapaxes(x_BCT, 0, 1)
