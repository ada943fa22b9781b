"""Tests of differences between arms, against other programs and simulated data."""

import itertools

import numpy as np
import pytest
from scipy import stats

from experiments.sweeps import analysis
from experiments.sweeps.analysis import compare

# How exact the integrals are, of a p and of a bound.
EXACT = {'rel': 5e-3}


def drawn(arms, seeds, sd_of_seeds=2.0, effects=None, random=None):
    random = random or np.random.default_rng(3)
    values = random.standard_normal((arms, seeds))
    values += sd_of_seeds * random.standard_normal(seeds)
    if effects is not None:
        values += np.asarray(effects)[:, None]
    return {f'arm {i}': dict(enumerate(row)) for i, row in enumerate(values.tolist())}


def with_fewer_draws(monkeypatch):
    """Makes analyses fast enough to be repeated; their permutation tests are void."""
    monkeypatch.setattr(analysis, '_POINTS', 9)
    monkeypatch.setattr(analysis, '_PERMUTATIONS', 1)


def as_lists(scores):
    return [list(by_seed.values()) for by_seed in scores.values()]


def test_two_arms_are_the_paired_t_test():
    scores = drawn(2, 4, effects=[0, 2])
    base, arm = as_lists(scores)
    expected = stats.ttest_rel(arm, base)
    (found,) = compare(scores, base='arm 0')
    assert found.effect == pytest.approx(np.mean(arm) - np.mean(base))
    assert found.p == pytest.approx(expected.pvalue, **EXACT)
    interval = expected.confidence_interval()
    assert (found.low, found.high) == pytest.approx(tuple(interval), rel=1e-3)
    assert found.seeds == 4


def dunnetts_p(t, others, freedom):
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


def test_blocked_arms_have_dunnetts_test_with_the_error_of_two_way_anova():
    scores = drawn(5, 3, effects=[0, 0.5, 2, 4, -1])
    values = np.array(as_lists(scores))
    residuals = values - values.mean(1, keepdims=True) - values.mean(0) + values.mean()
    freedom = 4 * 2
    error = np.sqrt(2 / 3 * (residuals**2).sum() / freedom)
    effects = values[1:].mean(1) - values[0].mean()
    for found, effect in zip(compare(scores, base='arm 0'), effects, strict=True):
        assert found.effect == pytest.approx(effect)
        expected = dunnetts_p(abs(effect) / error, 4, freedom)
        assert found.p == pytest.approx(expected, **EXACT)
        reach = (found.high - found.low) / 2
        assert dunnetts_p(reach / error, 4, freedom) == pytest.approx(0.05, **EXACT)


def with_own_seeds(scores):
    return {arm: {(arm, k): v for k, v in x.items()} for arm, x in scores.items()}


def test_arms_without_a_common_seed_are_dunnetts_and_tukeys_tests():
    scores = with_own_seeds(drawn(4, 5, effects=[0, 1, 2, 0]))
    base, *others = as_lists(scores)
    expected = stats.dunnett(*others, control=base, random_state=0)
    found = compare(scores, base='arm 0')
    assert [x.seeds for x in found] == [0, 0, 0]
    for contrast, p in zip(found, expected.pvalue, strict=True):
        # scipy integrates by Monte Carlo.
        assert contrast.p == pytest.approx(p, abs=1e-3)
    low = expected.confidence_interval().low
    np.testing.assert_allclose([x.low for x in found], low, rtol=1e-3)
    expected = stats.tukey_hsd(base, *others)
    for contrast in compare(scores):
        i, j = (int(name[-1]) for name in contrast[:2])
        p = expected.pvalue[i, j]
        assert contrast.p == pytest.approx(p, **EXACT)


def test_effect_of_a_seed_on_all_arms_cancels():
    scores = drawn(3, 4, effects=[0, 1, 3])
    del scores['arm 1'][2]
    lucky = {arm: x | {1: x[1] + 100} for arm, x in scores.items()}
    for one, other in zip(compare(scores), compare(lucky), strict=True):
        assert one[2:5] == pytest.approx(other[2:5])
        assert one.p == pytest.approx(other.p)
        assert one.seeds == other.seeds
    assert [x.seeds for x in compare(scores)] == [3, 4, 3]


def test_missing_run_of_an_easy_seed_does_not_bias_the_effect():
    scores = {'base': {0: 10.0, 1: 20.0, 2: 31.0}, 'arm': {0: 15.0, 1: 25.0}}
    scores['third'] = {0: 10.0, 1: 21.0, 2: 30.0}
    (found, _) = compare(scores, base='base')
    assert found.effect == pytest.approx(5, abs=0.5)


@pytest.mark.parametrize(
    'scores',
    [
        {'a': {0: 1.0}, 'b': {0: 2.0}},
        {'a': {0: 1.0, 1: 1.0}, 'b': {0: 2.0, 1: 2.0}},
        {'a': {0: 0.1, 1: 0.7}, 'b': {0: 1.1, 1: 1.7}},
    ],
)
def test_without_variance_or_seeds_there_is_an_effect_and_no_test(scores):
    (found,) = compare(scores, base='a')
    assert found.effect == pytest.approx(1)
    assert found[3:6] == (None, None, None)
    assert not found.significant


def test_declared_contrasts_are_corrected_for_their_number_alone():
    scores = drawn(6, 3)
    (declared,) = compare(scores, contrasts=[('arm 4', 'arm 2')])
    (same,) = [x for x in compare(scores) if x[:2] == ('arm 2', 'arm 4')]
    assert declared.effect == pytest.approx(-same.effect)
    assert declared.p < same.p
    assert declared.high - declared.low < same.high - same.low


def test_each_base_has_its_own_margin():
    scores = {'a': {0: 30.0, 1: 30.1, 2: 30.2}, 'b': {0: 30.1, 1: 30.1, 2: 30.3}}
    scores['c'] = {0: 30.2, 1: 30.1, 2: 30.3}
    pairs = [('a', 'b'), ('a', 'c'), ('b', 'a')]
    found = compare(scores, contrasts=pairs, margin={'b': 5.0, 'c': 1e-3})
    assert [x.margin for x in found] == [5.0, 1e-3, None]
    assert [x.equivalent for x in found] == [True, False, None]


def test_arms_are_equivalent_where_the_whole_interval_is_within_the_margin():
    scores = drawn(2, 6)
    (found,) = compare(scores, base='arm 0', margin=0.1)
    reach = max(abs(found.low), abs(found.high))
    for margin, expected in ((reach * 1.01, True), (reach * 0.99, False)):
        (again,) = compare(scores, base='arm 0', margin=margin)
        assert again.equivalent == expected


@pytest.mark.parametrize('contrasts', ['base', 'pairs'])
def test_equal_arms_rarely_differ_and_intervals_cover_all_at_once(
    contrasts, monkeypatch
):
    with_fewer_draws(monkeypatch)
    random = np.random.default_rng(0)
    effects = [0, 0, 0, 3, 3]
    alarms, covered = [], []
    for _ in range(400):
        scores = drawn(5, 3, effects=effects, random=random)
        found = compare(scores, base='arm 0' if contrasts == 'base' else None)
        of = dict(zip(scores, effects, strict=True))
        true = [of[x.arm] - of[x.base] for x in found]
        both = list(zip(found, true, strict=True))
        alarms.append(any(x.significant and t == 0 for x, t in both))
        covered.append(all(x.low <= t <= x.high for x, t in both))
    error = np.sqrt(0.05 * 0.95 / 400)
    assert np.mean(alarms) < 0.05 + 3 * error
    assert abs(np.mean(covered) - 0.95) < 3 * error


def test_minimum_detectable_difference_has_a_power_of_80_percent(monkeypatch):
    with_fewer_draws(monkeypatch)
    random = np.random.default_rng(5)
    pilot = drawn(400, 3, random=random)  # so that chance is known: 1
    arms = [f'arm {i}' for i in range(4)]
    pairs = [(arm, 'arm 0') for arm in arms[1:]]
    least = analysis.minimum_detectable(pilot, pairs, dict.fromkeys(arms, 3))
    seen = []
    for _ in range(400):
        scores = drawn(4, 3, effects=[0, least, 0, 0], random=random)
        seen.append(compare(scores, base='arm 0')[0].significant)
    assert abs(np.mean(seen) - 0.8) < 3 * np.sqrt(0.8 * 0.2 / 400)
    constant = {'a': {0: 1.0}, 'b': {0: 2.0}}
    three_seeds = {'a': 3, 'b': 3}
    pairs = [('a', 'b')]
    assert analysis.minimum_detectable(constant, pairs, three_seeds) is None
    assert analysis.minimum_detectable(pilot, pairs, {'a': 1, 'b': 1}) is None
    assert analysis.minimum_detectable({}, pairs, three_seeds) is None


# Val BLEU by rate in results/norm_tuned, and the spread of its runs.
BY_RATE, SD = np.array([8.64, 31.25, 46.43, 49.24]), 1.5


def tuned_sweep(random, seeds, effects, trials, by_rate=BY_RATE):
    """Returns scores of a sweep with tuned rates, and its trials.

    `seeds` are those of each arm; each seed shifts all arms.
    """
    of_seeds = SD * random.standard_normal(20)
    scores, of_arms = {}, {}
    for arm, numbers in seeds.items():
        noise = random.standard_normal((trials, len(by_rate)))
        means = (by_rate + SD * noise).mean(0)
        chosen = int(means.argmax())
        of_arms[arm] = analysis.Trials(tuple(means), trials)
        level = by_rate[chosen] + effects.get(arm, 0.0)
        scores[arm] = {
            seed: level + SD * random.standard_normal() + of_seeds[seed]
            for seed in numbers
        }
    return scores, of_arms


EIGHT_ARMS = {f'arm {i}': range(3) for i in range(8)}


@pytest.fixture
def rough(monkeypatch):
    with_fewer_draws(monkeypatch)


@pytest.mark.slow
def test_planted_effects_are_significant_and_nulls_are_not(rough):
    random = np.random.default_rng(7)
    pairs = [(arm, 'arm 0') for arm in EIGHT_ARMS if arm != 'arm 0']
    pilot = drawn(400, 3, random=random)  # estimates a standard deviation of 1
    counts = dict.fromkeys(EIGHT_ARMS, 3)
    least = SD * analysis.minimum_detectable(pilot, pairs, counts)
    alarms, seen = [], []
    for _ in range(400):
        scores, _ = tuned_sweep(random, EIGHT_ARMS, {'arm 3': least}, trials=100)
        planted = {x.arm: x.significant for x in compare(scores, contrasts=pairs)}
        seen.append(planted.pop('arm 3'))
        alarms.append(any(planted.values()))
    assert np.mean(alarms) < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 400)
    assert abs(np.mean(seen) - 0.8) < 3 * np.sqrt(0.8 * 0.2 / 400)


@pytest.mark.slow
@pytest.mark.parametrize('gap', [0.5, 1.5, 3.0])
def test_intervals_of_tuned_arms_include_the_choice_of_the_rate(rough, gap):
    """No arm has an effect, but with one trial per rate, chance chooses some rates."""
    random = np.random.default_rng(8)
    by_rate = 50 - SD * gap * np.arange(4)
    ignored, included = [], []
    for _ in range(300):
        scores, trials = tuned_sweep(random, EIGHT_ARMS, {}, 1, by_rate)
        design = analysis.Design(trials=trials)
        for alarms, found in (
            (ignored, compare(scores, base='arm 0')),
            (included, compare(scores, base='arm 0', design=design)),
        ):
            alarms.append(any(x.significant for x in found))
    assert np.mean(included) < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 300)
    pairs = [(arm, 'arm 0') for arm in EIGHT_ARMS if arm != 'arm 0']
    counts = dict.fromkeys(EIGHT_ARMS, 3)
    most = analysis.error_rate_of_tuning(pairs, counts, values=4, trials=1)
    assert 0.07 < np.mean(ignored) < most + 0.05


def test_certain_choices_leave_the_intervals_unchanged():
    scores = drawn(4, 3)
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


def test_more_seeds_of_the_base_narrow_all_intervals():
    """Without seeds as blocks, t has the standard error of unequal groups."""
    random = np.random.default_rng(3)
    sizes = {'base': 8, 'one': 3, 'other': 3}
    scores = {
        arm: dict(enumerate(random.normal(size=size).tolist()))
        for arm, size in sizes.items()
    }
    design = analysis.Design(blocks=False)
    found = compare(scores, base='base', design=design)
    groups = [list(of.values()) for of in scores.values()]
    pooled = sum(np.var(group, ddof=1) * (len(group) - 1) for group in groups) / 11
    for contrast in found:
        own = list(scores[contrast.arm].values())
        assert contrast.effect == pytest.approx(np.mean(own) - np.mean(groups[0]))
        assert contrast.error == pytest.approx(np.sqrt(pooled * (1 / 3 + 1 / 8)))
        assert contrast.freedom == 11
    expected = stats.dunnett(*groups[1:], control=groups[0]).pvalue
    assert [x.p for x in found] == pytest.approx(expected, abs=2e-3)
    # With normal errors, exchanges agree with Dunnett's test.
    assert [x.permuted for x in found] == pytest.approx(expected, abs=0.06)


def test_a_contrast_has_the_detectable_difference_of_its_design():
    scores = drawn(4, 3)
    pairs = [('arm 1', 'arm 0'), ('arm 3', 'arm 2')]
    for looks in (1, 4):
        design = analysis.Design(looks)
        counts = dict.fromkeys(scores, 3)
        planned = analysis.minimum_detectable(scores, pairs, counts, design)
        for contrast in compare(scores, contrasts=pairs, design=design):
            assert contrast.detectable == pytest.approx(planned, rel=1e-3)
    constant = {'a': {0: 1.0, 1: 1.0}, 'b': {0: 2.0, 1: 2.0}}
    assert compare(constant, base='a')[0].detectable is None


def test_scores_that_cannot_be_compared_are_refused():
    scores = drawn(2, 3)
    with pytest.raises(ValueError, match="'arm 9'.* arm 0, arm 1"):
        compare(scores, base='arm 9')
    with pytest.raises(ValueError, match="'arm 2'"):
        compare(scores | {'arm 2': {}})
    with pytest.raises(ValueError, match="'arm 2', seed 0: .* nan"):
        compare(scores | {'arm 2': {0: float('nan')}})
    with pytest.raises(ValueError, match='margin .*0'):
        compare(scores, margin=0)


# Yields of peas in six blocks by fertiliser (nitrogen, phosphate, potash), which R has
# as `npk` (Venables and Ripley 2002).
PEAS = [
    *('011 49.5', '110 62.8', '000 46.8', '101 57.0', '100 59.8', '111 58.5'),
    *('001 55.5', '010 56.0', '010 62.8', '111 55.8', '100 69.5', '001 55.0'),
    *('100 62.0', '111 48.8', '001 45.5', '010 44.2', '110 52.0', '000 51.5'),
    *('101 49.8', '011 48.8', '101 57.2', '110 59.0', '011 53.2', '000 56.0'),
]


def test_factors_are_rs_analysis_of_variance_of_peas():
    scores = {}
    for i, row in enumerate(PEAS):
        arm, value = row.split()
        scores.setdefault(arm, {})[i // 4] = float(value)
    levels = {arm: dict(zip('NPK', arm, strict=True)) for arm in scores}
    found = {x.factors: x for x in analysis.effects(scores, levels)}
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
    assert found.keys() == expected.keys()
    for factors, (f, p) in expected.items():
        assert found[factors].freedom == (1, 12)
        assert found[factors].f == pytest.approx(f, abs=6e-4)
        assert found[factors].p == pytest.approx(p, abs=6e-6)


def test_factors_without_effect_are_rarely_significant():
    random = np.random.default_rng(4)
    levels = {f'arm {i}': {'a': f'{i // 3}', 'b': f'{i % 3}'} for i in range(6)}
    found = []
    for _ in range(400):
        # The first factor matters; the second does not, nor does it change the first.
        scores = drawn(6, 3, effects=[0, 0, 0, 2, 2, 2], random=random)
        del scores['arm 4'][0]
        p = {x.factors: x.p for x in analysis.effects(scores, levels)}
        found.append([p[x,] < 0.05 for x in 'ab'] + [p['a', 'b'] < 0.05])
    first, second, both = np.mean(found, 0)
    error = np.sqrt(0.05 * 0.95 / 400)
    assert first > 0.9
    assert (second, both) == pytest.approx((0.05, 0.05), abs=3 * error)


def test_factors_without_replicates_have_no_test():
    scores = {'a': {0: 1.0}, 'b': {0: 2.0}}
    assert analysis.effects(scores, {'a': {'f': 'x'}, 'b': {'f': 'y'}}) == []


def test_the_probability_of_improvement_is_mann_and_whitneys_over_data_sets():
    random = np.random.default_rng(6)
    base = [random.integers(0, 5, n).astype(float) for n in (4, 6)]
    system = [random.integers(1, 6, n).astype(float) for n in (5, 3)]
    expected = [
        stats.mannwhitneyu(y, x).statistic / (len(x) * len(y))
        for x, y in zip(base, system, strict=True)
    ]
    found = analysis.improvement(base, system)
    assert found.chance == pytest.approx(np.mean(expected))
    assert 0 <= found.low < found.chance < found.high <= 1
    other = analysis.improvement(system, base)
    assert other.chance == pytest.approx(1 - found.chance)
    apart = analysis.improvement([[1.0, 2.0]], [[3.0, 4.0]])
    assert apart == (1, 1, 1)


def test_expected_best_is_the_mean_over_all_draws_of_that_size():
    scores = [3.0, 7.0, 4.0]
    for best in (max, min):
        expected = [
            np.mean([best(draw) for draw in itertools.product(scores, repeat=n)])
            for n in (1, 2, 3)
        ]
        assert analysis.expected_best(scores, best) == pytest.approx(expected)


def test_looks_share_the_error_rate():
    scores = drawn(2, 5, effects=[0, 1.5])
    (once,) = compare(scores)
    (often,) = compare(scores, design=analysis.Design(looks=4))
    assert often.p == pytest.approx(4 * once.p)
    reach = stats.t.isf([0.05 / 2, 0.05 / 4 / 2], 4)
    widths = [x.high - x.low for x in (once, often)]
    assert widths[1] / widths[0] == pytest.approx(reach[1] / reach[0], rel=1e-3)


def of_two_tasks(random, arms=3, seeds=3):
    """Returns scores that vary ten times as much on one task, and the arms' tasks."""
    scores, tasks = {}, {}
    for task, size in (('quiet', 1.0), ('loud', 10.0)):
        for arm, by_seed in drawn(arms, seeds, random=random).items():
            name = f'{task}, {arm}'
            scores[name] = {seed: size * score for seed, score in by_seed.items()}
            tasks[name] = task
    return scores, tasks


def test_difference_uses_the_arms_on_its_own_data_alone():
    scores, tasks = of_two_tasks(np.random.default_rng(4))
    quiet, loud = ('quiet, arm 1', 'quiet, arm 0'), ('loud, arm 2', 'loud, arm 0')
    between = ('loud, arm 0', 'quiet, arm 0')
    found = compare(scores, contrasts=[loud, quiet], data=tasks)
    for contrast, pair in zip(found, (loud, quiet), strict=True):
        own = {arm: scores[arm] for arm in scores if tasks[arm] == tasks[pair[0]]}
        (alone,) = compare(own, contrasts=[pair], design=analysis.Design(looks=2))
        assert contrast == alone
    (across,) = compare(scores, contrasts=[between], data=tasks)
    assert across == compare(scores, contrasts=[between])[0]


@pytest.mark.slow
def test_intervals_of_several_data_sets_hold_together(monkeypatch):
    with_fewer_draws(monkeypatch)
    random = np.random.default_rng(5)
    alarms, widths = [], []
    for _ in range(400):
        scores, tasks = of_two_tasks(random)
        pairs = [
            (f'{x}, arm {i}', f'{x}, arm 0') for x in ('quiet', 'loud') for i in (1, 2)
        ]
        found = compare(scores, contrasts=pairs, data=tasks)
        alarms.append(any(x.significant for x in found))
        widths.append([x.high - x.low for x in found if tasks[x.arm] == 'quiet'])
    error = np.sqrt(0.05 * 0.95 / 400)
    assert abs(np.mean(alarms) - 0.05) < 3 * error
    assert np.mean(widths) < 10  # with the chance of both tasks in all it would be 58


@pytest.mark.slow
def test_seeds_added_until_intervals_are_narrow_keep_the_error_rate(monkeypatch):
    with_fewer_draws(monkeypatch)
    random = np.random.default_rng(2)
    alarms, numbers = [], []
    for _ in range(400):
        scores = drawn(3, 9, random=random)
        for number in (3, 6, 9):
            part = {arm: dict(list(x.items())[:number]) for arm, x in scores.items()}
            found = compare(part, base='arm 0', design=analysis.Design(looks=3))
            if max(x.high - x.low for x in found) / 2 < 2:
                break
        alarms.append(any(x.significant for x in found))
        numbers.append(number)
    assert set(numbers) == {3, 6, 9}  # the rule decides
    assert np.mean(alarms) < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 400)


def test_permutations_of_two_arms_are_sign_flips():
    scores = drawn(2, 8, effects=[0, 1.2])
    base, arm = as_lists(scores)
    expected = stats.permutation_test(
        (arm, base),
        lambda *x: stats.ttest_rel(*x).statistic,
        permutation_type='samples',
    )
    (found,) = compare(scores, base='arm 0')
    error = np.sqrt(expected.pvalue / analysis._PERMUTATIONS)
    assert found.permuted == pytest.approx(expected.pvalue, abs=4 * error)


def test_permutations_of_several_arms_stay_within_seeds():
    scores = drawn(3, 3, effects=[0, 1, 3])
    scores['arm 2'][9] = 50.0  # of a seed that no other arm has
    found = compare(scores, base='arm 0')
    whole = np.array(
        [[scores[arm][seed] for arm in sorted(scores)] for seed in range(3)]
    )

    def sizes(values):
        residuals = values - values.mean(0) - values.mean(1, keepdims=True)
        error = np.sqrt((residuals + values.mean()).var() * 9 / 4 * 2 / 3)
        return np.abs(values.mean(0)[1:] - values.mean(0)[0]) / error

    orders = [list(order) for order in itertools.permutations(range(3))]
    largest = [
        sizes(np.stack([row[order] for row, order in zip(whole, three, strict=True)]))
        for three in itertools.product(orders, repeat=3)
    ]
    expected = [np.mean(np.max(largest, 1) >= t - 1e-9) for t in sizes(whole)]
    assert [x.permuted for x in found] == pytest.approx(expected, abs=0.02)
    (alone,) = compare({'a': {0: 1.0}, 'b': {0: 2.0}})
    assert alone.permuted is None


def test_permutation_tests_keep_the_error_rate_with_outliers(monkeypatch):
    monkeypatch.setattr(analysis, '_PERMUTATIONS', 499)
    random = np.random.default_rng(4)
    alarms = []
    for _ in range(400):
        scores = drawn(6, 3, random=random)
        for by_seed in scores.values():
            by_seed.update(
                {s: x - 30 for s, x in by_seed.items() if random.random() < 0.1}
            )
        pairs = [(arm, 'arm 0') for arm in scores if arm != 'arm 0']
        alarms.append(min(analysis.permutation_tests(scores, pairs)) < 0.05)
    assert 0 < np.mean(alarms) < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 400)


def test_integer_scores_equal_floats():
    whole = {'a': {0: 1, 1: 3, 2: 4}, 'b': {0: 2, 1: 5, 2: 9}}
    scores = {
        arm: {seed: float(x) for seed, x in of.items()} for arm, of in whole.items()
    }
    assert compare(whole) == compare(scores)
