"""Tests of significance tests, against formulas and invariants."""

import numpy as np
import pytest
import sacrebleu
from scipy import stats

from experiments import metrics
from experiments.reports import findings
from experiments.runs.reading import Translations
from experiments.sweeps import analysis


def test_a_spread_is_numpys_mean_and_sample_deviation():
    values = [93.7, 94.1, 92.2]
    found = analysis.spread(values)
    assert found.mean == pytest.approx(np.mean(values))
    assert found.sd == pytest.approx(np.std(values, ddof=1))
    assert found.n == 3
    assert analysis.spread([4.0]) == (4.0, None, 1)
    assert analysis.spread([]) is None


REFERENCES = ['the old cat sleeps in the garden', 'we see two red birds today'] * 4
BASE = [text.replace('old', 'red').replace('today', '') for text in REFERENCES]
SYSTEM = [*REFERENCES[:3], *BASE[3:7], 'we see two birds today']


@pytest.mark.parametrize('name', ['bleu', 'chrf', 'ter'])
def test_sentences_alone_are_the_jackknife_of_the_corpus_score(name):
    corpus_score = getattr(sacrebleu, f'corpus_{name}')

    def difference(kept):
        of = []
        for outputs in (SYSTEM, BASE):
            texts = [[text[i] for i in kept] for text in (outputs, REFERENCES)]
            of.append(corpus_score(texts[0], [texts[1]]).score)
        return of[0] - of[1]

    number = len(BASE)
    left_out = [difference([j for j in range(number) if j != i]) for i in range(number)]
    error = np.sqrt((number - 1) * np.var(left_out))
    effect = difference(range(number))
    known = [(text,) for text in REFERENCES]
    pair = tuple(Translations(known, known, x) for x in (BASE, SYSTEM))
    found = findings.paired_test(
        metrics.deciding(metrics.make(name), ''), [pair], family=5
    )
    assert found.effect == pytest.approx(effect) and found.share == 1
    reach = stats.t.isf(0.05 / 5 / 2, number - 1) * error
    assert (found.low, found.high) == pytest.approx((effect - reach, effect + reach))
    p = min(1, 5 * 2 * stats.t.sf(abs(effect) / error, number - 1))
    assert found.p == pytest.approx(p)


def mean_of_words(total):
    """Returns the share of correct words."""
    right, words = total
    return right / words


def mean(total):
    return total[0] / total[1]


def as_statistics(values):
    return np.stack([values, np.ones_like(values)], -1)


def test_a_mean_of_one_seed_is_the_paired_t_test():
    base, system = np.random.default_rng(0).standard_normal((2, 1, 12))
    found = analysis.over_sentences(as_statistics(base), as_statistics(system), mean)
    expected = stats.ttest_rel(system[0], base[0])
    assert found.p == pytest.approx(expected.pvalue)
    interval = expected.confidence_interval()
    assert (found.low, found.high) == pytest.approx(tuple(interval))


def test_equal_sentences_leave_the_paired_t_test_of_seeds():
    scores = np.random.default_rng(1).standard_normal((2, 4, 1))
    base, system = (as_statistics(np.repeat(x, 9, 1)) for x in scores)
    found = analysis.over_sentences(base, system, mean)
    expected = stats.ttest_rel(*scores[::-1, :, 0])
    assert found.p == pytest.approx(expected.pvalue) and found.share < 1e-12


def test_the_error_over_seeds_may_be_that_of_all_arms():
    random = np.random.default_rng(1)
    scores = random.standard_normal((4, 3)) + random.standard_normal(3)
    by_arm = {f'{i}': dict(enumerate(row)) for i, row in enumerate(scores)}
    contrast = analysis.compare(by_arm, '0')[0]
    # Equal sentences: nothing beside that error is left, which is Fisher's.
    base, system = (
        as_statistics(np.repeat(x[None, :, None], 9, 2)[0]) for x in scores[:2]
    )
    found = analysis.over_sentences(base, system, mean, contrast=contrast)
    residuals = scores - scores.mean(0) - scores.mean(1, keepdims=True) + scores.mean()
    error = np.sqrt(2 / 3 * (residuals**2).sum() / 6)
    assert found.high - found.effect == pytest.approx(stats.t.isf(0.025, 6) * error)


def test_intervals_cover_what_other_seeds_and_sentences_would_bring():
    random = np.random.default_rng(0)
    seeds, sentences = 4, 40
    covered, of_seeds_alone = [], []
    for _ in range(500):
        words = random.integers(1, 20, sentences)
        # How much better the system is with a seed, and on a sentence: 0 on average.
        chances = 0.5 + 0.1 * random.standard_normal((seeds, 1))
        chances = chances + 0.15 * random.standard_normal(sentences)
        systems = [
            np.stack([random.binomial(words, p), np.tile(words, (seeds, 1))], -1)
            for p in (np.full((seeds, sentences), 0.5), chances.clip(0, 1))
        ]
        found = analysis.over_sentences(*systems, mean_of_words)
        covered.append(found.low <= 0 <= found.high)
        sums = [x.sum(1) for x in systems]
        means = [x[:, 0] / x[:, 1] for x in sums]
        of_seeds_alone.append(stats.ttest_rel(*means).pvalue > 0.05)
    error = np.sqrt(0.05 * 0.95 / 500)
    assert np.mean(covered) > 0.95 - 3 * error
    # Which is why sentences count: they are the same for all seeds.
    assert np.mean(of_seeds_alone) < 0.95 - 3 * error


def test_equal_translations_have_no_interval():
    same = np.array([[[3.0, 7.0], [5.0, 5.0]]])
    found = analysis.over_sentences(same, same, mean_of_words)
    assert found == (0.0, None, None, None, None)
