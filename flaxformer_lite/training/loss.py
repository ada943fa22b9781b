"""The loss of a batch, and its gradients."""

from collections.abc import Set
from typing import Any, NamedTuple

import jax
from flax import traverse_util

from flaxformer_lite.models.base import Model
from flaxformer_lite.ops.cross_entropy import LossSums, label_smoothed_cross_entropy
from flaxformer_lite.training import freezing
from flaxformer_lite.training.batch import Batch, check_variables, source_and_inputs

# What parts of a model may write while it trains: running statistics, which evaluation
# reads; additions to the loss of a token; and metrics.
TRAINING_COLLECTIONS = ('batch_stats', 'losses', 'metrics')


class StepOutput(NamedTuple):
    """What one batch gives.

    Attributes:
      sums: of the loss over the batch's tokens.
      aux_metrics: what parts report, by name, each the mean over layers.
      gradients: of the sum of the loss and of what parts add to it, by the parameters
        that are trained.
    """

    sums: LossSums
    aux_metrics: dict[str, jax.Array]
    gradients: Any


def loss_sums(
    model: Model,
    variables: Any,
    batch: Batch,
    label_smoothing: float = 0.0,
    dropout_key: jax.Array | None = None,
) -> LossSums:
    """The loss of a batch; dropout is on if a key is given."""
    sums, _ = forward(model, variables, batch, label_smoothing, dropout_key)
    return sums


def forward(
    model: Model,
    variables: Any,
    batch: Batch,
    label_smoothing: float = 0.0,
    dropout_key: jax.Array | None = None,
    collections: tuple[str, ...] = (),
) -> tuple[LossSums, Any]:
    """The loss of a batch, and these collections of variables as parts wrote them.

    Raises:
      ValueError: `variables` are parameters alone.
    """
    check_variables(variables)
    rngs = {} if dropout_key is None else {'dropout': dropout_key}
    (hidden_BTD, table_VD, bias_V), written = model.apply(
        variables,
        *source_and_inputs(batch),
        method='logit_factors',
        rngs=rngs,
        mutable=list(collections),
    )
    sums = label_smoothed_cross_entropy(
        hidden_BTD,
        table_VD,
        batch['labels'],
        label_smoothing,
        model.dense.dtype,
        bias_V=bias_V,
        cap=model.logit_cap,
        padding=model.special_tokens.padding,
    )
    return sums, written


def loss_and_grads(
    model: Model,
    variables: Any,
    batch: Batch,
    label_smoothing: float = 0.0,
    dropout_key: jax.Array | None = None,
    frozen: Set[str] = frozenset(),
) -> tuple[StepOutput, Any]:
    """The loss of a batch with its gradients, and the new running statistics.

    Args:
      frozen: paths of parameters that have no gradient, as `freezing.split` takes them.
        What only their gradients would need is not computed.
    """
    trained, held = freezing.split(variables['params'], frozen)

    def total_loss(trained):
        sums, written = forward(
            model,
            variables | {'params': freezing.join(trained, held)},
            batch,
            label_smoothing,
            dropout_key,
            TRAINING_COLLECTIONS,
        )
        total = sums.loss
        for addition in jax.tree.leaves(written.get('losses', {})):
            total += sums.tokens * addition.sum()  # over layers, if they are scanned
        return total, (sums, written)

    grad = jax.grad(total_loss, has_aux=True)
    gradients, (sums, written) = grad(trained)
    aux_metrics = _means_by_name(written.get('metrics', {}))
    return StepOutput(sums, aux_metrics, gradients), written.get('batch_stats', {})


def depends_on_other_rows(
    model: Model, variables: Any, batch: Batch, dropout_key: jax.Array
) -> bool:
    """Whether parts of a model see more of a batch than a row while they train.

    Those that do write what they find: running statistics, or additions to the loss.
    """

    def written(variables, batch, key):
        return forward(model, variables, batch, 0.0, key, TRAINING_COLLECTIONS)[1]

    return bool(jax.tree.leaves(jax.eval_shape(written, variables, batch, dropout_key)))


def _means_by_name(metrics: Any) -> dict[str, jax.Array]:
    """The mean over layers of each metric that layers report."""
    by_name: dict[str, list[jax.Array]] = {}
    by_path: Any = traverse_util.flatten_dict(metrics)
    for path, (value,) in by_path.items():
        by_name.setdefault(path[-1], []).append(value)
    means = {}
    for name, values in by_name.items():
        # A layer's number; or those of all layers of a stack, if it scans them.
        total = sum((value.sum() for value in values[1:]), values[0].sum())
        means[name] = total / sum(value.size for value in values)
    return means
