"""The parts of a page that show one run's inside, and curves; without JAX."""

from typing import TYPE_CHECKING

from experiments.reports.arms import Study
from experiments.reports.display.charts import Figure
from experiments.reports.display.curves import curves as curves_of
from experiments.reports.display.document import Section
from experiments.reports.inside import alignment, pictures

if TYPE_CHECKING:
    from experiments.reports.inside.heads import Inspection

_LONGEST = 80  # characters of a sentence in a list to choose from


def of_run(found: 'Inspection') -> list[Section]:
    """A run's attention with its alignments, and its heads."""
    return [_attention(found), _heads(found)]


def _attention(found: 'Inspection') -> Section:
    steps = ', '.join(map(str, found.steps))
    section = Section('Attention', [f'Run {found.path}, checkpoint of step {steps}.'])
    if found.note:
        section.text.append(_sentence(found.note))
    weights: dict[str, Figure] = {}
    alignments: dict[str, Figure] = {}
    for number, sentence in enumerate(found.sentences, 1):
        text = _isolated(sentence.source)
        for figure in pictures.weights(sentence, number):
            weights[f'{number}. {figure.title} · {text}'] = figure
        for name, figure in alignment.figures(sentence, number).items():
            alignments[f'{number}. alignment, {name} · {text}'] = figure
    if weights:
        section.text.append(
            'The weights are those of the run that writes the translation. Choose a '
            'sentence, point at a weight, and click on a head to see it large.'
        )
        section.choices.append(weights)
    if alignments:
        section.choices.append(alignments)
    elif found.sentences and alignment.missing(found.note) != found.note:
        section.text.append(_sentence(alignment.missing(found.note)))
    return section


def _heads(found: 'Inspection') -> Section:
    section = Section('Heads')
    if not found.pairs:
        section.text.append(
            f'Nothing is said of heads: {found.path} has no pairs of an evaluation set '
            'yet, which a run has once it has been scored.'
        )
        return section
    important = pictures.importance(found)
    if important is None:
        section.text.append('The model has no heads that can be switched off.')
    else:
        section.choices.append({important.title: important})
        section.more.append(pictures.table(found))
    statistics = {figure.title: figure for figure in pictures.statistics(found)}
    if statistics:
        section.choices.append({**statistics})
    return section


def curves(study: Study) -> Section | None:
    """The curves of training; None where no run has any."""
    choices: list[dict[str, Figure]] = []
    for charts in curves_of(study).values():
        choices.append({f'against {axis}': chart for axis, chart in charts.items()})
    if not choices:
        return None
    text = (
        "Tokens and time of a row are its share of the run's, by steps, where the row "
        'does not tell them.'
    )
    if any(len(arm.runs) > 1 for arm in study.arms):
        text = (
            'A line is the mean over seeds at the steps that all of an arm have; the '
            f'band goes from the lowest seed to the highest. {text}'
        )
    return Section('Curves', [text], choices=choices)


def _isolated(text: str) -> str:
    """A text whose direction does not turn round what stands beside it."""
    shown = text if len(text) <= _LONGEST else f'{text[: _LONGEST - 1]}…'
    return f'\u2068{shown}\u2069'


def _sentence(text: str) -> str:
    return f'{text[0].upper()}{text[1:]}.'
