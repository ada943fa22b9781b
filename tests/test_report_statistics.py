"""Tests of significance, against formulas written here and against invariants."""

import itertools

import numpy as np
import pytest
import sacrebleu
from scipy import stats

from experiments.reports import statistics


def test_a_spread_is_numpys_mean_and_sample_deviation():
    values = [93.7, 94.1, 92.2]
    found = statistics.spread(values)
    assert found.mean == pytest.approx(np.mean(values))
    assert found.sd == pytest.approx(np.std(values, ddof=1))
    assert found.n == 3
    assert statistics.spread([4.0]) == (4.0, None, 1)
    assert statistics.spread([]) is None


def test_welch_is_the_formula():
    a = np.array([31.0, 32.5, 30.2, 33.1])
    b = np.array([28.0, 30.9, 29.0])
    parts = [x.var(ddof=1) / len(x) for x in (a, b)]
    error = np.sqrt(sum(parts))
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / 3 + parts[1] ** 2 / 2)
    difference = a.mean() - b.mean()
    reach = stats.t.ppf(0.975, freedom) * error
    found = statistics.welch(list(a), list(b))
    assert found.value == pytest.approx(difference)
    assert (found.low, found.high) == pytest.approx(
        (difference - reach, difference + reach)
    )
    assert found.p == pytest.approx(2 * stats.t.sf(difference / error, freedom))


@pytest.mark.parametrize(
    ('values', 'base'),
    [([1.0], [2.0, 3.0]), ([1.0, 2.0], [2.0]), ([1.0, 1.0], [2.0, 2.0])],
)
def test_what_cannot_be_tested_has_a_difference_and_no_p(values, base):
    found = statistics.welch(values, base)
    assert found.value == np.mean(values) - np.mean(base)
    assert (found.low, found.high, found.p) == (None, None, None)


def closed_testing(ps):
    """Holm's procedure is Bonferroni's test of every intersection of hypotheses."""
    corrected = []
    for i in range(len(ps)):
        others = [j for j in range(len(ps)) if j != i]
        worst = 0.0
        for size in range(len(ps)):
            for chosen in itertools.combinations(others, size):
                members = [ps[i], *(ps[j] for j in chosen)]
                worst = max(worst, min(1.0, len(members) * min(members)))
        corrected.append(worst)
    return corrected


def test_holm_is_closed_testing_with_bonferroni():
    rng = np.random.default_rng(1)
    for size in range(1, 6):
        for _ in range(20):
            ps = (rng.random(size) ** 3).tolist()
            assert statistics.holm(ps) == pytest.approx(closed_testing(ps))


def test_holm_does_not_count_what_was_not_tested():
    assert statistics.holm([None, 0.03, None, 0.01]) == [None, 0.03, None, 0.02]
    assert statistics.holm([]) == []


REFERENCES = [
    f'the {a} cat saw {b} dogs in the garden' for a in 'abcde' for b in 'vwxyz'
]


def spoiled(every):
    """The references, every so many of them cut short."""
    return [
        text.replace('dogs in the', 'dog') if i % every == 0 else text
        for i, text in enumerate(REFERENCES)
    ]


def test_the_paired_bootstrap_scores_as_sacrebleu_does():
    found = statistics.paired_bootstrap('bleu', spoiled(3), spoiled(12), REFERENCES)
    score = sacrebleu.corpus_bleu(spoiled(12), [REFERENCES]).score
    assert found.score == pytest.approx(score)
    base = sacrebleu.corpus_bleu(spoiled(3), [REFERENCES]).score
    assert found.base_score == pytest.approx(base)


def test_the_paired_bootstrap_tells_a_difference_from_none():
    for outputs, p in ((spoiled(3), 1.0), (REFERENCES, 1 / (statistics.RESAMPLES + 1))):
        found = statistics.paired_bootstrap('bleu', spoiled(3), outputs, REFERENCES)
        assert found.p == pytest.approx(p)
