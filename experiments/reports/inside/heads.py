"""What the heads of a trained run attend to, and what each is worth.

This imports JAX; the rest of a report does not.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.data.tokenizer import BOS, EOS, Tokenizer
from experiments.runs import trained_run
from experiments.runs.trained_run import TrainedRun
from experiments.runtime import compilation
from flaxformer_lite import introspection
from flaxformer_lite.models.base import Model
from flaxformer_lite.training.batch import Batch, make_batch
from flaxformer_lite.training.loss import loss_sums

STATS = ('entropy', 'distance', 'largest', 'diagonal', 'previous')
# The masks' names of an attention, and a record's.
_KINDS = {
    (stack, module): stack + suffix
    for stack in ('encoder', 'decoder')
    for module, suffix in introspection.ATTENTION_SUFFIXES.items()
}
Grid = list[list[float]]  # a number by layer and head


class Attended(NamedTuple):
    """The weights of all heads for one sentence.

    Attributes:
      source, output: the texts.
      queries, keys: the pieces on the axes, by attention.
      weights: by attention, layer and head, rows of queries.
    """

    source: str
    output: str
    queries: dict[str, list[str]]
    keys: dict[str, list[str]]
    weights: dict[str, list[list[Grid]]]


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
      pairs: how many sentences the figures are of.
      note: why there are no weights and figures; empty if they are there.
    """

    path: Path
    steps: Sequence[int]
    sentences: list[Attended]
    stats: dict[str, dict[str, Grid]]
    importance: Importance
    loss: float
    pairs: int
    note: str


def inspect(
    path: Path,
    outputs: Sequence[tuple[str, str]],
    pairs: Sequence[tuple[str, str]],
) -> Inspection:
    """Looks into the run in a directory.

    Args:
      path: the run's.
      outputs: the sentences to show, each with the run's own translation.
      pairs: sources and references, for the figures.

    Raises:
      UserError: the run cannot be opened.
    """
    compilation.keep_programs()
    run = trained_run.open_trained(path)
    variables, steps, _ = trained_run.average(run.config, run.checkpoints, run.model)
    batch = _batch(run.tokenizer, pairs)
    importance, loss = head_importance(run.model, variables, batch)
    shown = []
    stats = {}
    note = ''
    try:
        shown = _attended(run, variables, outputs) if outputs else []
        stats = _stats(run.model, variables, batch)
    except ValueError as error:  # an attention that never holds its weights
        note = str(error)
    return Inspection(path, steps, shown, stats, importance, loss, len(pairs), note)


def _stats(model: Model, variables: Any, batch: Batch) -> dict[str, dict[str, Grid]]:
    def statistics(variables: Any, batch: Batch) -> Any:
        # What is not asked for, the gradients, is not computed.
        found = introspection.attention_stats(model, variables, batch)
        return {
            kind: {name: figures[name] for name in STATS}
            for kind, figures in found.items()
            if 'entropy' in figures
        }

    return jax.tree.map(np.ndarray.tolist, _once(statistics, variables, batch))


def _once(function: Any, *arguments: Any) -> Any:
    """The result of a function on the host, by a program that is soon compiled."""
    program = compilation.compiled(jax.jit(function), *arguments, once=True)
    return jax.device_get(program(*arguments))


def _batch(tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]]) -> Batch:
    sources = tokenizer.encode([source for source, _ in pairs])
    targets = tokenizer.encode([target for _, target in pairs])
    return make_batch(
        [[*ids, EOS] for ids in sources], [[*ids, EOS] for ids in targets], BOS
    )


def _attended(
    run: TrainedRun, variables: Any, outputs: Sequence[tuple[str, str]]
) -> list[Attended]:
    """The weights for each sentence, without padding."""
    batch = _batch(run.tokenizer, outputs)

    def record(variables: Any, batch: Batch) -> Any:
        return introspection.record(run.model, variables, batch).weights

    weights = _once(record, variables, batch)
    found = []
    for i, (source, output) in enumerate(outputs):
        read = _pieces(run.tokenizer, batch['source'][i])
        written = _pieces(run.tokenizer, batch['inputs'][i])
        attended = Attended(source, output, {}, {}, {})
        for kind, layers in weights.items():
            _add(attended, kind, [layer[i] for layer in layers], read, written)
        found.append(attended)
    return found


def _pieces(tokenizer: Tokenizer, ids: jax.Array) -> list[str]:
    """How the tokens of a row are written; padding as nothing."""
    return [tokenizer.pieces([i])[0] if i else '' for i in np.asarray(ids).tolist()]


def _add(
    attended: Attended,
    kind: str,
    layers: Sequence[np.ndarray],
    read: list[str],
    written: list[str],
) -> None:
    """Adds one attention's weights, by layer HTS, to those of a sentence."""
    own = read if kind == 'encoder' else written
    if layers[0].shape[1] == len(read) + len(written):
        own = read + written  # one stack reads both
    keys = read if kind.endswith('cross') else own
    rows = [i for i, piece in enumerate(own) if piece]
    columns = [i for i, piece in enumerate(keys) if piece]
    attended.queries[kind] = [own[i] for i in rows]
    attended.keys[kind] = [keys[i] for i in columns]
    attended.weights[kind] = [
        _rounded(layer[:, rows][:, :, columns]).tolist() for layer in layers
    ]


def _rounded(weights_HTS: np.ndarray) -> np.ndarray:
    """To three decimals, which are all that colours and a page can show."""
    return np.round(np.asarray(weights_HTS, np.float64), 3)


def head_importance(
    model: Model, variables: Any, batch: Batch
) -> tuple[Importance, float]:
    """What each head of each layer is worth, and the loss with all of them.

    The first-order estimate is −∂loss/∂mask (Michel et al. 2019, there in absolute
    value and by sentence).

    Args:
      model, variables, batch: as `introspection.record`.
    """

    def loss(masks: Any) -> jax.Array:
        sums = loss_sums(model, variables | {'ablation_masks': masks}, batch)
        return sums.loss / sums.tokens  # without smoothing, in nats

    masks = introspection.ablation_masks(model)
    with_all, gradients = _once(jax.value_and_grad(loss), masks)
    without = jax.jit(loss)
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
                rises.append(float(without(changed)) - float(with_all))
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
    heads_H = masks[stack][layer][module]['heads'].at[head].set(0.0)
    changed_layer = masks[stack][layer] | {module: {'heads': heads_H}}
    return masks | {stack: masks[stack] | {layer: changed_layer}}
