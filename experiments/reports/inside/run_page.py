"""A page of one run and of sentences that it translates.

This imports JAX; the rest of a report does not.
"""

from collections.abc import Sequence

from experiments.reports import scores, texts
from experiments.reports.display import document
from experiments.reports.display.document import Section
from experiments.reports.inside import sections
from experiments.reports.inside.looking import Look
from experiments.reports.texts import Part, Sentence

_OWN = 'own translation'
_GIVEN = 'given target'


def html(run: Look, sources: Sequence[str], targets: Sequence[str]) -> str:
    """The page.

    Args:
      run: of which it is.
      sources: the sentences.
      targets: what the decoder writes of each, for its attention; empty: the run's own
        translation.

    Raises:
      UserError: a sentence or a file of the run cannot be read.
    """
    own = run.translate_all(sources)
    written = [target or found for target, found in zip(targets, own, strict=True)]
    inspection = run.inspect(list(zip(sources, written, strict=True)))
    study = run.study()
    shown = [
        _translations(run, sources, targets, own),
        *sections.of_run(inspection),
        Section('Scores', [], [scores.scores(study)]),
        sections.curves(study),
    ]
    return document.html(str(run.path), [x for x in shown if x is not None])


def _translations(
    run: Look, sources: Sequence[str], targets: Sequence[str], own: Sequence[str]
) -> Section:
    sentences = []
    for source, target, found in zip(sources, targets, own, strict=True):
        if target:
            both = {_OWN: texts.marked(found, target), _GIVEN: [Part(target, '')]}
            sentences.append(Sentence(source, '', both))
        else:
            sentences.append(Sentence(source, '', {_OWN: [Part(found, '')]}))
    text = []
    if any(targets):
        text.append(
            'Attention and alignment are of the given target. Marked in the own '
            'translation: what the target does not have, and what of it is missing.'
        )
    return Section(
        'Translations', text, sentences={'': sentences}, doubts=_doubts(run, sources)
    )


def _doubts(run: Look, sources: Sequence[str]) -> list[str]:
    """A line for each sentence that is longer than any that the run was trained on."""
    most = run.trained.config.batch.max_length
    doubts = []
    for number, source in enumerate(sources, 1):
        count = run.count(source)
        if count > most:
            doubts.append(
                f'Sentence {number} has {count} tokens with its end; the run was '
                f'trained on none of more than {most} (batch.max_length).'
            )
    return doubts
