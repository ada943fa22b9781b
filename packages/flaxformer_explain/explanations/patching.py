"""Activation patching over heads, layers or tokens, and its linear estimate."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from flaxformer_explain.explanations.metrics import Metric
from flaxformer_explain.explanations.passes import (
    Activation,
    activations,
    logits_with,
    prepare,
    shifted,
)
from flaxformer_lite.models.base import Model
from flaxformer_lite.training.batch import Batch


class _Patch(NamedTuple):
    """A part of an activation to replace; int32 vectors over patches."""

    name: jax.Array
    indices: jax.Array


def activation_patching(
    model: Model,
    variables: Any,
    clean: Batch,
    corrupted: Batch,
    metric: Metric,
    names: Sequence[str],
    axes: str = 'H',
    batch_size: int = 16,
) -> dict[str, jax.Array]:
    """Returns how each clean activation changes the metric of the corrupted batch.

    Each patch replaces a head, a token or a whole activation of the corrupted run by
    that of the clean run (Heimersheim and Nanda 2024).

    Args:
      clean, corrupted: Batches of the same shapes (`make_batch(…, length=)`).
      metric: Function of the logits BTV that returns B.
      names: Activations, as in `intervene`, such as ['decoder/layer_*/*/z'].
      axes: Axes along which parts are patched one by one: 'H' for heads, 'T' for
        tokens, 'TH' for each head at each token, '' for whole activations.
      batch_size: Number of patches that run at once.

    Returns:
      metric(patched) − metric(corrupted), float32, by name, of the axes 'B' + `axes`.

    Raises:
      ValueError: As `logit_lens`, a name or an axis is unknown, or the shapes differ.
    """
    model, variables = prepare(model, variables)
    new, _, before_B = _both(model, variables, clean, corrupted, metric, names, axes)

    def change(patch: _Patch) -> jax.Array:
        given = {
            name: jax.tree_util.Partial(_replace, x.value, _chosen(patch, i, x, axes))
            for i, (name, x) in enumerate(new.items())
        }
        return metric(logits_with(model, variables, corrupted, given)) - before_B

    grids = {name: _sizes(x, axes) for name, x in new.items()}
    changes_NB = jax.lax.map(change, _patches(grids), batch_size=batch_size)
    found, start = {}, 0
    for name, sizes in grids.items():
        count = math.prod(sizes)
        own_NB = changes_NB[start : start + count]
        found[name] = own_NB.T.reshape(-1, *sizes)
        start += count
    return found


def attribution_patching(
    model: Model,
    variables: Any,
    clean: Batch,
    corrupted: Batch,
    metric: Metric,
    names: Sequence[str],
    axes: str = 'H',
) -> dict[str, jax.Array]:
    """Estimates `activation_patching` with one gradient (Nanda 2023).

    The estimate of a patch is Σ (clean − corrupted) ∂metric/∂activation, at the
    activation of the corrupted run. It is exact if the metric is linear in it.
    Arguments and results are those of `activation_patching`.
    """
    model, variables = prepare(model, variables)
    new, old, _ = _both(model, variables, clean, corrupted, metric, names, axes)

    def total(shifts):
        given = {name: shifted(x) for name, x in shifts.items()}
        return metric(logits_with(model, variables, corrupted, given)).sum()

    slopes = jax.grad(total)({name: jnp.zeros_like(x.value) for name, x in old.items()})
    return {
        name: jnp.einsum(
            f'{x.axes},{x.axes}->B{axes}', x.value - old[name].value, slopes[name]
        )
        for name, x in new.items()
    }


def _both(model, variables, clean, corrupted, metric, names, axes):
    _, new = activations(model, variables, clean, names)
    logits_BTV, old = activations(model, variables, corrupted, names)
    for name, x in new.items():
        if x.value.shape != old[name].value.shape:
            raise ValueError(
                f'clean: {name} has the shape {x.value.shape}, not '
                f'{old[name].value.shape}. Make both batches with the same `length`.'
            )
        missing = set(axes) - set(x.axes[1:])
        if missing or len(set(axes)) < len(axes):
            raise ValueError(
                f'axes: {axes!r} are not axes of {name}. Choose from {x.axes[1:]}.'
            )
    return new, old, metric(logits_BTV)


def _sizes(activation: Activation, axes: str) -> tuple[int, ...]:
    shape = activation.value.shape
    return tuple(shape[activation.axes.index(axis)] for axis in axes)


def _patches(grids) -> _Patch:
    indices = [
        jnp.indices(sizes, jnp.int32).reshape(len(sizes), math.prod(sizes)).T
        for sizes in grids.values()
    ]
    names = [jnp.full(len(x), i, jnp.int32) for i, x in enumerate(indices)]
    return _Patch(jnp.concatenate(names), jnp.concatenate(indices))


def _chosen(patch: _Patch, number: int, activation: Activation, axes: str) -> jax.Array:
    chosen = jnp.reshape(patch.name == number, (1,) * activation.value.ndim)
    for i, letter in enumerate(axes):
        axis = activation.axes.index(letter)
        index = jnp.arange(activation.value.shape[axis])
        others = [x for x in range(activation.value.ndim) if x != axis]
        chosen &= jnp.expand_dims(index == patch.indices[i], others)
    return chosen


def _replace(new, chosen, value, where):
    return jnp.where(chosen, new, value)
