"""What must hold of every metric, ours or a user's."""

import math
from collections.abc import Iterator

from experiments.metrics.base import Metric
from flaxformer_lite.testing.finding import Finding, without

SOURCES = ['ein Hund', 'die Katze sitzt', 'wir helfen', 'niemand']
# Not all have as many.
REFERENCES: list[tuple[str, ...]] = [
    ('a dog', 'the dog barks at the gate'),
    ('The cat is sitting on the mat.',),
    ('We would like to help you, if we can.', 'We help.'),
    ('No one saw the dogs today.',),
]
OUTPUTS = ['the dog', 'The cat sits on a mat.', 'We would like to help.', 'the the']
PERFECT = [references[0] for references in REFERENCES]
BLANK = [''] * len(SOURCES)
ROUNDING = 1e-9  # of a score: what is summed in another order


def metric_findings(metric: Metric) -> list[Finding]:
    """The contracts of a metric, by a few sentences with one reference or several."""
    rows = without('each sentence has a row of numbers', _without_row(metric))
    if not rows.holds:
        return [rows]
    return [
        rows,
        without('scores are finite numbers', _not_finite(metric)),
        without('what a reference says is best', _better_than_best(metric)),
        without('blank translations are no better', _better_if_blank(metric)),
        without('the same score comes each time', _turned(metric, 1)),
        without('the order of sentences changes nothing', _turned(metric, -1)),
    ]


def _scores(metric: Metric, outputs: list[str]) -> list[float]:
    """Of all sentences, and of each."""
    texts = (outputs, REFERENCES, SOURCES)
    return [metric.score(*texts), *metric.sentence_scores(*texts)]


def _not_finite(metric: Metric) -> Iterator[str]:
    for outputs in (OUTPUTS, PERFECT, BLANK):
        for score in _scores(metric, outputs):
            if not math.isfinite(score):
                yield f'{outputs[0]!r} and others have {score}'


def _without_row(metric: Metric) -> Iterator[str]:
    rows = metric.statistics(OUTPUTS, REFERENCES, SOURCES)
    if len(rows) != len(OUTPUTS) or len(set(map(len, rows))) != 1:
        yield f'{len(OUTPUTS)} sentences have rows of {[len(row) for row in rows]}'


def _better_than_best(metric: Metric) -> Iterator[str]:
    best, *each = _scores(metric, PERFECT)
    score, *of_sentences = _scores(metric, OUTPUTS)
    if not metric.rank(best) > metric.rank(score):
        yield f'all references have {best:g}, and other translations {score:g}'
    for output, x, highest in zip(OUTPUTS, of_sentences, each, strict=True):
        if metric.rank(x) > metric.rank(highest):
            yield f'{output!r} has {x:g}, and its reference {highest:g}'


def _better_if_blank(metric: Metric) -> Iterator[str]:
    score, blank = (_scores(metric, outputs)[0] for outputs in (OUTPUTS, BLANK))
    if metric.rank(blank) > metric.rank(score):
        yield f'blank ones have {blank:g}, and others {score:g}'


def _turned(metric: Metric, step: int) -> Iterator[str]:
    """Examples of another score for the same sentences, in the order of a step."""
    texts = (OUTPUTS, REFERENCES, SOURCES)
    score = metric.score(*texts)
    other = metric.score(OUTPUTS[::step], REFERENCES[::step], SOURCES[::step])
    if not math.isclose(score, other, abs_tol=ROUNDING):
        yield f'it is {score:g}, and then {other:g}'
