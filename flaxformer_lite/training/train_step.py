"""The training step as a pure function of a state, a batch and a key."""

from collections.abc import Callable, Mapping, Set
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from flaxformer_lite.config.spec import Spec
from flaxformer_lite.layers.scanned_stack import stack_layers
from flaxformer_lite.models.base import Model
from flaxformer_lite.ops.loss_of_logits import LossSums
from flaxformer_lite.remat import Remat
from flaxformer_lite.sharding import is_divided_by_data, sum_over_data
from flaxformer_lite.training import freezing
from flaxformer_lite.training.batch import Batch, check_batch
from flaxformer_lite.training.loss import (
    DEFAULT_LOSS,
    StepOutput,
    as_loss,
    depends_on_other_rows,
    loss_and_grads,
)
from flaxformer_lite.training.loss_scale import LossScale


class TrainState(struct.PyTreeNode):
    """All that training carries from one step to the next.

    Attributes:
      step: int32, updates tried so far.
      params: the parameters.
      opt_state: the optimizer's state, of the parameters that are trained.
      skipped: int32, how many updates were not finite, and so were not made.
      batch_stats: running statistics of norms over a batch; {} without one.
      loss_scale: the scale of the loss of a float16 model; None for other dtypes.
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
        frozen: Set[str] = frozenset(),
        loss_scale: LossScale | None = None,
    ) -> 'TrainState':
        """The state in which training begins with variables that are there.

        Args:
          variables: {'params': …}, such as those of `from_pretrained`, and running
            statistics. A step that the state is donated to takes them, too.
          optimizer: updates the parameters.
          frozen: paths of parameters that are not trained: the optimizer keeps nothing
            of them.
          loss_scale: `LossScale.for_model(model)`. A float16 model needs it.
        """
        trained, _ = freezing.split(variables['params'], frozen)
        state = cls(
            step=jnp.zeros((), jnp.int32),
            skipped=jnp.zeros((), jnp.int32),
            opt_state=optimizer.init(trained),
            loss_scale=loss_scale,
            **variables,
        )
        return _without_sharing(state)

    @property
    def variables(self) -> Any:
        """What `model.apply` takes."""
        if not self.batch_stats:
            return {'params': self.params}
        return {'params': self.params, 'batch_stats': self.batch_stats}


class Metrics(struct.PyTreeNode):
    """The figures of one step.

    Attributes:
      sums: of the loss.
      gradient_norm: of the mean loss of a token by the parameters that are trained,
        before clipping.
      aux_metrics: what parts of the model report, by name.
    """

    sums: LossSums
    gradient_norm: jax.Array
    aux_metrics: dict[str, jax.Array] = struct.field(default_factory=dict)


TrainStep = Callable[[TrainState, Batch, jax.Array], tuple[TrainState, Metrics]]


def init_variables(
    model: Model, key: jax.Array, given: Mapping[str, jax.Array] | None = None
) -> Any:
    """The first parameters and running statistics, by the key and the model alone.

    They do not depend on whether the model scans its layers.

    Args:
      model: the model.
      key: of the initialisation.
      given: those that are to have other first values, by their paths where layers are
        separate: {'params/encoder/layer_0/feed_forward/up/kernel': array}.
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
    frozen: Set[str] = frozenset(),
) -> TrainState:
    """The first state.

    Args:
      model, key, given: as `init_variables` takes them.
      optimizer: updates the parameters.
      frozen: paths of parameters that are not trained: the optimizer keeps nothing of
        them.
    """
    variables = init_variables(model, key, given)
    loss_scale = LossScale.for_model(model)
    return TrainState.create(variables, optimizer, frozen, loss_scale)


def _without_sharing(state: TrainState) -> TrainState:
    """One array in two places cannot be donated: one of them gets a copy.

    An optimizer may keep the first parameters, and one array twice; Prodigy does.
    """
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
    loss: Spec = DEFAULT_LOSS,
    accumulate: int = 1,
    remat: Remat = 'none',
    frozen: Set[str] = frozenset(),
) -> TrainStep:
    """The training step: (state, batch, dropout key) → (state, metrics).

    What is learnt by is the mean of the loss over the batch's tokens. An update that is
    not finite is not made, so the state stays good; `skipped` counts it.

    Args:
      model: the model.
      optimizer: updates the parameters.
      loss: as `loss_sums` takes it.
      accumulate: the batch is worked through in so many parts, and their gradients are
        summed: the same update in a part of the memory. Only what depends on all tokens
        of a batch (norm `batch`, feed-forward `mixture`) sees those of a part instead.
      remat: what of each layer the backward pass computes again instead of keeping it,
        as `Model.with_remat` has it: the same update in less memory and more time.
      frozen: paths of parameters that stay as they are, as `freezing.split` takes them.
        The state is one of `init_state` with the same.

    Raises:
      ValueError: there is no such loss or `remat`, or the model has no blocks; when the
        step is traced, if the batch lacks an array, `accumulate` does not divide its
        rows, `frozen` names no parameter, or the state of a float16 model has no
        `loss_scale`.
    """
    model = model.with_remat(remat)
    loss = as_loss(loss)

    def of_batch(whole, batch):
        variables, key, loss, loss_scale = whole

        def of_part(variables, batch, key):
            return loss_and_grads(
                model, variables, batch, loss, key, frozen, loss_scale
            )

        if accumulate == 1:
            return of_part(variables, batch, key)
        return _sum_over_parts(of_part, accumulate, variables, batch, key)

    def train_step(state, batch, key):
        check_batch(batch)
        key = jax.random.fold_in(key, state.step)
        function = of_batch
        if _sums_over_devices_once(model, accumulate, state.variables, batch, key):
            function = sum_over_data(of_batch)
        scale = _scale_of(model, state)
        output, batch_stats = function((state.variables, key, loss, scale), batch)
        gradients = _without_zero_start(model, output.gradients, state.params)
        output = output._replace(gradients=gradients)
        return _update(optimizer, state, output, batch_stats, frozen)

    return train_step


def _without_zero_start(model: Model, gradients: Any, params: Any) -> Any:
    """Returns gradients that keep a zero start embedding at zero.

    Marian starts each target from zero: its start token is padding, whose embedding is
    zero. CTranslate2 has no weights for that token.
    """
    tokens = model.special_tokens
    if tokens.start != tokens.padding or 'embedding' not in gradients:
        return gradients
    is_zero = ~jnp.any(params['embedding'][tokens.start])
    gradients_VD = gradients['embedding']
    row_D = jnp.where(is_zero, 0, gradients_VD[tokens.start])
    gradients_VD = gradients_VD.at[tokens.start].set(row_D)
    return {**gradients, 'embedding': gradients_VD}


def _scale_of(model: Model, state: TrainState) -> jax.Array | float:
    """Returns the factor of the loss whose gradients the step computes."""
    if state.loss_scale is not None:
        return state.loss_scale.scale
    if model.dense.dtype == jnp.float16:
        raise ValueError(
            'state.loss_scale: a float16 model needs one. Begin with init_state, or '
            'pass loss_scale=LossScale.for_model(model) to TrainState.create.'
        )
    return 1.0


def _sums_over_devices_once(
    model: Model, accumulate: int, variables: Any, batch: Batch, key: jax.Array
) -> bool:
    """Whether devices sum their gradients when they have worked through all parts."""
    rows = len(batch['labels'])
    if rows % accumulate or not is_divided_by_data(rows // accumulate):
        return False
    return not depends_on_other_rows(model, variables, batch, key)


def _update(
    optimizer: optax.GradientTransformation,
    state: TrainState,
    output: StepOutput,
    batch_stats: Any,
    frozen: Set[str],
) -> tuple[TrainState, Metrics]:
    """Applies the mean gradient of a token, if it is finite."""
    trained, held = freezing.split(state.params, frozen)
    tokens = jnp.maximum(output.sums.tokens, 1)
    loss_scale = state.loss_scale
    divisor = tokens if loss_scale is None else tokens * loss_scale.scale
    gradients = jax.tree.map(lambda g: g / divisor, output.gradients)
    norm = optax.tree.norm(gradients)
    is_finite = jnp.isfinite(output.sums.loss) & jnp.isfinite(norm)
    # The optimizer's state has the dtypes of the parameters.
    gradients = jax.tree.map(lambda g, x: g.astype(x.dtype), gradients, trained)

    def updated():
        updates, opt_state = optimizer.update(gradients, state.opt_state, trained)
        return state.replace(
            params=freezing.join(optax.apply_updates(trained, updates), held),
            opt_state=opt_state,
            batch_stats=batch_stats,
        )

    # Not `jnp.where` of all arrays: for it the compiler copies the optimizer's state
    # before it writes the new one in its place, which takes twice its memory.
    kept = jax.lax.cond(is_finite, updated, lambda: state)
    kept = kept.replace(step=state.step + 1, skipped=state.skipped + ~is_finite)
    if loss_scale is not None:
        kept = kept.replace(loss_scale=loss_scale.adjusted(is_finite))
    return kept, Metrics(output.sums, norm, output.aux_metrics)


def _sum_over_parts(
    of_part: Callable, count: int, variables: Any, batch: Batch, key: jax.Array
) -> tuple[StepOutput, Any]:
    """The sums and gradients of a batch that is worked through in so many parts."""
    batches = jax.tree.map(lambda x_BT: _split_rows(x_BT, count), batch)
    keys = jax.random.split(key, count)
    parts = batches, keys

    def add_part(carry, part):
        total, batch_stats = carry
        given = variables | {'batch_stats': batch_stats}
        output, batch_stats = of_part(given, *part)
        total = jax.tree.map(jnp.add, total, output)
        return (total, batch_stats), None

    first_part = jax.tree.map(lambda x: x[0], parts)
    shapes, _ = jax.eval_shape(of_part, variables, *first_part)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), shapes)
    start = zeros, variables.get('batch_stats', {})
    (total, batch_stats), _ = jax.lax.scan(add_part, start, parts)
    means = jax.tree.map(lambda x: x / count, total.aux_metrics)
    return total._replace(aux_metrics=means), batch_stats


def _split_rows(x_BT: jax.Array, count: int) -> jax.Array:
    """(B, T) → (count, B / count, T). Neighbours go to different parts, so that every
    device has some rows of each part."""
    rows = len(x_BT)
    if rows % count:
        raise ValueError(
            f'accumulate={count} does not divide the {rows} rows of a batch'
        )
    x_BCT = x_BT.reshape(rows // count, count, *x_BT.shape[1:])
    return jnp.swapaxes(x_BCT, 0, 1)
