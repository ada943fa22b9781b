"""Base class of losses, and sums of losses."""

import dataclasses
import re
from collections import Counter
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from flaxformer_lite.models.base import Model
from flaxformer_lite.ops.loss_of_logits import (
    Formula,
    LossOptions,
    LossSums,
    cross_entropy_sums,
    loss_of_logits,
)
from flaxformer_lite.training.batch import Batch
from flaxformer_lite.training.forward import forward
from flaxformer_lite.validation import FrozenDataclass


class Loss(FrozenDataclass):
    """Loss of each label of a batch; training minimizes its mean over the labels.

    Override `__call__`, and `metrics` for additional metrics. Annotated attributes are
    arguments:

        class Brier(fl.losses.Loss):
            def __call__(self, logits, batch):
                label_BTV = jax.nn.one_hot(batch['labels'], logits.shape[-1])
                return ((jax.nn.softmax(logits) - label_BTV) ** 2).sum(-1)

    A loss of several forward passes, or of another model's results, sets `passes`, or
    overrides `prepare` or `sums`.

    Attributes:
      arrays: Names of attributes that contain arrays or other losses. They are the
        loss's children as a pytree; all other attributes are static.
      passes: P, number of forward passes per batch, each with its own dropout. If P >
        1, the loss gets the logits of all passes, (B, T, P, V).
      targets: Names of the batch's arrays that the loss reads, the labels first.
    """

    arrays: ClassVar[tuple[str, ...]] = ()
    passes: ClassVar[int] = 1
    targets: ClassVar[tuple[str, ...]] = ('labels',)

    def __init_subclass__(cls, **settings: Any):
        super().__init_subclass__(**settings)
        names = {field.name for field in dataclasses.fields(cls)}
        others = sorted(names - set(cls.arrays))
        jax.tree_util.register_dataclass(cls, cls.arrays, others)

    def __call__(self, logits: jax.Array, batch: Batch) -> jax.Array:
        """Computes the loss of each label, independently of the others.

        Args:
          logits: float32 (B, T, V).
          batch: Has the arrays `targets`, among them `labels`, int32 (B, T). Training
            calls this function with some of the batch's tokens at a time.

        Returns:
          float32 (B, T). Values at padding are ignored.
        """
        raise NotImplementedError(
            f'{type(self).__name__}.__call__(logits, batch) is missing'
        )

    def metrics(self, logits: jax.Array, batch: Batch) -> dict[str, jax.Array]:
        """Computes additional metrics of each label, float32 (B, T), by name."""
        return {}

    def prepare(self, batch: Batch) -> Batch:
        """Returns the batch with the arrays `targets`."""
        return batch

    def sums(
        self,
        model: Model,
        variables: Any,
        batch: Batch,
        key: jax.Array | None = None,
    ) -> tuple[LossSums, Any]:
        """Runs the model on a batch and sums the loss over labels and heads.

        Args:
          model, variables, batch, key: As in `training.forward.forward`.

        Returns:
          The sums, additive over parts of a batch, and the collections that the model
          wrote.
        """
        repeated = batch
        if self.passes > 1:
            # Adjacent passes of a row stay on one device if the rows are sharded.
            repeated = {k: jnp.repeat(x, self.passes, 0) for k, x in batch.items()}
        factors, written = forward(model, variables, repeated, key, 'factors_of_heads')
        (hidden_BTD, *later), *output = factors
        prepared = self.prepare(batch)
        targets = tuple(prepared[name] for name in self.targets)
        sums = self._head_sums(model, hidden_BTD, output, targets)
        if later:
            padding = model.special_tokens.padding
            total = jnp.zeros(())
            for steps, hidden_BTD in enumerate(later, 1):
                shifted = _shift_labels(targets, batch, steps, padding)
                total += self._head_sums(model, hidden_BTD, output, shifted).loss
            others = {**sums.others, 'later_tokens': total}
            sums = sums.replace(loss=sums.loss + total, others=others)
        return sums, written

    def _head_sums(self, model, hidden_BTD, output, targets):
        if self.passes > 1:
            of_pass = hidden_BTD.reshape(-1, self.passes, *hidden_BTD.shape[1:])
            hidden_BTD = jnp.moveaxis(of_pass, 1, 2)
        padding = model.special_tokens.padding
        settings = LossOptions(
            self.formula(padding),
            model.dense.dtype,
            model.embeddings.logit_cap,
            padding,
        )
        return loss_of_logits(hidden_BTD, tuple(output), targets, settings)

    def formula(self, padding: int) -> Formula:
        """Returns functions for the sums over labels and their gradient.

        Override it for a gradient in closed form.
        """

        def sums(logits_NV: jax.Array, targets: tuple[jax.Array, ...]) -> LossSums:
            labels_BT = targets[0]
            logits_BTPV = logits_NV.reshape(
                *labels_BT.shape, self.passes, logits_NV.shape[-1]
            )
            given = logits_BTPV if self.passes > 1 else logits_BTPV[:, :, 0]
            batch = dict(zip(self.targets, targets, strict=True))
            losses_BT = _losses_of(self, given, batch)
            metrics_BT = self.metrics(given, batch)
            counts_BT = labels_BT != padding

            def total(x_BT):
                return jnp.where(counts_BT, x_BT, 0.0).sum()

            loss, others = jax.tree.map(total, (losses_BT, metrics_BT))
            # Metrics that every loss reports, averaged over passes.
            labels_BTP = jnp.repeat(labels_BT[..., None], self.passes, -1)
            plain = cross_entropy_sums(logits_NV, (labels_BTP,), 0.0, padding)
            plain = jax.tree.map(lambda x: x / self.passes, plain)
            return plain.replace(loss=loss, others=others)

        def loss(
            logits_NV: jax.Array, targets: tuple[jax.Array, ...]
        ) -> tuple[jax.Array, LossSums]:
            found = sums(logits_NV, targets)
            return found.loss, found

        def sums_and_gradient(
            logits_NV: jax.Array, targets: tuple[jax.Array, ...]
        ) -> tuple[LossSums, jax.Array]:
            gradient_NV, found = jax.grad(loss, has_aux=True)(logits_NV, targets)
            return found, gradient_NV

        return Formula(sums, sums_and_gradient)


def _losses_of(loss: Loss, logits: jax.Array, batch: Batch) -> jax.Array:
    """Returns `loss(logits, batch)`.

    Raises:
      ValueError: It doesn't have a value for each label.
    """
    found = loss(logits, batch)
    expected = batch['labels'].shape
    if jnp.shape(found) != expected:
        raise ValueError(
            f'{type(loss).__name__} returned shape {jnp.shape(found)}, not {expected}. '
            'Return the loss of each label, without summing over labels.'
        )
    return found


def _shift_labels(
    targets: tuple[jax.Array, ...], batch: Batch, steps: int, padding: int
) -> tuple[jax.Array, ...]:
    """Returns the targets of later tokens, the labels first.

    Labels are padding where the sentence has ended.
    """

    def shift(x_BT):
        widths = [(0, 0), (0, steps)] + [(0, 0)] * (x_BT.ndim - 2)
        return jnp.pad(x_BT, widths)[:, steps:]

    segments_BT = batch['target_segments']
    labels_BT, *more = map(shift, targets)
    same_BT = shift(segments_BT) == segments_BT
    return jnp.where(same_BT, labels_BT, padding), *more


def label_log_p(logits_BTV: jax.Array, labels_BT: jax.Array) -> jax.Array:
    """Computes log p(label), float32 BT; other axes broadcast.

    Examples:
      >>> logits_BTV = jnp.log(jnp.array([[[1.0, 3.0]]]))
      >>> log_p_BT = label_log_p(logits_BTV, jnp.array([[1]]))

      >>> print(f'{jnp.exp(log_p_BT.item()):.2f}')
      0.75
    """
    log_p_BTV = jax.nn.log_softmax(logits_BTV)
    is_label_BTV = jax.nn.one_hot(labels_BT, logits_BTV.shape[-1], dtype=bool)
    return jnp.where(is_label_BTV, log_p_BTV, 0.0).sum(-1)


def smoothed_cross_entropy(
    logits_BTV: jax.Array, labels_BT: jax.Array, smoothing: float
) -> jax.Array:
    """Computes −Σ_v q(v) log p(v) with q = (1 − ε) · label + ε / V, float32 BT.

    Examples:
      >>> logits_BTV = jnp.zeros((1, 1, 8))
      >>> loss_BT = smoothed_cross_entropy(logits_BTV, jnp.array([[3]]), smoothing=0.1)
      >>> print(f'{loss_BT.item():.3f} {jnp.log(8.0):.3f}')
      2.079 2.079
    """
    nll_BT = -label_log_p(logits_BTV, labels_BT)
    mean_BT = -jax.nn.log_softmax(logits_BTV).mean(-1)
    return (1 - smoothing) * nll_BT + smoothing * mean_BT


class Sum(Loss):
    """Sum of losses that also reports each loss by its class name.

    Losses that need only logits and labels share a forward pass. A metric that several
    losses report gets the loss's position in the sum: `focal_1`.
    """

    arrays = ('losses',)
    losses: tuple[Loss, ...]

    def __call__(self, logits, batch):
        return sum(_losses_of(loss, logits, batch) for loss in self.losses)

    def metrics(self, logits, batch):
        return _shortest_names(_numbered_metrics(self._numbers(), logits, batch))

    def _numbers(self) -> dict[int, Loss]:
        return dict(enumerate(self.losses, 1))

    def sums(self, model, variables, batch, key=None):
        outputs = []
        others = {}
        numbers = self._numbers()
        shared = {i: loss for i, loss in numbers.items() if _needs_logits_alone(loss)}
        if shared:
            loss = _OnePass(tuple(shared.values()), tuple(shared))
            outputs.append(loss.sums(model, variables, batch, key))
            others |= outputs[0][0].others
        for index, loss in numbers.items():
            if index not in shared:
                outputs.append(loss.sums(model, variables, batch, key))
                sums, _ = outputs[-1]
                others |= _numbered({**sums.others, _name(loss): sums.loss}, index)
        first, written = outputs[0]
        total = sum(sums.loss for sums, _ in outputs)
        return first.replace(loss=total, others=_shortest_names(others)), written


class _OnePass(Loss):
    """Losses that need only logits and labels, with their positions in a sum."""

    arrays = ('losses',)
    losses: tuple[Loss, ...]
    numbers: tuple[int, ...]

    def __call__(self, logits, batch):
        return sum(_losses_of(loss, logits, batch) for loss in self.losses)

    def metrics(self, logits, batch):
        numbers = dict(zip(self.numbers, self.losses, strict=True))
        return _numbered_metrics(numbers, logits, batch)


def _numbered_metrics(
    losses: dict[int, Loss], logits: jax.Array, batch: Batch
) -> dict[str, jax.Array]:
    found = {}
    for number, loss in losses.items():
        metrics = {**loss.metrics(logits, batch), _name(loss): loss(logits, batch)}
        found |= _numbered(metrics, number)
    return found


def _numbered(metrics: dict[str, jax.Array], index: int) -> dict[str, jax.Array]:
    return {f'{name}_{index}': x for name, x in metrics.items()}


def _shortest_names(metrics: dict[str, jax.Array]) -> dict[str, jax.Array]:
    count = Counter(name.rpartition('_')[0] for name in metrics)
    shortest = {}
    for name, x in metrics.items():
        plain, _, number = name.rpartition('_')
        is_unique = number.isdigit() and count[plain] == 1 and plain not in metrics
        shortest[plain if is_unique else name] = x
    return shortest


def _needs_logits_alone(loss: Loss) -> bool:
    kind = type(loss)
    is_plain = kind.sums is Loss.sums and kind.prepare is Loss.prepare
    return is_plain and loss.passes == 1 and loss.targets == Loss.targets


def _name(loss: Loss) -> str:
    return re.sub('(?<!^)(?=[A-Z])', '_', type(loss).__name__).lower()
