"""The loss of a batch, and its gradients."""

from collections.abc import Set
from typing import Any, NamedTuple

import jax
from flax import traverse_util

from flaxformer_lite.config import spec
from flaxformer_lite.config.spec import Spec
from flaxformer_lite.config.variants import LOSSES
from flaxformer_lite.losses.base import Loss, Sum
from flaxformer_lite.models.base import Model
from flaxformer_lite.ops.loss_of_logits import LossSums
from flaxformer_lite.training import freezing
from flaxformer_lite.training.batch import Batch
from flaxformer_lite.training.forward import forward

# The paper's, §5.4.
DEFAULT_LOSS = 'cross_entropy(label_smoothing=0.1)'


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


def as_loss(loss: Spec, **given: Any) -> Loss:
    """The loss that is meant.

    Args:
      loss: one, a class of one, or a spec: of several in brackets it is the sum.
      given: arguments that no spec can say, such as the `teacher` of `distillation`:
        each loss of a spec gets those that it takes.

    Raises:
      ValueError: a spec that cannot be read, a name or an argument that is not there,
        or what is no loss.
    """
    losses = [_loss(entry, given) for entry in spec.entries(loss)]
    if len(losses) == 1:
        return losses[0]
    return Sum(tuple(losses))


def _loss(entry: Spec, given: dict[str, Any]) -> Loss:
    if isinstance(entry, Loss):
        return entry
    cls, _ = LOSSES.find(entry)
    takes = spec.parameters(cls)
    return LOSSES.make(entry, **{k: x for k, x in given.items() if k in takes})


def loss_sums(
    model: Model,
    variables: Any,
    batch: Batch,
    loss: Spec = DEFAULT_LOSS,
    dropout_key: jax.Array | None = None,
) -> LossSums:
    """The loss of a batch.

    Args:
      model: the model.
      variables: what `model.apply` takes: {'params': …}.
      batch: the arrays of `training.batch.BATCH_ARRAYS`.
      loss: an object or a class of `losses.base.Loss`, or a spec: 'focal(gamma=1.0)',
        '[cross_entropy, z_loss(weight=1e-4)]'. Whatever it is, `nll` and `correct` are
        those of the labels, without smoothing.
      dropout_key: the model trains, with dropout, if it is given.

    Raises:
      ValueError: there is no such loss, `variables` are parameters alone, or the batch
        lacks an array.
    """
    sums, _ = as_loss(loss)(model, variables, batch, dropout_key)
    return sums


def loss_and_grads(
    model: Model,
    variables: Any,
    batch: Batch,
    loss: Spec = DEFAULT_LOSS,
    dropout_key: jax.Array | None = None,
    frozen: Set[str] = frozenset(),
    scale: jax.Array | float = 1.0,
) -> tuple[StepOutput, Any]:
    """The loss of a batch with its gradients, and the new running statistics.

    Args:
      model, variables, batch, loss, dropout_key: as `loss_sums`.
      frozen: paths of parameters that have no gradient, as `freezing.split` takes them.
        What only their gradients would need is not computed.
      scale: the factor of the loss whose gradients are computed. The sums are those of
        the loss itself.
    """
    trained, held = freezing.split(variables['params'], frozen)
    loss = as_loss(loss)

    def total_loss(trained):
        joined = variables | {'params': freezing.join(trained, held)}
        sums, written = loss(model, joined, batch, dropout_key)
        total = sums.loss
        for addition in jax.tree.leaves(written.get('losses', {})):
            total += sums.tokens * addition.sum()  # over layers, if they are scanned
        return scale * total, (sums, written)

    grad = jax.grad(total_loss, has_aux=True)
    gradients, (sums, written) = grad(trained)
    aux_metrics = _means_by_name(written.get('metrics', {}))
    batch_stats = written.get('batch_stats', {})
    return StepOutput(sums, aux_metrics, gradients), batch_stats


def depends_on_other_rows(
    model: Model, variables: Any, batch: Batch, dropout_key: jax.Array
) -> bool:
    """Whether parts of a model see more of a batch than a row while they train.

    Those that do write what they find: running statistics, or additions to the loss.
    """

    def written(variables, batch, key):
        return forward(model, variables, batch, key)[1]

    shapes = jax.eval_shape(written, variables, batch, dropout_key)
    return bool(jax.tree.leaves(shapes))


def _means_by_name(metrics: Any) -> dict[str, jax.Array]:
    """The mean over layers of each metric that layers report."""
    by_name: dict[str, list[jax.Array]] = {}
    by_path: Any = traverse_util.flatten_dict(metrics)
    for path, (value,) in by_path.items():
        by_name.setdefault(path[-1], []).append(value)
    means = {}
    for name, values in by_name.items():
        # A layer's number; or those of all layers of a stack, if it scans them.
        total = values[0].sum()
        for value in values[1:]:
            total += value.sum()
        means[name] = total / sum(value.size for value in values)
    return means
