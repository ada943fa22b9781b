"""Tests of differences between arms, against other programs and simulated data."""

import itertools

import numpy as np
import pytest
import sacrebleu
from scipy import stats

from experiments import metrics
from experiments.reports import findings
from experiments.runs.reading import Translations
from experiments.sweeps import analysis
from experiments.sweeps.analysis import compare

# Relative error of the numerical integrals for p and for a bound.
INTEGRATION_ERROR = {'rel': 5e-3}


def draw_scores(arms, seeds, effects=0.0, random=None):
    """Returns scores with an error of 1, and seed effects twice as large."""
    random = random or np.random.default_rng(3)
    values = random.standard_normal((arms, seeds)) + 2 * random.standard_normal(seeds)
    values += np.broadcast_to(effects, arms)[:, None]
    return {f'arm {i}': dict(enumerate(row)) for i, row in enumerate(values.tolist())}


def as_lists(scores):
    return [list(by_seed.values()) for by_seed in scores.values()]


def rate_error(rate, number):
    """Returns three standard errors of a rate in a number of simulations."""
    return 3 * np.sqrt(rate * (1 - rate) / number)


@pytest.fixture
def rough(monkeypatch):
    """Makes analyses fast enough to repeat; their permutation tests are void."""
    monkeypatch.setattr(analysis, '_POINTS', 9)
    monkeypatch.setattr(analysis, '_PERMUTATIONS', 1)


def test_spread_matches_numpy_mean_and_sample_deviation():
    values = [93.7, 94.1, 92.2]
    expected = (np.mean(values), np.std(values, ddof=1), 3)
    assert analysis.spread(values) == pytest.approx(expected)
    assert analysis.spread([4.0]) == (4.0, None, 1)
    assert analysis.spread([]) is None


def test_two_arms_match_the_paired_t_test():
    scores = draw_scores(2, 4, effects=[0, 2])
    base, arm = as_lists(scores)
    expected = stats.ttest_rel(arm, base)
    (contrast,) = compare(scores, base='arm 0')
    assert contrast.effect == pytest.approx(np.mean(arm) - np.mean(base))
    assert contrast.p == pytest.approx(expected.pvalue, **INTEGRATION_ERROR)
    interval = tuple(expected.confidence_interval())
    assert (contrast.low, contrast.high) == pytest.approx(interval, rel=1e-3)
    assert contrast.seeds == 4


def dunnett_p(t, others, freedom):
    """Returns Dunnett's p-value (1955) for a balanced design, with correlation 1/2.

    Given the base mean and the scale, the differences are independent.
    """

    bases, weights = np.polynomial.legendre.leggauss(80)
    base, scale = np.meshgrid(6 * bases, 3 + 3 * bases, indexing='ij')
    reach = t * scale * np.sqrt(2)
    share = stats.norm.cdf(base + reach) - stats.norm.cdf(base - reach)
    density = stats.chi.pdf(scale * np.sqrt(freedom), freedom) * np.sqrt(freedom)
    below = share**others * stats.norm.pdf(base) * density
    return 1 - 6 * 3 * weights @ below @ weights


def test_blocked_arms_match_dunnetts_test_with_the_error_of_two_way_anova():
    scores = draw_scores(5, 3, effects=[0, 0.5, 2, 4, -1])
    values = np.array(as_lists(scores))
    residuals = values - values.mean(1, keepdims=True) - values.mean(0) + values.mean()
    freedom = 4 * 2
    error = np.sqrt(2 / 3 * (residuals**2).sum() / freedom)
    effects = values[1:].mean(1) - values[0].mean()
    for contrast, effect in zip(compare(scores, base='arm 0'), effects, strict=True):
        assert contrast.effect == pytest.approx(effect)
        p = dunnett_p(abs(effect) / error, 4, freedom)
        assert contrast.p == pytest.approx(p, **INTEGRATION_ERROR)
        reach = (contrast.high - contrast.low) / 2
        level = dunnett_p(reach / error, 4, freedom)
        assert level == pytest.approx(0.05, **INTEGRATION_ERROR)


def test_arms_without_common_seeds_match_dunnetts_and_tukeys_tests():
    shared = draw_scores(4, 5, effects=[0, 1, 2, 0])
    scores = {arm: {(arm, k): v for k, v in x.items()} for arm, x in shared.items()}
    base, *others = as_lists(scores)
    expected = stats.dunnett(*others, control=base, random_state=0)
    contrasts = compare(scores, base='arm 0')
    assert [x.seeds for x in contrasts] == [0, 0, 0]
    # scipy integrates by Monte Carlo.
    assert [x.p for x in contrasts] == pytest.approx(expected.pvalue, abs=1e-3)
    low = expected.confidence_interval().low
    np.testing.assert_allclose([x.low for x in contrasts], low, rtol=1e-3)
    expected = stats.tukey_hsd(base, *others)
    for contrast in compare(scores):
        i, j = (int(name[-1]) for name in contrast[:2])
        assert contrast.p == pytest.approx(expected.pvalue[i, j], **INTEGRATION_ERROR)


def test_unequal_numbers_of_seeds_have_the_standard_error_of_unequal_groups():
    random = np.random.default_rng(3)
    sizes = {'base': 8, 'one': 3, 'other': 3}
    scores = {
        arm: dict(enumerate(random.normal(size=size).tolist()))
        for arm, size in sizes.items()
    }
    contrasts = compare(scores, base='base', design=analysis.Design(blocks=False))
    groups = as_lists(scores)
    pooled = sum(np.var(group, ddof=1) * (len(group) - 1) for group in groups) / 11
    for contrast, group in zip(contrasts, groups[1:], strict=True):
        assert contrast.effect == pytest.approx(np.mean(group) - np.mean(groups[0]))
        assert contrast.error == pytest.approx(np.sqrt(pooled * (1 / 3 + 1 / 8)))
        assert contrast.freedom == 11
    expected = stats.dunnett(*groups[1:], control=groups[0]).pvalue
    assert [x.p for x in contrasts] == pytest.approx(expected, abs=2e-3)
    # With normal errors, exchanges agree with Dunnett's test.
    assert [x.permuted for x in contrasts] == pytest.approx(expected, abs=0.06)


def test_effect_of_a_seed_on_all_arms_cancels():
    scores = draw_scores(3, 4, effects=[0, 1, 3])
    del scores['arm 1'][2]
    shifted = {arm: x | {1: x[1] + 100} for arm, x in scores.items()}
    for one, other in zip(compare(scores), compare(shifted), strict=True):
        assert one[2:6] == pytest.approx(other[2:6])
        assert one.seeds == other.seeds
    assert [x.seeds for x in compare(scores)] == [3, 4, 3]


def test_missing_run_of_an_easy_seed_does_not_bias_the_effect():
    scores = {'base': {0: 10, 1: 20, 2: 31}, 'arm': {0: 15, 1: 25}}
    scores['third'] = {0: 10, 1: 21, 2: 30}
    contrast, _ = compare(scores, base='base')
    assert contrast.effect == pytest.approx(5, abs=0.5)


@pytest.mark.parametrize(
    'scores',
    [
        {'a': {0: 1.0}, 'b': {0: 2.0}},
        {'a': {0: 1.0, 1: 1.0}, 'b': {0: 2.0, 1: 2.0}},
        {'a': {0: 0.1, 1: 0.7}, 'b': {0: 1.1, 1: 1.7}},
    ],
)
def test_single_seeds_or_zero_variance_give_an_effect_without_a_test(scores):
    (contrast,) = compare(scores, base='a')
    assert contrast.effect == pytest.approx(1)
    assert contrast[3:6] == (None, None, None)
    assert not contrast.significant and contrast.detectable is None


def test_declared_contrasts_are_corrected_for_their_number_alone():
    scores = draw_scores(6, 3)
    (declared,) = compare(scores, contrasts=[('arm 4', 'arm 2')])
    (same,) = [x for x in compare(scores) if x[:2] == ('arm 2', 'arm 4')]
    assert declared.effect == pytest.approx(-same.effect)
    assert declared.p < same.p
    assert declared.high - declared.low < same.high - same.low


def test_arms_are_equivalent_if_the_whole_interval_is_within_the_margin_of_the_base():
    scores = draw_scores(3, 6)
    pairs = [('arm 1', 'arm 0'), ('arm 0', 'arm 1'), ('arm 0', 'arm 2')]
    contrasts = compare(scores, contrasts=pairs)
    reach = max(abs(contrasts[0].low), abs(contrasts[0].high))
    margins = {'arm 0': reach * 1.01, 'arm 1': reach * 0.99}
    contrasts = compare(scores, contrasts=pairs, margin=margins)
    assert [x.margin for x in contrasts] == [*margins.values(), None]
    assert [x.equivalent for x in contrasts] == [True, False, None]


@pytest.mark.ci
@pytest.mark.parametrize('base', ['arm 0', None])
def test_all_intervals_cover_the_true_differences_in_95_of_100_sweeps(base, rough):
    random = np.random.default_rng(0)
    effects = {f'arm {i}': effect for i, effect in enumerate([0, 0, 0, 3, 3])}
    alarms, covered = [], []
    for _ in range(400):
        scores = draw_scores(5, 3, [*effects.values()], random)
        pairs = [(x, effects[x.arm] - effects[x.base]) for x in compare(scores, base)]
        alarms.append(any(x.significant and effect == 0 for x, effect in pairs))
        covered.append(all(x.low <= effect <= x.high for x, effect in pairs))
    assert np.mean(alarms) < 0.05 + rate_error(0.05, 400)
    assert abs(np.mean(covered) - 0.95) < rate_error(0.05, 400)


def test_minimum_detectable_difference_has_a_power_of_80_percent(rough):
    random = np.random.default_rng(5)
    pilot = draw_scores(400, 3, random=random)  # whose error is nearly exactly 1
    arms = [f'arm {i}' for i in range(4)]
    pairs = [(arm, 'arm 0') for arm in arms[1:]]
    least = analysis.minimum_detectable(pilot, pairs, dict.fromkeys(arms, 3))
    detected = []
    for _ in range(400):
        scores = draw_scores(4, 3, [0, least, 0, 0], random)
        detected.append(compare(scores, base='arm 0')[0].significant)
    assert abs(np.mean(detected) - 0.8) < rate_error(0.8, 400)
    constant = {'a': {0: 1.0}, 'b': {0: 2.0}}
    for scores, seeds in ((constant, 3), (pilot, 1), ({}, 3)):
        counts = {'a': seeds, 'b': seeds}
        assert analysis.minimum_detectable(scores, [('a', 'b')], counts) is None


@pytest.mark.parametrize('looks', [1, 4])
def test_contrast_has_the_detectable_difference_of_its_design(looks):
    scores = draw_scores(4, 3)
    pairs = [('arm 1', 'arm 0'), ('arm 3', 'arm 2')]
    design = analysis.Design(looks)
    counts = dict.fromkeys(scores, 3)
    planned = analysis.minimum_detectable(scores, pairs, counts, design)
    for contrast in compare(scores, contrasts=pairs, design=design):
        assert contrast.detectable == pytest.approx(planned, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize('gap', [0.5, 1.5, 3.0])
def test_intervals_of_tuned_arms_include_the_choice_of_the_rate(rough, gap):
    """No arm has an effect, but with one trial per rate, chance chooses some rates.

    Scores have an error of 1, as have the trials; rates are `gap` apart.
    """
    random = np.random.default_rng(8)
    by_rate = -gap * np.arange(4)
    ignored, included = [], []
    for _ in range(300):
        scores, trials = draw_scores(8, 3, random=random), {}
        for arm, by_seed in scores.items():
            means = by_rate + random.standard_normal(4)
            trials[arm] = analysis.Trials(tuple(means), number=1)
            for seed in by_seed:
                by_seed[seed] += by_rate[means.argmax()]
        for alarms, design in (
            (ignored, analysis.Design()),
            (included, analysis.Design(trials=trials)),
        ):
            contrasts = compare(scores, base='arm 0', design=design)
            alarms.append(any(x.significant for x in contrasts))
    assert np.mean(included) < 0.05 + rate_error(0.05, 300)
    pairs = [(arm, 'arm 0') for arm in scores if arm != 'arm 0']
    counts = dict.fromkeys(scores, 3)
    most = analysis.error_rate_of_tuning(pairs, counts, values=4, trials=1)
    assert 0.07 < np.mean(ignored) < most + 0.05


def test_certain_choice_of_the_tuned_value_leaves_the_intervals_unchanged():
    scores = draw_scores(4, 3)
    trials = dict.fromkeys(scores, analysis.Trials((0.0, 900.0), number=1))
    design = analysis.Design(trials=trials)
    assert compare(scores, base='arm 0', design=design) == compare(scores, base='arm 0')


def test_error_rate_of_tuning_falls_with_the_number_of_trials():
    pairs, counts = [('b', 'a'), ('c', 'a')], {'a': 3, 'b': 3, 'c': 3}
    rates = [
        analysis.error_rate_of_tuning(pairs, counts, values=4, trials=number)
        for number in (1, 3, 1000)
    ]
    assert rates[0] > 1.5 * rates[1] > 1.5 * rates[2]
    assert rates[2] == pytest.approx(0.05, abs=0.002)


@pytest.mark.parametrize(
    ('extra', 'arguments', 'message'),
    [
        ({}, {'base': 'arm 9'}, "'arm 9'.* arm 0, arm 1"),
        ({'arm 2': {}}, {}, "'arm 2'"),
        ({'arm 2': {0: float('nan')}}, {}, "'arm 2', seed 0: .* nan"),
        ({}, {'margin': 0}, 'margin .*0'),
    ],
)
def test_invalid_scores_arms_and_margins_raise(extra, arguments, message):
    with pytest.raises(ValueError, match=message):
        compare(draw_scores(2, 3) | extra, **arguments)


# Yields of peas in six blocks by fertiliser (nitrogen, phosphate, potash), which R has
# as `npk` (Venables and Ripley 2002).
PEAS = [
    *('011 49.5', '110 62.8', '000 46.8', '101 57.0', '100 59.8', '111 58.5'),
    *('001 55.5', '010 56.0', '010 62.8', '111 55.8', '100 69.5', '001 55.0'),
    *('100 62.0', '111 48.8', '001 45.5', '010 44.2', '110 52.0', '000 51.5'),
    *('101 49.8', '011 48.8', '101 57.2', '110 59.0', '011 53.2', '000 56.0'),
]


def test_factors_match_the_analysis_of_variance_of_r():
    scores = {}
    for i, row in enumerate(PEAS):
        arm, value = row.split()
        scores.setdefault(arm, {})[i // 4] = float(value)
    levels = {arm: dict(zip('NPK', arm, strict=True)) for arm in scores}
    effects = {x.factors: x for x in analysis.effects(scores, levels)}
    # As summary(aov(yield ~ block + N * P * K, npk)) prints it; all three together
    # are confounded with the blocks.
    expected = {
        ('N',): (12.259, 0.00437),
        ('P',): (0.544, 0.47490),
        ('K',): (6.166, 0.02880),
        ('N', 'P'): (1.378, 0.26317),
        ('N', 'K'): (2.146, 0.16865),
        ('P', 'K'): (0.031, 0.86275),
    }
    assert effects.keys() == expected.keys()
    for factors, (f, p) in expected.items():
        assert effects[factors].freedom == (1, 12)
        assert effects[factors].f == pytest.approx(f, abs=6e-4)
        assert effects[factors].p == pytest.approx(p, abs=6e-6)
    # The test needs replicates.
    scores = {'a': {0: 1.0}, 'b': {0: 2.0}}
    assert analysis.effects(scores, {'a': {'f': 'x'}, 'b': {'f': 'y'}}) == []


def test_factors_without_an_effect_are_significant_in_one_of_twenty_sweeps():
    random = np.random.default_rng(4)
    levels = {f'arm {i}': {'a': f'{i // 3}', 'b': f'{i % 3}'} for i in range(6)}
    rows = []
    for _ in range(400):
        # Only the first factor has an effect, and nothing interacts with it.
        scores = draw_scores(6, 3, [0, 0, 0, 2, 2, 2], random)
        del scores['arm 4'][0]
        p = {x.factors: x.p for x in analysis.effects(scores, levels)}
        rows.append([p[x,] < 0.05 for x in 'ab'] + [p['a', 'b'] < 0.05])
    first, second, both = np.mean(rows, 0)
    assert first > 0.9
    assert (second, both) == pytest.approx((0.05, 0.05), abs=rate_error(0.05, 400))


def test_probability_of_improvement_is_the_mean_of_mann_whitney_over_data_sets():
    random = np.random.default_rng(6)
    base = [random.integers(0, 5, n).astype(float) for n in (4, 6)]
    system = [random.integers(1, 6, n).astype(float) for n in (5, 3)]
    expected = [
        stats.mannwhitneyu(y, x).statistic / (len(x) * len(y))
        for x, y in zip(base, system, strict=True)
    ]
    result = analysis.improvement(base, system)
    assert result.chance == pytest.approx(np.mean(expected))
    assert 0 <= result.low < result.chance < result.high <= 1
    reverse = analysis.improvement(system, base)
    assert reverse.chance == pytest.approx(1 - result.chance)
    assert analysis.improvement([[1.0, 2.0]], [[3.0, 4.0]]) == (1, 1, 1)


@pytest.mark.parametrize('best', [max, min])
def test_expected_best_is_the_mean_over_all_draws_of_equal_size(best):
    scores = [3.0, 7.0, 4.0]
    expected = [
        np.mean([best(draw) for draw in itertools.product(scores, repeat=n)])
        for n in (1, 2, 3)
    ]
    assert analysis.expected_best(scores, best) == pytest.approx(expected)


def test_looks_share_the_error_rate():
    scores = draw_scores(2, 5, effects=[0, 1.5])
    (once,) = compare(scores)
    (often,) = compare(scores, design=analysis.Design(looks=4))
    assert often.p == pytest.approx(4 * once.p)
    reach = stats.t.isf([0.05 / 2, 0.05 / 4 / 2], 4)
    widths = [x.high - x.low for x in (once, often)]
    assert widths[1] / widths[0] == pytest.approx(reach[1] / reach[0], rel=1e-3)


def draw_two_data_sets(random):
    """Returns scores that vary ten times as much on one data set, and the sets."""
    scores, data = {}, {}
    for name, size in (('quiet', 1.0), ('loud', 10.0)):
        for arm, by_seed in draw_scores(3, 3, random=random).items():
            full_name = f'{name}, {arm}'
            scores[full_name] = {seed: size * x for seed, x in by_seed.items()}
            data[full_name] = name
    return scores, data


def test_contrast_uses_only_the_arms_on_its_own_data():
    scores, data = draw_two_data_sets(np.random.default_rng(4))
    quiet, loud = ('quiet, arm 1', 'quiet, arm 0'), ('loud, arm 2', 'loud, arm 0')
    across = ('loud, arm 0', 'quiet, arm 0')
    contrasts = compare(scores, contrasts=[loud, quiet], data=data)
    for contrast, pair in zip(contrasts, (loud, quiet), strict=True):
        own = {arm: scores[arm] for arm in scores if data[arm] == data[pair[0]]}
        half = analysis.Design(looks=2)  # each data set has half of the error rate
        assert [contrast] == compare(own, contrasts=[pair], design=half)
    (contrast,) = compare(scores, contrasts=[across], data=data)
    assert [contrast] == compare(scores, contrasts=[across])


def test_permutations_of_two_arms_are_sign_flips():
    scores = draw_scores(2, 8, effects=[0, 1.2])
    base, arm = as_lists(scores)
    expected = stats.permutation_test(
        (arm, base),
        lambda *x: stats.ttest_rel(*x).statistic,
        permutation_type='samples',
    )
    (contrast,) = compare(scores, base='arm 0')
    error = np.sqrt(expected.pvalue / analysis._PERMUTATIONS)
    assert contrast.permuted == pytest.approx(expected.pvalue, abs=4 * error)


def test_permutations_of_several_arms_stay_within_seeds():
    scores = draw_scores(3, 3, effects=[0, 1, 3])
    scores['arm 2'][9] = 50.0  # a seed that no other arm has
    contrasts = compare(scores, base='arm 0')
    values = np.array(
        [[scores[arm][seed] for arm in sorted(scores)] for seed in range(3)]
    )

    def statistics(values):
        residuals = values - values.mean(0) - values.mean(1, keepdims=True)
        error = np.sqrt((residuals + values.mean()).var() * 9 / 4 * 2 / 3)
        return np.abs(values.mean(0)[1:] - values.mean(0)[0]) / error

    orders = [list(order) for order in itertools.permutations(range(3))]
    largest = [
        statistics(np.stack([row[x] for row, x in zip(values, three, strict=True)]))
        for three in itertools.product(orders, repeat=3)
    ]
    expected = [np.mean(np.max(largest, 1) >= t - 1e-9) for t in statistics(values)]
    assert [x.permuted for x in contrasts] == pytest.approx(expected, abs=0.02)
    (single,) = compare({'a': {0: 1.0}, 'b': {0: 2.0}})
    assert single.permuted is None


REFERENCES = ['the old cat sleeps in the garden', 'we see two red birds today'] * 4
BASE = [text.replace('old', 'red').replace('today', '') for text in REFERENCES]
SYSTEM = [*REFERENCES[:3], *BASE[3:7], 'we see two birds today']


@pytest.mark.parametrize('name', ['bleu', 'chrf', 'ter'])
def test_error_over_sentences_is_the_jackknife_of_the_corpus_score(name):
    corpus_score = getattr(sacrebleu, f'corpus_{name}')

    def difference(rows):
        scores = []
        for outputs in (SYSTEM, BASE):
            texts = [[text[i] for i in rows] for text in (outputs, REFERENCES)]
            scores.append(corpus_score(texts[0], [texts[1]]).score)
        return scores[0] - scores[1]

    number = len(BASE)
    left_out = [difference([j for j in range(number) if j != i]) for i in range(number)]
    error = np.sqrt((number - 1) * np.var(left_out))
    effect = difference(range(number))
    references = [(text,) for text in REFERENCES]
    pair = tuple(Translations(references, references, x) for x in (BASE, SYSTEM))
    metric = metrics.deciding(metrics.make(name), '')
    result = findings.paired_test(metric, [pair], family=5)
    assert result.effect == pytest.approx(effect) and result.share == 1
    reach = stats.t.isf(0.05 / 5 / 2, number - 1) * error
    assert (result.low, result.high) == pytest.approx((effect - reach, effect + reach))
    p = min(1, 5 * 2 * stats.t.sf(abs(effect) / error, number - 1))
    assert result.p == pytest.approx(p)


def ratio(total):
    """Returns the share of correct words."""
    return total[0] / total[1]


def as_statistics(values):
    return np.stack([values, np.ones_like(values)], -1)


def test_one_seed_or_equal_sentences_match_the_paired_t_test():
    base, system = np.random.default_rng(0).standard_normal((2, 1, 12))
    result = analysis.over_sentences(as_statistics(base), as_statistics(system), ratio)
    expected = stats.ttest_rel(system[0], base[0])
    assert result.p == pytest.approx(expected.pvalue)
    interval = tuple(expected.confidence_interval())
    assert (result.low, result.high) == pytest.approx(interval)

    scores = np.random.default_rng(1).standard_normal((2, 4, 1))
    base, system = (as_statistics(np.repeat(x, 9, 1)) for x in scores)
    result = analysis.over_sentences(base, system, ratio)
    expected = stats.ttest_rel(*scores[::-1, :, 0])
    assert result.p == pytest.approx(expected.pvalue) and result.share < 1e-12
    same = np.array([[[3.0, 7.0], [5.0, 5.0]]])
    result = analysis.over_sentences(same, same, ratio)
    assert result == (0.0, None, None, None, None)


def test_error_over_seeds_may_be_that_of_all_arms():
    random = np.random.default_rng(1)
    scores = random.standard_normal((4, 3)) + random.standard_normal(3)
    by_arm = {f'{i}': dict(enumerate(row)) for i, row in enumerate(scores)}
    contrast = analysis.compare(by_arm, '0')[0]
    # Equal sentences: only that error is left, as in Fisher's test.
    base, system = (as_statistics(np.repeat(x[:, None], 9, 1)) for x in scores[:2])
    result = analysis.over_sentences(base, system, ratio, contrast=contrast)
    residuals = scores - scores.mean(0) - scores.mean(1, keepdims=True) + scores.mean()
    error = np.sqrt(2 / 3 * (residuals**2).sum() / 6)
    assert result.high - result.effect == pytest.approx(stats.t.isf(0.025, 6) * error)


@pytest.mark.ci
def test_intervals_over_seeds_and_sentences_cover_new_seeds_and_sentences():
    random = np.random.default_rng(0)
    seeds, sentences = 4, 40
    covered, covered_by_seeds = [], []
    for _ in range(500):
        words = random.integers(1, 20, sentences)
        # The system's advantage by seed and by sentence, with mean 0.
        chances = 0.5 + 0.1 * random.standard_normal((seeds, 1))
        chances = chances + 0.15 * random.standard_normal(sentences)
        systems = [
            np.stack([random.binomial(words, p), np.tile(words, (seeds, 1))], -1)
            for p in (np.full((seeds, sentences), 0.5), chances.clip(0, 1))
        ]
        result = analysis.over_sentences(*systems, ratio)
        covered.append(result.low <= 0 <= result.high)
        sums = [x.sum(1) for x in systems]
        means = [x[:, 0] / x[:, 1] for x in sums]
        covered_by_seeds.append(stats.ttest_rel(*means).pvalue > 0.05)
    assert np.mean(covered) > 0.95 - rate_error(0.05, 500)
    # All seeds share the sentences, so their variance can't be left out.
    assert np.mean(covered_by_seeds) < 0.95 - rate_error(0.05, 500)
