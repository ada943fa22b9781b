"""The loss of a batch and its gradients."""

import dataclasses
from collections.abc import Sequence, Set
from typing import Any, NamedTuple

import jax
from flax import traverse_util

from flaxformer_lite.config.deprecated_text import warn_of_text
from flaxformer_lite.config.spec import Component, Spec
from flaxformer_lite.config.variants import LOSSES
from flaxformer_lite.losses.base import Loss, Sum
from flaxformer_lite.losses.cross_entropy import CrossEntropy
from flaxformer_lite.models.base import Model
from flaxformer_lite.ops.loss_of_logits import LossSums
from flaxformer_lite.training import freezing
from flaxformer_lite.training.batch import Batch
from flaxformer_lite.training.forward import forward
from flaxformer_lite.validation import naming

# From the paper, §5.4.
DEFAULT_LOSS = CrossEntropy(label_smoothing=0.1)
# A loss, its class, or several losses, whose sum is the loss. Strings are deprecated.
Losses = Loss | type[Loss] | Sequence[Loss | type[Loss]] | str


class StepOutput(NamedTuple):
    """Losses, metrics and gradients of one batch.

    Attributes:
      aux_metrics: Metrics that modules report, averaged over layers.
      gradients: Gradients of the summed loss and auxiliary losses.
    """

    sums: LossSums
    aux_metrics: dict[str, jax.Array]
    gradients: Any


def as_loss(loss: Losses | Spec, **given: Any) -> Loss:
    """Returns a loss as an object.

    Args:
      loss: A loss, its class or its spec. A list gives the sum of its losses.
      given: Arguments that a spec can't express, such as the `teacher` of
        `distillation`. Each loss receives those that it accepts.

    Raises:
      ValueError: The spec is malformed, a name or an argument is unknown, or the object
        isn't a loss.

    Examples:
      >>> as_loss('focal(gamma=1.0)').gamma
      1.0
    """
    if isinstance(loss, Loss):
        return loss
    if isinstance(loss, Sequence) and not isinstance(loss, str):
        losses = [as_loss(entry, **given) for entry in loss]
    else:
        entries = Component.of(loss, LOSSES).entries
        losses = [entry.make(**entry.accepted(**given)) for entry in entries]
    if not losses:
        raise ValueError('the list of losses is empty. Give at least one.')
    return losses[0] if len(losses) == 1 else Sum(tuple(losses))


def with_arguments(loss: Loss, **given: Any) -> Loss:
    """Replaces arguments that a spec can't express, in each loss that has them."""
    if isinstance(loss, Sum):
        return Sum(tuple(with_arguments(x, **given) for x in loss.losses))
    own = {field.name for field in dataclasses.fields(loss)}
    return dataclasses.replace(loss, **{k: x for k, x in given.items() if k in own})


def loss_sums(
    model: Model,
    variables: Any,
    batch: Batch,
    loss: Losses = DEFAULT_LOSS,
    dropout_key: jax.Array | None = None,
) -> LossSums:
    """Computes the loss of a batch.

    Only the sum `loss` has a gradient.

    Args:
      variables: {'params': …} and any running statistics.
      loss: A loss of `fl.losses`, its class, or a list of losses, whose sum is the
        loss. Defaults to `CrossEntropy(label_smoothing=0.1)`. The sums `nll` and
        `correct` never include smoothing.
      dropout_key: Selects training mode, with dropout.

    Raises:
      ValueError: The loss is unknown, `variables` lacks the 'params' level, or the
        batch lacks an array.

    Examples:
      >>> import flaxformer_lite
      >>> sizes = {'d_model': 8, 'num_layers': 1}
      >>> model = flaxformer_lite.config.build(sizes, vocab_size=10)

      >>> batch = flaxformer_lite.make_batch([[5, 6, 1]], [[8, 1]], model=model)

      >>> pair = batch['source'], batch['inputs']
      >>> shapes = jax.eval_shape(model.init, jax.random.key(0), *pair)

      >>> zeros = jax.tree.map(lambda x: jax.numpy.zeros(x.shape), shapes)
      >>> sums = jax.jit(loss_sums, static_argnums=0)(model, zeros, batch)

      >>> int(sums.tokens), f'{sums.nll / sums.tokens:.2f}'
      (2, '2.30')
    """
    with naming('loss'):
        loss_fn = as_loss(loss)
    warn_of_text('loss', loss, LOSSES)
    sums, _ = loss_fn.sums(model, variables, batch, dropout_key)
    return sums


def loss_and_grads(
    model: Model,
    variables: Any,
    batch: Batch,
    loss: Loss = DEFAULT_LOSS,
    dropout_key: jax.Array | None = None,
    frozen: Set[str] | str = frozenset(),
    scale: jax.Array | float = 1.0,
) -> tuple[StepOutput, Any]:
    """Computes the loss of a batch, its gradients and the new running statistics.

    Args:
      frozen: Parameters without gradients, as in `freezing.split`.
      scale: Factor of the gradients, not of the sums.
    """
    trained, frozen_params = freezing.split(variables['params'], frozen)

    def total_loss(trained):
        joined = variables | {'params': freezing.join(trained, frozen_params)}
        sums, written = loss.sums(model, joined, batch, dropout_key)
        total = sums.loss
        for addition in jax.tree.leaves(written.get('losses', {})):
            total += sums.tokens * addition.sum()  # over layers, if scanned
        return scale * total, (sums, written)

    grad = jax.grad(total_loss, has_aux=True)
    gradients, (sums, written) = grad(trained)
    aux_metrics = _means_by_name(written.get('metrics', {}))
    batch_stats = written.get('batch_stats', {})
    return StepOutput(sums, aux_metrics, gradients), batch_stats


def depends_on_other_rows(
    model: Model, variables: Any, batch: Batch, dropout_key: jax.Array
) -> bool:
    """Returns whether a module writes running statistics or an auxiliary loss."""

    def written(variables, batch, key):
        return forward(model, variables, batch, key)[1]

    shapes = jax.eval_shape(written, variables, batch, dropout_key)
    return bool(jax.tree.leaves(shapes))


def _means_by_name(metrics: Any) -> dict[str, jax.Array]:
    by_name: dict[str, list[jax.Array]] = {}
    by_path: Any = traverse_util.flatten_dict(metrics)
    for path, (value,) in by_path.items():
        by_name.setdefault(path[-1], []).append(value)
    means = {}
    for name, values in by_name.items():
        # A scalar of one layer, or an array over the layers of a scanned stack.
        total = values[0].sum()
        for value in values[1:]:
            total += value.sum()
        means[name] = total / sum(value.size for value in values)
    return means
