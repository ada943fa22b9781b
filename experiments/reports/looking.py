"""What a trained run does inside when it writes a translation: attention and heads.

    import experiments
    from experiments.reports import looking

    run = experiments.open_run('runs/wmt_small')
    text = 'My doctor forgets to close my useful box.'
    (translation,) = run.translate([text])
    looking.attention(run, text, translation)['attention to the source']
    looking.alignment(run, text, translation)['mean of all layers']
    looking.importance(run).save('heads.svg')

Each is a chart of Vega-Altair, which a notebook shows.
"""

from typing import Any, NamedTuple

import altair as alt
import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from experiments.evaluation.opened_run import OpenedRun, pairs_batch
from experiments.reports import pictures
from experiments.runs import reading
from flaxformer_lite import introspection
from flaxformer_lite.layers.scanned_stack import unstack_layers
from flaxformer_lite.models.base import Model
from flaxformer_lite.training.batch import Batch
from flaxformer_lite.training.loss import loss_sums

CROSS = 'decoder cross'
# The encoder's attention first, as a text goes through the model.
KINDS = {
    'encoder': 'encoder self-attention',
    'decoder': 'decoder self-attention',
    CROSS: 'attention to the source',
}
_END = '</s>'


class Attended(NamedTuple):
    """The weights of all heads for one sentence, by attention as `KINDS` has them.

    Attributes:
      queries, keys: the pieces on the axes.
      weights: of each layer, HTS. An attention that does not hold its weights, such as
        the blockwise one, is left out.
    """

    queries: dict[str, list[str]]
    keys: dict[str, list[str]]
    weights: dict[str, list[np.ndarray]]


def attended(run: OpenedRun, source: str, target: str) -> Attended:
    """The weights with which the decoder writes `target`."""
    batch = pairs_batch(run.tokenizer, [(source, target)])
    of_source, of_target = run.tokenizer.sides
    read = of_source.pieces(batch['source'][0].tolist())
    written = of_target.pieces(batch['inputs'][0].tolist())
    found = Attended({}, {}, {})
    for kind, layers in run.record(source, target).weights.items():
        own = read if kind == 'encoder' else written
        if layers[0].shape[2] == len(read) + len(written):
            own = [*read, *written]  # one stack reads both
        found.queries[kind] = own
        found.keys[kind] = read if kind == CROSS else own
        found.weights[kind] = [np.asarray(layer[0], np.float64) for layer in layers]
    return found


def attention(run: OpenedRun, source: str, target: str) -> dict[str, alt.TopLevelMixin]:
    """The weights of all layers and heads while the decoder writes `target`.

    Returns:
      a chart for each attention, by its name in words.
    """
    seen = attended(run, source, target)
    return {
        title: pictures.head_maps(seen.weights[x], seen.queries[x], seen.keys[x])
        for x, title in KINDS.items()
        if x in seen.weights
    }


def alignment(run: OpenedRun, source: str, target: str) -> dict[str, alt.TopLevelMixin]:
    """Source × translation: of each layer the mean weights of all heads.

    A row is a piece that is written, at the step that writes it. Where layers differ in
    their numbers of heads, each counts as much as another in the mean of all layers.

    Returns:
      'mean of all layers', of several, and 'layer 0', … → the chart; nothing where the
      model has no attention to the source that holds its weights.
    """
    seen = attended(run, source, target)
    layers = [weights_HTS.mean(0) for weights_HTS in seen.weights.get(CROSS, [])]
    maps = {'mean of all layers': np.mean(layers, 0)} if len(layers) > 1 else {}
    maps |= {f'layer {i}': weights_TS for i, weights_TS in enumerate(layers)}
    # The step that reads a piece writes the next one.
    written = [*seen.queries.get(CROSS, [])[1:], _END]
    return {
        name: pictures.weights_map(weights_TS, written, seen.keys[CROSS])
        for name, weights_TS in maps.items()
    }


def importance(run: OpenedRun, pairs: int = 100) -> alt.TopLevelMixin | None:
    """What each head is worth: by how much the loss of a token rises without it.

    Args:
      run: which may still be training.
      pairs: how many, of the set `test` or else of the first that was scored.

    Returns:
      None where the model has no heads, or the run has no pairs yet.
    """
    chosen = reading.read_pairs(run.path)[:pairs]
    if not chosen:
        return None
    model = run.model.with_separate_layers()
    variables = unstack_layers(run.variables)
    batch = pairs_batch(run.tokenizer, chosen)
    rises = head_importance(model, variables, batch)
    grids = {title: rises[kind] for kind, title in KINDS.items() if kind in rises}
    return pictures.importance_map(grids) if grids else None


def head_importance(
    model: Model, variables: Any, batch: Batch
) -> dict[str, list[list[float]]]:
    """Attention → layer → head → by how much the loss of a token rises without it.

    Args:
      model, variables, batch: as `introspection.record`; the model does not scan.

    Returns:
      the rises in nats, with the keys of `KINDS`.
    """

    @jax.jit
    def mean_loss(masks: Any, variables: Any, batch: Batch) -> jax.Array:
        ablated = variables | {'ablation_masks': masks}
        sums = loss_sums(model, ablated, batch, loss='cross_entropy(label_smoothing=0)')
        return sums.loss / sums.tokens

    masks: dict[Any, Any] = flatten_dict(introspection.ablation_masks(model))

    def loss_with(masks: dict[Any, Any]) -> float:
        return float(mean_loss(unflatten_dict(masks), variables, batch))

    whole = loss_with(masks)
    rises: dict[str, list[list[float]]] = {}
    for path in [path for path in masks if path[-1] == 'heads']:
        of_layer = []
        for head in range(len(masks[path])):
            without_H = masks[path].at[head].set(0.0)
            of_layer.append(loss_with(masks | {path: without_H}) - whole)
        stack, _, module, _ = path
        kind = stack + introspection.ATTENTION_SUFFIXES[module]
        rises.setdefault(kind, []).append(of_layer)
    return rises
