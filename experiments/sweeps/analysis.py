"""Differences between arms that share seeds, with simultaneous confidence intervals.

The model is y = arm + seed + error, fitted by least squares (Fisher 1935, randomised
blocks). In 95 of 100 experiments, all intervals cover the true differences; p < 0.05 is
the same statement. See Dunnett 1955 for arms and a base, Tukey 1953 for all pairs, and
Hothorn, Bretz and Westfall 2008 for any contrasts.
"""

import collections
import functools
import operator
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain, combinations
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

LEVEL = 0.05
POWER = 0.8  # the power that defines the minimum detectable difference
_BOOTSTRAPS = 2_000
_PERMUTATIONS = 9_999
_POINTS = 15  # log2 of the number of points of an integral

Scores = Mapping[str, Mapping[Any, float]]  # by arm and seed; runs may be missing
Pair = tuple[str, str]


class Trials(NamedTuple):
    """The trials by which an arm's tuned value was chosen.

    Attributes:
      means: Mean score of each value, on the tuning set.
      number: Number of runs of each mean.
      higher_is_better: Whether the best mean is the largest.
    """

    means: tuple[float, ...]
    number: int
    higher_is_better: bool = True


class Design(NamedTuple):
    """The design of a sweep: sources of error that its intervals include.

    Attributes:
      looks: How often the intervals may decide to add seeds. Each look has an equal
        share of the error rate, so all intervals hold simultaneously.
      blocks: Whether to remove the effects of seeds, which the arms share. False if the
        base has seeds of its own, which then count like all others.
      trials: Those of each tuned arm. The true difference is then that of the arms at
        their best values, and the intervals include the error of choosing another.
    """

    looks: int = 1
    blocks: bool = True
    trials: Mapping[str, Trials] = MappingProxyType({})


PLAIN = Design()


class Spread(NamedTuple):
    """Mean and sample standard deviation over seeds."""

    mean: float
    sd: float | None
    n: int


def spread(values: Sequence[float | None]) -> Spread | None:
    """Returns the spread of values that aren't None, if there are any."""
    there = [value for value in values if value is not None]
    if not there:
        return None
    sd = statistics.stdev(there) if len(there) > 1 else None
    return Spread(statistics.fmean(there), sd, len(there))


class FixedNumberDifference(NamedTuple):
    """The difference of a mean over seeds from a fixed number.

    Attributes:
      low, high, p: Of a t test; None with one seed, or if nothing varies.
    """

    effect: float
    low: float | None = None
    high: float | None = None
    p: float | None = None


def from_number(found: Spread, number: float) -> FixedNumberDifference:
    """Tests the mean of a spread against a number that has no error of its own.

    Examples:
      >>> test = from_number(Spread(31.0, 1.0, 4), 30.0)
      >>> round(test.low, 2), round(test.high, 2), round(test.p, 2)
      (-0.59, 2.59, 0.14)
    """
    from scipy import stats

    effect = found.mean - number
    if not found.sd:
        return FixedNumberDifference(effect)
    error = found.sd / found.n**0.5
    t = stats.t(found.n - 1)
    reach = float(t.isf(LEVEL / 2)) * error
    p = 2 * float(t.sf(abs(effect) / error))
    return FixedNumberDifference(effect, effect - reach, effect + reach, p)


class Contrast(NamedTuple):
    """The difference between an arm and a base, with its test, if any.

    Attributes:
      effect: The difference, adjusted for missing seeds.
      low, high: Simultaneous 95% interval of the effect; None without a test.
      p: Two-sided p-value, adjusted for this family of contrasts.
      seeds: Number of seeds that both arms have.
      equivalent: Whether the whole interval lies within the margin; None without one.
      margin: Smallest difference from this base that matters.
      error, freedom: Standard error over seeds, and its degrees of freedom.
      permuted: P-value of `permutation_tests`, which doesn't assume normal errors.
    """

    arm: str
    base: str
    effect: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    seeds: int = 0
    equivalent: bool | None = None
    margin: float | None = None
    error: float | None = None
    freedom: int = 0
    permuted: float | None = None

    @property
    def significant(self) -> bool:
        """True if the difference is significant at 5%."""
        return self.p is not None and self.p < LEVEL

    @property
    def detectable(self) -> float | None:
        """The minimum detectable difference at a power of 80%; None without a test."""
        if self.low is None or self.high is None or not self.error:
            return None
        bound = (self.high - self.low) / 2 / self.error
        return _detectable(bound, self.freedom) * self.error


def compare(
    scores: Scores,
    base: str | None = None,
    contrasts: Sequence[Pair] | None = None,
    margin: float | Mapping[str, float] | None = None,
    design: Design = PLAIN,
    data: Mapping[str, str] | None = None,
) -> list[Contrast]:
    """Computes differences between arms, with simultaneous intervals.

    If the arms share too few seeds to estimate the seeds' effects, the error is the
    spread within arms.

    Args:
      scores: `scores[arm][seed]`; runs may be missing.
      base: The arm to compare all others with.
      contrasts: Pairs (arm, base) instead of `base`. Without both, compares all pairs.
      margin: Smallest difference that matters, or that of each base.
      data: The data set of each arm, if they differ. Each has its own seed effects,
        errors, and share of the error rate (Bonferroni).

    Raises:
      ValueError: An arm is unknown or has no score, a score isn't finite, or a margin
        isn't above 0.
    """
    if contrasts is not None:
        pairs = list(contrasts)
    elif base is not None:
        pairs = [(arm, base) for arm in scores if arm != base]
    else:
        pairs = list(combinations(scores, 2))
    _check(scores, pairs)
    bases = [other for _, other in pairs]
    if margin is None:
        margin = {}
    elif not isinstance(margin, Mapping):
        margin = dict.fromkeys(bases, margin)
    for number in margin.values():
        if not number > 0:
            raise ValueError(f'margin must be above 0, not {number}.')
    data = data or {}
    by_data = families(pairs, data)
    found = {}
    for sets, of_sets in by_data.items():
        own = {arm: x for arm, x in scores.items() if data.get(arm) in sets}
        shared = design._replace(looks=design.looks * len(by_data))
        for contrast in _family(own, of_sets, margin, shared):
            found[contrast.arm, contrast.base] = contrast
    return [found[pair] for pair in pairs]


def families(
    pairs: Sequence[Pair], data: Mapping[str, str]
) -> dict[frozenset[str | None], list[Pair]]:
    """Groups pairs by the data of their arms."""
    by_data = collections.defaultdict(list)
    for pair in pairs:
        by_data[frozenset(map(data.get, pair))].append(pair)
    return by_data


def pairs_with(bases: Mapping[str, str], arms: Collection[str]) -> list[Pair]:
    """Returns each arm with its base, if that is another of the arms."""
    return [
        (arm, bases[arm]) for arm in arms if bases[arm] != arm and bases[arm] in arms
    ]


def _family(
    scores: Scores,
    pairs: Sequence[Pair],
    margins: Mapping[str, float],
    design: Design,
) -> list[Contrast]:
    ordered = dict(sorted(scores.items()))  # independent of the arms' order
    means, covariance, variance, freedom = _fit(ordered, design.blocks)
    differences = _differences(pairs, list(ordered))
    effects = differences @ means
    root = differences @ np.linalg.cholesky(covariance)
    errors = np.sqrt(variance) * np.linalg.norm(root, axis=1)
    largest = None
    bound = 0.0
    if errors.any():
        losses = _losses_of_choices(design.trials, list(ordered), variance**0.5)
        largest = MaxStatistic(root, freedom, _shifts(root, differences, losses))
        bound = largest.bound(LEVEL / design.looks)
    permuted = permutation_tests(scores, pairs, design.blocks)
    found = []
    for (arm, other), effect, error, chance in zip(
        pairs, effects.tolist(), errors.tolist(), permuted, strict=True
    ):
        seeds = len(scores[arm].keys() & scores[other].keys())
        p = None if chance is None else min(1.0, design.looks * chance)
        margin = margins.get(other)
        contrast = Contrast(arm, other, effect, seeds=seeds, margin=margin, permuted=p)
        if largest is not None:
            low = effect - bound * error
            high = effect + bound * error
            contrast = contrast._replace(
                low=low,
                high=high,
                p=min(1.0, design.looks * largest.chance(abs(effect) / error)),
                equivalent=None if margin is None else -margin < low < high < margin,
                error=error,
                freedom=freedom,
            )
        found.append(contrast)
    return found


def _differences(pairs: Sequence[Pair], arms: Sequence[str]) -> np.ndarray:
    above = [arms.index(arm) for arm, _ in pairs]
    below = [arms.index(base) for _, base in pairs]
    identity = np.eye(len(arms))
    return identity[above] - identity[below]


def _check(scores: Scores, pairs: Sequence[Pair]) -> None:
    for arm in chain(*pairs):
        if arm not in scores:
            raise ValueError(f'unknown arm {arm!r}. Choose one of {", ".join(scores)}.')
    for arm, by_seed in scores.items():
        if not by_seed:
            raise ValueError(f'arm {arm!r}: no scores. Leave it out.')
        for seed, score in by_seed.items():
            if not np.isfinite(score):
                raise ValueError(
                    f'arm {arm!r}, seed {seed}: the score {score} is not finite.'
                )


def permutation_tests(
    scores: Scores, pairs: Sequence[Pair], blocks: bool = True
) -> list[float | None]:
    """Computes each pair's p under random exchanges of the arms' scores.

    Scores are exchanged within seeds, or among all runs without `blocks`. If no arm
    differs, the exchanges are equally likely for any distribution of the errors (Fisher
    1935). The p-value is the share of exchanges whose largest |t| over all pairs
    reaches the pair's (Westfall and Young 1993). It is at least 0.25 with two arms and
    three seeds, and None without two shared seeds or differences.
    """
    if blocks:
        values_RA = _shared_seed_values(scores)
        rows, arms = values_RA.shape
        is_arm_NA = np.tile(np.eye(arms), (rows, 1))
        values_RA = values_RA - values_RA.mean(1, keepdims=True) if rows else values_RA
    else:
        of_runs, _, values = _columns(dict(sorted(scores.items())))
        is_arm_NA = _indicators(of_runs)
        rows = len(values) - is_arm_NA.shape[1] + 1
        # One row, whose entries are exchanged freely.
        values_RA = (values - values.mean())[None]
    if rows < 2 or not np.ptp(values_RA, axis=1).any():
        return [None] * len(pairs)
    means_AN = (is_arm_NA / is_arm_NA.sum(0)).T
    counts_A = is_arm_NA.sum(0)
    total = (values_RA**2).sum()
    differences_PA = _differences(pairs, sorted(scores))
    scale_P1 = np.sqrt((differences_PA**2 / counts_A).sum(1))[:, None]

    def sizes(values_XN):
        """Returns each pair's |t| up to a factor."""
        means_XA = values_XN @ means_AN.T
        left_X = total - (counts_A * means_XA**2).sum(1)
        error_X = np.sqrt(np.maximum(left_X, 1e-12 * total))
        return np.abs(differences_PA @ means_XA.T) / scale_P1 / error_X

    own_P1 = sizes(values_RA.reshape(1, -1))
    largest_X = sizes(_exchanges(values_RA)).max(0)
    is_as_large_PX = largest_X >= own_P1 * (1 - 1e-9)
    # Counts the identity exchange too.
    counts_P = 1 + is_as_large_PX.sum(1)
    return (counts_P / (1 + _PERMUTATIONS)).tolist()


def _shared_seed_values(scores: Scores) -> np.ndarray:
    """Returns the scores of shared seeds, [seeds, arms], with arms sorted by name."""
    of_arms = [scores[arm] for arm in sorted(scores)]
    shared = [seed for seed in of_arms[0] if all(seed in x for x in of_arms)]
    rows = [[of_arm[seed] for of_arm in of_arms] for seed in shared]
    return np.array(rows, float).reshape(len(shared), len(of_arms))


def _exchanges(values_RA: np.ndarray) -> np.ndarray:
    """Returns values exchanged within rows, [exchanges, all values]."""
    random = np.random.default_rng(0)
    of_rows = [
        random.permuted(np.tile(values_A, (_PERMUTATIONS, 1)), axis=1)
        for values_A in values_RA
    ]
    return np.hstack(of_rows)


def _fit(
    scores: Scores, blocks: bool = True
) -> tuple[np.ndarray, np.ndarray, float, int]:
    """Fits arms and, with `blocks`, seeds by least squares.

    Returns:
      The arms' effects up to a constant, their covariance for errors of variance 1, the
      error variance (0 if unknown), and its degrees of freedom.
    """
    arms, seeds, values = _columns(scores)
    design = _design(arms, seeds) if blocks else _indicators(arms)
    inverse = np.linalg.inv(design.T @ design)
    coefficients = inverse @ design.T @ values
    residuals = values - design @ coefficients
    # Equal scores leave only rounding errors.
    rounding = 1e-9 * np.abs(values).max()
    residuals[np.abs(residuals) <= rounding] = 0
    freedom = len(values) - design.shape[1]
    variance = float(residuals @ residuals) / freedom if freedom else 0.0
    of_arms = slice(len(scores))
    return coefficients[of_arms], inverse[of_arms, of_arms], variance, freedom


def _design(arms: Sequence[str], seeds: Sequence[Any]) -> np.ndarray:
    """Returns a column for each arm, then each seed but the first.

    Leaves out seeds if some arms share none with the rest, or no degree of freedom is
    left.
    """
    of_arms = _indicators(arms)
    of_seeds = _indicators(seeds)
    design = np.hstack([of_arms, of_seeds[:, 1:]])
    rows, columns = design.shape
    is_joined = np.linalg.matrix_rank(design) == columns
    if is_joined and rows > columns:
        return design
    return of_arms


def _columns(scores: Scores) -> tuple[Any, Any, np.ndarray]:
    rows = []
    for arm, by_seed in scores.items():
        rows += [(arm, seed, score) for seed, score in by_seed.items()]
    arms, seeds, values = zip(*rows, strict=True)
    return arms, seeds, np.array(values, float)


def _indicators(values: Sequence[Any]) -> np.ndarray:
    kinds = dict.fromkeys(values)
    rows = [[value == kind for kind in kinds] for value in values]
    return np.array(rows, float)


@functools.lru_cache(maxsize=2)
def _normal_points(columns: int, logarithm: int) -> np.ndarray:
    """Returns Sobol points of independent normal numbers, [2^logarithm, columns]."""
    from scipy import stats

    uniform = stats.qmc.Sobol(columns, rng=0).random_base2(logarithm)
    normal = stats.norm.ppf(uniform)
    normal.flags.writeable = False
    return normal


class MaxStatistic:
    """The distribution of the largest |t| of all contrasts under the null hypothesis.

    The integral over normal numbers is a mean over Sobol points; that over the error
    variance is exact. A bound is accurate to about 1e-4.

    Args:
      root: [contrasts, arms], maps independent normal numbers to contrasts.
      freedom: Degrees of freedom of the error variance.
      shifts: [points, contrasts], further errors of t, or 0.
    """

    def __init__(
        self, root: np.ndarray, freedom: int, shifts: np.ndarray | float = 0.0
    ):
        root = root / np.linalg.norm(root, axis=1, keepdims=True)
        normal = _normal_points(root.shape[1], _POINTS)
        self._largest = np.abs(normal @ root.T + shifts).max(1)
        self._freedom = freedom

    def chance(self, bound: float) -> float:
        from scipy import special

        if not bound:
            return 1.0
        squares = self._freedom * (self._largest / bound) ** 2
        chances = special.chdtr(self._freedom, squares)
        return float(np.mean(chances))

    def bound(self, chance: float) -> float:
        from scipy import optimize

        def excess(logarithm):
            return self.chance(np.exp(logarithm)) - chance

        found: Any = optimize.brentq(excess, -7, 14)
        return float(np.exp(found))


def _losses_of_choices(
    trials: Mapping[str, Trials], arms: Sequence[str], error: float
) -> np.ndarray:
    """Returns what repeated choices of a value cost each arm, [points, arms].

    Each choice takes the best of simulated trials, whose means are normal around those
    of the real ones (parametric bootstrap). The cost is the score of the chosen value
    minus that of the best, in standard deviations of a run.
    """
    random = np.random.default_rng(0)
    losses_XA = np.zeros((1 << _POINTS, len(arms)))
    for i, arm in enumerate(arms):
        if arm not in trials:
            continue
        means, number, higher_is_better = trials[arm]
        sign = 1 if higher_is_better else -1
        scores_V = sign * np.array(means) / error
        noise_XV = random.normal(size=(1 << _POINTS, len(means)))
        chosen_X = (scores_V + noise_XV * number**-0.5).argmax(1)
        losses_XA[:, i] = sign * (scores_V[chosen_X] - scores_V.max())
    return losses_XA


def _shifts(
    root: np.ndarray, differences: np.ndarray, losses: np.ndarray
) -> np.ndarray:
    """Returns the errors of each contrast's t from the losses of arms."""
    return losses @ (differences / np.linalg.norm(root, axis=1, keepdims=True)).T


def _detectable(bound: float, freedom: int) -> float:
    """Returns the mean at which a t exceeds a bound with a probability of `POWER`."""
    from scipy import optimize, stats

    def missed(mean):
        return POWER - float(stats.nct.sf(bound, freedom, mean))

    found: Any = optimize.brentq(missed, 0, 10 * bound)
    return float(found)


def minimum_detectable(
    pilot: Scores,
    pairs: Sequence[Pair],
    seeds: Mapping[str, int],
    design: Design = PLAIN,
) -> float | None:
    """Returns the difference that a planned design detects with a power of 80%.

    It is that of the widest contrast, without the error of tuning. Returns None if the
    pilot gives no estimate, or no degrees of freedom are left.

    Args:
      pilot: Scores of earlier runs, which estimate the error variance.
      seeds: Number of planned seeds by arm.
    """
    root, freedom = _planned(pairs, seeds, design.blocks)
    if freedom < 1 or not pilot:
        return None
    _, _, variance, _ = _fit(pilot, design.blocks)
    if variance == 0:
        return None
    error = np.sqrt(variance) * np.linalg.norm(root, axis=1).max()
    bound = MaxStatistic(root, freedom).bound(LEVEL / design.looks)
    return float(_detectable(bound, freedom) * error)


def _planned(
    pairs: Sequence[Pair], seeds: Mapping[str, int], blocks: bool
) -> tuple[np.ndarray, int]:
    """Returns the root and the degrees of freedom of a design without missing runs."""
    counts = np.array(list(seeds.values()), float)
    freedom = int(counts.sum()) - len(counts)
    if blocks:
        freedom -= int(counts.max()) - 1
    return _differences(pairs, list(seeds)) / np.sqrt(counts), freedom


def error_rate_of_tuning(
    pairs: Sequence[Pair],
    seeds: Mapping[str, int],
    values: int,
    trials: int,
    blocks: bool = True,
) -> float:
    """Returns the largest share of sweeps without any effect that report some effect.

    This holds if intervals ignore the choice of the value. An arm loses most by a noisy
    choice if its other values are slightly worse. The share is maximized over the gap
    to the other values and over their number, one or all.

    Args:
      seeds: Number of seeds by arm.
      values: Number of values that each arm tries.
      trials: Number of trials of each value.
    """
    root, freedom = _planned(pairs, seeds, blocks)
    differences = _differences(pairs, list(seeds))
    bound = MaxStatistic(root, freedom).bound(LEVEL)
    random = np.random.default_rng(0)
    shape = 1 << _POINTS, len(seeds)
    shares = [LEVEL]
    for others in sorted({1, values - 1}):
        best_XA = random.normal(size=shape)
        largest_XA = random.normal(size=(others, *shape)).max(0)
        for gap in np.arange(1, 7) / 2:  # in standard errors of a trial's mean
            is_missed_XA = largest_XA - gap > best_XA
            losses_XA = -gap * trials**-0.5 * is_missed_XA
            shifts_XC = _shifts(root, differences, losses_XA)
            shares.append(MaxStatistic(root, freedom, shifts_XC).chance(bound))
    return max(shares)


class SentenceDifference(NamedTuple):
    """A difference on a test set, seen as a sample of sentences.

    Attributes:
      low, high: Its interval over other seeds and sentences; None if nothing varies.
      share: Share of the variance that comes from the sentences.
    """

    effect: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    share: float | None = None


def over_sentences(
    base: np.ndarray,
    system: np.ndarray,
    score: Callable[[np.ndarray], float],
    family: int = 1,
    contrast: Contrast | None = None,
) -> SentenceDifference:
    """Tests a difference over seeds and sentences at once.

    The variance of the mean difference is that over seeds plus the jackknife's over
    sentences (Tukey 1958), for a score of all sentences together, such as BLEU. The
    combined t has Satterthwaite's degrees of freedom (1946). It is conservative, since
    variation of sentences within a seed counts in both.

    Args:
      base, system: Statistics of translations, [seeds, sentences, statistics].
      score: Computes a score from the sum over sentences, [statistics].
      family: Number of differences tested together (Bonferroni).
      contrast: The same difference, with an error estimated from all arms. Defaults to
        the error over the two systems' seeds.
    """
    from scipy import stats

    seeds, sentences, _ = base.shape
    both = np.stack([base, system])
    sums = both.sum(2)

    def differences(sums):
        pairs = zip(*sums, strict=True)
        return np.array([score(other) - score(one) for one, other in pairs])

    by_seed = differences(sums)
    effect = float(by_seed.mean())
    left_out = []
    for i in range(sentences):
        jackknifed = differences(sums - both[:, :, i])
        left_out.append(jackknifed.mean())
    of_sentences = np.var(left_out) * (sentences - 1)
    of_seeds = 0.0
    freedom_of_seeds = seeds - 1
    if contrast is not None and contrast.error is not None:
        of_seeds = contrast.error**2
        freedom_of_seeds = contrast.freedom
    elif seeds > 1:
        of_seeds = by_seed.var(ddof=1) / seeds
    variance = of_seeds + of_sentences
    rounding = 1e-9 * max(abs(effect), 1e-9)
    if variance <= rounding**2:
        return SentenceDifference(effect)
    # A constant variance component may have no degrees of freedom.
    shares = of_seeds**2 / max(1, freedom_of_seeds)
    shares += of_sentences**2 / max(1, sentences - 1)
    t = stats.t(variance**2 / shares)
    error = np.sqrt(variance)
    reach = float(t.isf(LEVEL / family / 2) * error)
    p = min(1.0, 2 * family * float(t.sf(abs(effect) / error)))
    share = float(of_sentences / variance)
    return SentenceDifference(effect, effect - reach, effect + reach, p, share)


class Effect(NamedTuple):
    """The main effect of a factor, or the interaction of several.

    `freedom` holds the degrees of freedom of the effect and of the errors.
    """

    factors: tuple[str, ...]
    freedom: tuple[int, int]
    f: float
    p: float


def effects(scores: Scores, levels: Mapping[str, Mapping[str, str]]) -> list[Effect]:
    """Tests each factor and each interaction that can be estimated, blocked by seed.

    Computes an analysis of variance of type II (Yates 1934): an effect is what it
    explains beyond all effects that don't contain it.

    Args:
      levels: Level of each factor, `levels[arm][factor]`.
    """
    from scipy import stats

    arms, seeds, values = _columns(scores)
    of_seeds = _indicators(seeds)
    factors = levels[arms[0]]
    of_terms = {}
    for number in range(len(factors)):
        for term in combinations(factors, number + 1):
            level_of = operator.itemgetter(*term)
            of_terms[term] = _indicators([level_of(levels[arm]) for arm in arms])

    def fit(terms):
        """Returns the residual sum of squares of some terms, and their rank."""
        columns = [of_terms[term] for term in terms]
        design = np.hstack([of_seeds, *columns])
        coefficients, _, rank, _ = np.linalg.lstsq(design, values, rcond=None)
        residuals = values - design @ coefficients
        return float((residuals**2).sum()), int(rank)

    rest, rank = fit(of_terms)
    freedom = len(values) - rank
    if freedom == 0 or rest <= 1e-18 * (values**2).sum():
        return []
    found = []
    for term in of_terms:
        others = [other for other in of_terms if not set(term) <= set(other)]
        without_term, smaller = fit(others)
        with_term, larger = fit([*others, term])
        own = larger - smaller
        if own == 0:
            continue  # not estimable from these arms
        f = (without_term - with_term) / own / (rest / freedom)
        p = float(stats.f.sf(f, own, freedom))
        found.append(Effect(term, (own, freedom), f, p))
    return found


def error_variances(
    scores: Scores, data: Mapping[str, str], blocks: bool = True
) -> dict[str, float]:
    """Returns the error variance of each data set that has degrees of freedom left.

    Args:
      data: The data set of each arm.
    """
    by_data = collections.defaultdict(dict)
    for arm, by_seed in scores.items():
        by_data[data[arm]][arm] = by_seed
    fits = {name: _fit(of_data, blocks) for name, of_data in by_data.items()}
    return {name: variance for name, (*_, variance, freedom) in fits.items() if freedom}


class Improvement(NamedTuple):
    chance: float
    low: float
    high: float


def improvement(
    base: Sequence[Sequence[float]], system: Sequence[Sequence[float]]
) -> Improvement:
    """Computes the probability of improvement (Agarwal et al. 2021), free of units.

    It is a mean over data sets, in which ties count half. Its interval resamples the
    runs of each data set (bootstrap).

    Args:
      base, system: Scores of the runs of each data set; higher is better.
    """

    random = np.random.default_rng(0)

    def resample(runs):
        """Returns [1 + bootstraps, runs]: the runs, and bootstrap samples of them."""
        resampled_runs = random.choice(runs, (_BOOTSTRAPS, len(runs)))
        return np.vstack([runs, resampled_runs])

    of_sets = []
    for of_base, of_system in zip(base, system, strict=True):
        base_XR = resample(of_base)
        system_XR = resample(of_system)
        above_XRR = system_XR[:, :, None] - base_XR[:, None]
        balance_X = np.sign(above_XRR).mean((1, 2))
        of_sets.append((balance_X + 1) / 2)
    chance, *others = np.mean(of_sets, 0).tolist()
    ends = np.quantile(others, [LEVEL / 2, 1 - LEVEL / 2])
    return Improvement(chance, *ends.tolist())


def expected_best(scores: Sequence[float], best: Any = max) -> list[float]:
    """Computes the expected best score of 1, 2, … trials.

    Trials are drawn from the scores with replacement (Dodge et al. 2019). `best` is
    `min` if a lower score is better.
    """
    ranked = sorted(scores, reverse=best is min)
    number = len(ranked)
    shares = np.arange(number + 1) / number
    return [float(np.diff(shares**n) @ ranked) for n in range(1, number + 1)]
