"""Figures and sections of what was seen inside a run; without JAX.

A soft alignment has, for each piece that is written, the mean over the heads of a layer
of the weights at the step that writes it.
"""

from typing import TYPE_CHECKING

import numpy as np

from experiments.reports.figures import (
    Figure,
    head_maps,
    marked_map,
    numbers_of_heads,
)
from experiments.reports.page import Section

if TYPE_CHECKING:
    from experiments.reports.looking import Attended, Inspection

# The encoder's attention first, as a text goes through the model.
KINDS = {
    'encoder': 'encoder self-attention',
    'decoder': 'decoder self-attention',
    'decoder cross': 'attention to the source',
}
CROSS = 'decoder cross'
_ALIGNMENT = (
    'Each row is a piece of the translation, at the step that writes it: the mean of '
    'all heads. Its largest weight is marked. This is no word alignment '
    'in the strict sense: weights need not show what an output follows from (Jain and '
    'Wallace 2019), and layers differ: in Garg et al. (2019) the last but one of six '
    'came nearest to word alignments.'
)
_END = '</s>'


def weights(sentence: 'Attended', number: int) -> list[Figure]:
    """A figure for each attention: all heads, a row a layer."""
    figures = []
    for kind, title in KINDS.items():
        if kind in sentence.weights:
            queries = sentence.queries[kind]
            keys = sentence.keys[kind]
            chart = head_maps(sentence.weights[kind], queries, keys)
            name = f'attention_{number}_{kind.replace(" ", "_")}'
            figures.append(Figure(name, title, chart))
    return figures


def alignments(sentence: 'Attended') -> dict[str, np.ndarray]:
    """The alignment of each layer, 'layer 0' and so on, after the mean of them all.

    Rows are written pieces, columns those that are read. Empty where the model has no
    attention to the source that holds its weights. Layers may differ in their numbers
    of heads: each counts as much as another.
    """
    layers = [np.mean(heads, 0) for heads in sentence.weights.get(CROSS, [])]
    named = {'mean of all layers': np.mean(layers, 0)} if len(layers) > 1 else {}
    return named | {f'layer {i}': weights_TS for i, weights_TS in enumerate(layers)}


def alignment_figures(sentence: 'Attended', number: int) -> dict[str, Figure]:
    """A figure for each alignment of a sentence, by its name in `alignments`."""
    figures = {}
    for name, weights_TS in alignments(sentence).items():
        # The step that reads a piece writes the next one.
        written = [*sentence.queries[CROSS][1:], _END]
        chart = marked_map(weights_TS, written, sentence.keys[CROSS])
        file = f'alignment_{number}_{name.replace(" ", "_")}'
        figures[name] = Figure(file, f'Alignment, {name}', chart, _ALIGNMENT)
    return figures


def entropy(found: 'Inspection') -> Figure | None:
    """How far heads spread their weights; None where no attention holds them."""
    grids = {KINDS[x]: found.entropy[x] for x in KINDS if x in found.entropy}
    if not grids:
        return None
    title = 'Heads: entropy of the weights, nats'
    return Figure('heads_entropy', title, numbers_of_heads(grids, 'heatmap'))


def importance(found: 'Inspection') -> Figure | None:
    """What each head is worth; None where none was switched off."""
    if not found.importance:
        return None
    grids = {KINDS[x]: found.importance[x] for x in KINDS if x in found.importance}
    text = (
        'By how much the loss of a token, in nats, rises where a head is switched off.'
    )
    chart = numbers_of_heads(grids, 'diverging')
    title = 'Importance of heads: rise of the loss'
    return Figure('heads_importance', title, chart, text)


def sections(found: 'Inspection') -> list[Section]:
    """A run's attention with its alignments, and its heads."""
    return [_attention(found), _heads(found)]


def _attention(found: 'Inspection') -> Section:
    steps = ', '.join(map(str, found.steps))
    text = (
        'The weights are those of the run that writes the translation; an attention '
        'that does not hold its weights, such as the blockwise one, is not shown. '
        'Choose a sentence, point at a weight, and click on a head to see it large.'
    )
    section = Section(
        'Attention', [f'Run {found.path}, checkpoint of step {steps}.', text]
    )
    maps: dict[str, Figure] = {}
    aligned: dict[str, Figure] = {}
    for number, sentence in enumerate(found.sentences, 1):
        # Isolated, so that its direction does not turn round what stands beside it.
        source = f'\u2068{sentence.source}\u2069'
        for figure in weights(sentence, number):
            maps[f'{number}. {figure.title} · {source}'] = figure
        for name, figure in alignment_figures(sentence, number).items():
            aligned[f'{number}. alignment, {name} · {source}'] = figure
    section.choices += filter(None, [maps, aligned])
    return section


def _heads(found: 'Inspection') -> Section:
    section = Section('Heads')
    for figure in (importance(found), entropy(found)):
        if figure is not None:
            section.choices.append({figure.title: figure})
    if not section.choices:
        section.text.append(
            'Nothing is said of heads: the model has none, or the run has not been '
            'scored yet and has no pairs of an evaluation set.'
        )
    return section
