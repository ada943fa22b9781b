"""Alignments of source and translation from the decoder's attention to the source.

A soft alignment has, for each piece that is written, the mean over the heads of a layer
of the weights at the step that writes it. It is no word alignment in the strict sense:
weights need not show what an output follows from (Jain and Wallace 2019, "Attention is
not Explanation"), and layers differ in how near they come to word alignments; in the
6-layer models of Garg et al. (2019, "Jointly Learning to Align and Translate with
Transformer Models") it was the last but one that came nearest.
"""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from experiments.reports.display.charts import Heatmap, Heatmaps
from experiments.reports.inside.pictures import KINDS

if TYPE_CHECKING:
    from experiments.reports.inside.attended import Attended

KIND = 'decoder cross'
MEAN = 'mean of all layers'
NOTE = (
    'Each row is a piece of the translation, at the step that writes it: the mean of '
    'all heads. Its largest weight is marked. This is no word alignment '
    'in the strict sense: weights need not show what an output follows from (Jain and '
    'Wallace 2019), and layers differ: in Garg et al. (2019) the last but one of six '
    'came nearest to word alignments.'
)
_END = '</s>'


class Alignment(NamedTuple):
    """Weights from each written piece to each piece of the source.

    Attributes:
      written: the pieces of the translation and its end.
      read: the pieces of the source and its end.
      weights_TS: float64; rows of written pieces.
      most_T: the place of each row's largest weight; of equal ones the first.
    """

    written: list[str]
    read: list[str]
    weights_TS: np.ndarray
    most_T: np.ndarray


def align(sentence: 'Attended') -> dict[str, Alignment]:
    """The alignment of each layer, 'layer 0' and so on, after the mean of them all.

    Empty where the model has no attention to the source that holds its weights. The
    layers may differ in their numbers of heads: each counts as much as another.
    """
    if KIND not in sentence.weights:
        return {}
    layers = [np.mean(np.asarray(heads), 0) for heads in sentence.weights[KIND]]
    # The step that reads a piece writes the next one.
    written = [*sentence.queries[KIND][1:], _END]
    named = {f'layer {i}': weights_TS for i, weights_TS in enumerate(layers)}
    if len(layers) > 1:
        named = {MEAN: np.mean(layers, 0), **named}
    return {
        name: Alignment(written, sentence.keys[KIND], weights_TS, weights_TS.argmax(1))
        for name, weights_TS in named.items()
    }


def missing(note: str) -> str:
    """Why a model has no alignment.

    Args:
      note: `pictures.note` of its attentions that do not hold their weights.
    """
    if KINDS[KIND] in note:
        return note
    return 'there is no alignment, for no decoder of the model attends to the source'


def figures(sentence: 'Attended', number: int = 1) -> dict[str, Heatmaps]:
    """A figure for each alignment of a sentence, by its name in `align`.

    Args:
      number: of the sentence, for the figures' names.
    """
    found = {}
    for name, alignment in align(sentence).items():
        heatmap = Heatmap(
            f'alignment, {name}',
            alignment.written,
            alignment.read,
            np.round(alignment.weights_TS, 3).tolist(),
            alignment.most_T.tolist(),
        )
        file = f'alignment_{number}_{name.replace(" ", "_")}'
        title = f'Alignment, {name}'
        found[name] = Heatmaps(
            file, title, 'source', 'translation', ((heatmap,),), note=NOTE
        )
    return found
