"""What each head of a trained run does on average, and what it is worth.

This imports JAX; the rest of a report does not.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.reports.inside.attended import Attended, run_once
from experiments.runtime import compilation
from flaxformer_lite import introspection
from flaxformer_lite.models.base import Model
from flaxformer_lite.training.batch import Batch
from flaxformer_lite.training.loss import loss_sums

STATS = ('entropy', 'distance', 'largest', 'diagonal', 'previous')
# The masks' names of an attention, and a record's.
_KINDS = {
    (stack, module): stack + suffix
    for stack in ('encoder', 'decoder')
    for module, suffix in introspection.ATTENTION_SUFFIXES.items()
}
Grid = list[list[float]]  # a number by layer and head


class Importance(NamedTuple):
    """By how much the loss of a token, in nats, rises without a head.

    Attributes:
      measured: the head is switched off and all else stays.
      estimated: by the gradient at the whole model, the first order of that.
    """

    measured: dict[str, Grid]
    estimated: dict[str, Grid]


class Inspection(NamedTuple):
    """What is known of a run's heads.

    Attributes:
      path: the run's directory.
      steps: the checkpoints whose mean was taken.
      sentences: with their weights.
      stats: the figures of `STATS`, by attention and name.
      importance: of the heads.
      loss: of a token, with all heads.
      pairs: how many sentences the figures are of; without any there are none.
      note: why there are no weights and figures of an attention; empty if all are
        there.
    """

    path: Path
    steps: Sequence[int]
    sentences: list[Attended]
    stats: dict[str, dict[str, Grid]]
    importance: Importance
    loss: float
    pairs: int
    note: str


def head_stats(
    model: Model, variables: Any, batch: Batch
) -> dict[str, dict[str, Grid]]:
    """The figures of `STATS`, by attention; those without weights are left out.

    Args:
      model, variables, batch: as `introspection.attention_stats`.
    """

    def head_statistics(variables: Any, batch: Batch) -> Any:
        # What is not asked for, the gradients, is not computed.
        found = introspection.attention_stats(model, variables, batch, missing_ok=True)
        return {
            kind: {name: figures[name] for name in STATS}
            for kind, figures in found.items()
            if 'entropy' in figures
        }

    found = run_once(head_statistics, variables, batch)
    return jax.tree.map(np.ndarray.tolist, found)


def head_importance(
    model: Model, variables: Any, batch: Batch
) -> tuple[Importance, float]:
    """What each head of each layer is worth, and the loss with all of them.

    The first-order estimate is −∂loss/∂mask (Michel et al. 2019, there in absolute
    value and by sentence).

    Args:
      model, variables, batch: as `introspection.record`.
    """

    def ablated_loss(masks: Any, variables: Any, batch: Batch) -> jax.Array:
        sums = loss_sums(model, variables | {'ablation_masks': masks}, batch)
        return sums.loss / sums.tokens  # without smoothing, in nats

    def mask_gradients(masks: Any, variables: Any, batch: Batch) -> Any:
        return jax.value_and_grad(ablated_loss)(masks, variables, batch)

    # Placed as the other arrays are, so that one program serves all masks.
    placed = jax.tree.leaves(variables)[0].sharding
    masks = jax.device_put(introspection.ablation_masks(model), placed)
    with_all, gradients = run_once(mask_gradients, masks, variables, batch)
    without = compilation.Program(jax.jit(ablated_loss))
    importance = Importance({}, {})
    for (stack, module), kind in _KINDS.items():
        layers = _layers(masks, stack, module)
        if not layers:
            continue
        measured = []
        estimated = []
        for name in layers:
            gradient_H = gradients[stack][name][module]['heads']
            estimated.append((-np.asarray(gradient_H, np.float64)).tolist())
            rises = []
            for head in range(len(gradient_H)):
                changed = _switched_off(masks, (stack, name, module), head)
                loss = float(without(changed, variables, batch))
                rises.append(loss - float(with_all))
            measured.append(rises)
        importance.measured[kind] = measured
        importance.estimated[kind] = estimated
    return importance, float(with_all)


def _layers(masks: Any, stack: str, module: str) -> list[str]:
    """The names of the layers of a stack that have such an attention, in order."""
    names = []
    layer = 0
    while f'layer_{layer}' in masks.get(stack, {}):
        if module in masks[stack][f'layer_{layer}']:
            names.append(f'layer_{layer}')
        layer += 1
    return names


def _switched_off(masks: Any, place: tuple[str, str, str], head: int) -> Any:
    """The masks with one head at 0; the others are shared."""
    stack, layer, module = place
    before_H = masks[stack][layer][module]['heads']
    heads_H = jax.device_put(before_H.at[head].set(0.0), before_H.sharding)
    changed_layer = masks[stack][layer] | {module: {'heads': heads_H}}
    return masks | {stack: masks[stack] | {layer: changed_layer}}
