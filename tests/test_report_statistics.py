"""Tests of significance, against formulas written here and against invariants."""

import itertools

import numpy as np
import pytest
import sacrebleu

from experiments import metrics
from experiments.reports import analysis, findings, statistics
from experiments.runs.reading import Translations


def test_a_spread_is_numpys_mean_and_sample_deviation():
    values = [93.7, 94.1, 92.2]
    found = statistics.spread(values)
    assert found.mean == pytest.approx(np.mean(values))
    assert found.sd == pytest.approx(np.std(values, ddof=1))
    assert found.n == 3
    assert statistics.spread([4.0]) == (4.0, None, 1)
    assert statistics.spread([]) is None


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


# Few sentences, of which some are translated alike: many swaps are as far apart.
REFERENCES = ['the old cat sleeps in the garden', 'we see two red birds today'] * 4
BASE = [text.replace('old', 'red').replace('today', '') for text in REFERENCES]
SYSTEM = [*REFERENCES[:3], *BASE[3:7], 'we see two birds today']


def of_all_swaps(score):
    """The share of all ways to swap that are as far apart as the translations are."""
    observed = abs(score(SYSTEM) - score(BASE))
    as_far = []
    for is_swapped in itertools.product((False, True), repeat=len(BASE)):
        sides = zip(is_swapped, BASE, SYSTEM, strict=True)
        pairs = [(b, a) if swapped else (a, b) for swapped, a, b in sides]
        base, system = zip(*pairs, strict=True)
        as_far.append(abs(score(system) - score(base)) >= observed - 1e-9)
    return np.mean(as_far)


@pytest.mark.parametrize('name', ['bleu', 'chrf', 'ter'])
def test_approximate_randomisation_comes_close_to_all_swaps(name):
    def score(outputs):
        return corpus_score(outputs, [REFERENCES]).score

    corpus_score = getattr(sacrebleu, f'corpus_{name}')
    exact = of_all_swaps(score)
    assert 0.05 < exact < 0.95
    known = [(text,) for text in REFERENCES]
    base, system = (Translations(known, known, x) for x in (BASE, SYSTEM))
    metric = metrics.deciding(name, '')
    found = findings.paired_test(metric, base, system, family=5)
    assert found.base_score == pytest.approx(score(BASE))
    assert found.score == pytest.approx(score(SYSTEM))
    trials = 5 * statistics.TRIALS
    assert abs(found.p - exact) < 4 * np.sqrt(exact * (1 - exact) / trials)


def mean_of_words(total):
    """Right words, of all words: a score that is no mean over sentences."""
    right, words = total
    return right / words


def test_equal_systems_differ_in_no_more_than_one_of_twenty_draws(monkeypatch):
    monkeypatch.setattr(statistics, 'TRIALS', 99)
    rng = np.random.default_rng(0)
    alarms = []
    for _ in range(1000):
        words = rng.integers(1, 20, 30)
        chances = rng.random(30)  # some sentences are easy for both
        systems = [np.stack([rng.binomial(words, chances), words], 1) for _ in range(2)]
        found = statistics.approximate_randomisation(*systems, mean_of_words, 1)
        alarms.append(found.p <= analysis.LEVEL)
    assert np.mean(alarms) < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 1000)


def test_a_large_loss_is_shown_among_a_hundred():
    base = np.full((30, 2), [9, 10])
    system = np.full((30, 2), [5, 10])
    found = statistics.approximate_randomisation(base, system, mean_of_words, 100)
    assert found.difference == pytest.approx(-0.4)
    assert max(statistics.holm([found.p] * 100)) < analysis.LEVEL / 10


def test_equal_translations_differ_by_chance():
    same = np.array([[3, 7], [5, 5]])
    assert statistics.approximate_randomisation(same, same, mean_of_words, 1).p == 1
