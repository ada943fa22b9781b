"""Figures, a table and sections of what was seen inside a run; without JAX.

A soft alignment has, for each piece that is written, the mean over the heads of a layer
of the weights at the step that writes it.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.reports.figures import (
    Figure,
    head_maps,
    marked_map,
    numbers_of_heads,
)
from experiments.reports.page import Section
from experiments.reports.tables import Table

if TYPE_CHECKING:
    from experiments.reports.looking import Attended, Inspection

# The encoder's attention first, as a text goes through the model.
KINDS = {
    'encoder': 'encoder self-attention',
    'decoder': 'decoder self-attention',
    'decoder cross': 'attention to the source',
}
CROSS = 'decoder cross'
_MEANINGS = {
    'entropy': 'entropy of the weights, nats',
    'distance': 'mean distance, tokens',
    'largest': 'largest weight',
    'diagonal': 'weight of the own position',
    'previous': 'weight of the position before',
}
_ALIGNMENT = (
    'Each row is a piece of the translation, at the step that writes it: the mean of '
    'all heads. Its largest weight is marked. This is no word alignment '
    'in the strict sense: weights need not show what an output follows from (Jain and '
    'Wallace 2019), and layers differ: in Garg et al. (2019) the last but one of six '
    'came nearest to word alignments.'
)
_END = '</s>'
_LONGEST = 80  # characters of a sentence in a list to choose from


def note(kinds: list[str]) -> str:
    """Says which attentions do not hold their weights; '' of none."""
    if not kinds:
        return ''
    names = ', '.join(KINDS[kind] for kind in kinds)
    return f'the weights of {names} cannot be shown, for it never holds them'


def no_alignment(note: str) -> str:
    """Why a model has no alignment, of which `note` says what it does not hold."""
    if KINDS[CROSS] in note:
        return note
    return 'there is no alignment, for no decoder of the model attends to the source'


def weights(sentence: 'Attended', number: int) -> list[Figure]:
    """A figure for each attention: all heads, a row a layer."""
    figures = []
    for kind, title in KINDS.items():
        if kind in sentence.weights:
            queries, keys = sentence.queries[kind], sentence.keys[kind]
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
    named = {f'layer {i}': weights_TS for i, weights_TS in enumerate(layers)}
    if len(layers) > 1:
        named = {'mean of all layers': np.mean(layers, 0), **named}
    return named


def alignment_figures(sentence: 'Attended', number: int) -> dict[str, Figure]:
    """A figure for each alignment of a sentence, by its name in `alignments`."""
    figures = {}
    for name, weights_TS in alignments(sentence).items():
        # The step that reads a piece writes the next one.
        written = [*sentence.queries[CROSS][1:], _END]
        chart = marked_map(
            weights_TS,
            (written, sentence.keys[CROSS]),
            ('translation', 'source'),
            weights_TS.argmax(1).tolist(),
        )
        file = f'alignment_{number}_{name.replace(" ", "_")}'
        figures[name] = Figure(file, f'Alignment, {name}', chart, _ALIGNMENT)
    return figures


def statistics(found: 'Inspection') -> list[Figure]:
    """A figure for each statistic, an attention beside the other."""
    figures = []
    for name, meaning in _MEANINGS.items():
        grids = {KINDS[x]: found.stats[x][name] for x in KINDS if x in found.stats}
        if grids:
            chart = numbers_of_heads(grids)
            figures.append(Figure(f'heads_{name}', f'Heads: {meaning}', chart))
    return figures


def importance(found: 'Inspection') -> Figure | None:
    """What each head is worth; None where none was switched off."""
    if not found.importance:
        return None
    grids = {KINDS[x]: found.importance[x] for x in KINDS if x in found.importance}
    text = (
        f'By how much the loss of a token, {found.loss:.4f} nats over {found.pairs} '
        'sentences, rises where a head is switched off.'
    )
    chart = numbers_of_heads(grids, diverging=True)
    title = 'Importance of heads: rise of the loss'
    return Figure('heads_importance', title, chart, text)


def table(found: 'Inspection') -> Table:
    """Every head with all that is known of it."""
    rows: list[tuple[Any, ...]] = []
    for kind, grid in found.importance.items():
        stats = found.stats.get(kind, {})
        for (layer, head), rise in np.ndenumerate(grid):
            known = [stats[x][layer][head] if x in stats else None for x in _MEANINGS]
            rows.append((KINDS[kind], layer, head, float(rise), *known))
    rows.sort(key=lambda row: -row[3])
    names = ('attention', 'layer', 'head', 'rise of loss', *_MEANINGS)
    return Table('heads', 'Heads, the most important first', names, tuple(rows))


def sections(found: 'Inspection') -> list[Section]:
    """A run's attention with its alignments, and its heads."""
    return [_attention(found), _heads(found)]


def _attention(found: 'Inspection') -> Section:
    steps = ', '.join(map(str, found.steps))
    section = Section('Attention', [f'Run {found.path}, checkpoint of step {steps}.'])
    if found.note:
        section.text.append(_sentence(found.note))
    maps: dict[str, Figure] = {}
    aligned: dict[str, Figure] = {}
    for number, sentence in enumerate(found.sentences, 1):
        text = _isolated(sentence.source)
        for figure in weights(sentence, number):
            maps[f'{number}. {figure.title} · {text}'] = figure
        for name, figure in alignment_figures(sentence, number).items():
            aligned[f'{number}. alignment, {name} · {text}'] = figure
    if maps:
        section.text.append(
            'The weights are those of the run that writes the translation. Choose a '
            'sentence, point at a weight, and click on a head to see it large.'
        )
    if found.sentences and not aligned and no_alignment(found.note) != found.note:
        section.text.append(_sentence(no_alignment(found.note)))
    section.choices += [choice for choice in (maps, aligned) if choice]
    return section


def _heads(found: 'Inspection') -> Section:
    section = Section('Heads')
    if not found.pairs:
        section.text.append(
            f'Nothing is said of heads: {found.path} has no pairs of an evaluation set '
            'yet, which a run has once it has been scored.'
        )
        return section
    important = importance(found)
    if important is None:
        section.text.append('The model has no heads that can be switched off.')
    else:
        section.choices.append({important.title: important})
        section.more.append(table(found))
    by_title = {figure.title: figure for figure in statistics(found)}
    if by_title:
        section.choices.append(by_title)
    return section


def _isolated(text: str) -> str:
    """A text whose direction does not turn round what stands beside it."""
    shown = text if len(text) <= _LONGEST else f'{text[: _LONGEST - 1]}…'
    return f'\u2068{shown}\u2069'


def _sentence(text: str) -> str:
    return f'{text[0].upper()}{text[1:]}.'
