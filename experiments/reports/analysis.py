"""Differences between arms that share their seeds: how large, how sure, all at once.

A score is what its arm and its seed bring, and chance: y = arm + seed + error, by least
squares (Fisher 1935, randomised blocks). So what a seed brings to all arms alike is no
noise of their difference. The intervals hold together: all of them cover what is true
in 95 of 100 experiments, and a p below 0.05 is the same statement (Dunnett 1955, of
arms and a base; Tukey 1953, of all pairs; Hothorn, Bretz and Westfall 2008, of any
contrasts).
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

LEVEL = 0.05
_BOOTSTRAPS = 2_000
_EXCHANGES = 9_999
_POINTS = 15  # the binary logarithm of how many an integral has

Scores = Mapping[str, Mapping[Any, float]]  # by arm and seed; runs may be missing
Pair = tuple[str, str]


class Spread(NamedTuple):
    """A mean over seeds.

    Attributes:
      mean: of the values.
      sd: their standard deviation, of a sample; None of one value.
      n: how many there are.
    """

    mean: float
    sd: float | None
    n: int


def spread(values: Sequence[float | None]) -> Spread | None:
    """Mean and standard deviation, without values that are None; None of no values."""
    there = [value for value in values if value is not None]
    if not there:
        return None
    sd = statistics.stdev(there) if len(there) > 1 else None
    return Spread(statistics.fmean(there), sd, len(there))


class Contrast(NamedTuple):
    """How far an arm is above another.

    Attributes:
      arm, base: the two.
      effect: the difference; where seeds are missing, adjusted for which they are.
      low, high: its interval; None where nothing tells how large chance is.
      p: two-sided, of this family of contrasts; None as above.
      seeds: how many both have.
      equivalent: whether the whole interval lies within the margin; None without one.
      error: of the effect, its standard error over seeds; None as above.
      freedom: degrees of it.
      permuted: p by exchanging arms within seeds, which takes no error for normal; None
        where fewer than two seeds have all arms.
    """

    arm: str
    base: str
    effect: float
    low: float | None
    high: float | None
    p: float | None
    seeds: int
    equivalent: bool | None = None
    error: float | None = None
    freedom: int = 0
    permuted: float | None = None

    @property
    def significant(self) -> bool:
        """Whether chance alone would rarely bring such a difference."""
        return self.p is not None and self.p < LEVEL


def compare(
    scores: Scores,
    base: str | None = None,
    contrasts: Sequence[Pair] = (),
    margin: float | None = None,
    looks: int = 1,
) -> list[Contrast]:
    """Differences between arms, with intervals that hold together.

    Where the arms do not share seeds enough to tell what these bring, seeds do not
    count: chance is then the spread within arms.

    Args:
      scores: `scores[arm][seed]`; runs may be missing.
      base: the arm that all others are compared with.
      contrasts: pairs (arm, base) in place of `base`; without both, all pairs.
      margin: differences below it do not matter.
      looks: how often seeds may be added by what the intervals were. Each look has an
        equal share of the error rate, so that all hold together whichever is the last.

    Raises:
      ValueError: an arm is not there, or has no score; a score is not finite; a margin
        is not above 0.
    """
    if margin is not None and not margin > 0:
        raise ValueError(f'margin must be above 0, not {margin}')
    if contrasts:
        pairs = list(contrasts)
    elif base is not None:
        pairs = [(arm, base) for arm in scores if arm != base]
    else:
        pairs = list(combinations(scores, 2))
    _check(scores, [arm for pair in pairs for arm in pair])
    arms = sorted(scores)  # the same answer in any order
    fit = _fit({arm: scores[arm] for arm in arms})
    chosen = np.zeros((len(pairs), len(arms)))
    for row, (one, other) in zip(chosen, pairs, strict=True):
        row[arms.index(one)] += 1
        row[arms.index(other)] -= 1
    effects = chosen @ fit.arms
    root = chosen @ np.linalg.cholesky(fit.covariance)
    errors = np.sqrt(fit.variance) * np.linalg.norm(root, axis=1)
    largest = Largest(root, fit.freedom) if errors.any() else None
    bound = largest.bound(LEVEL / looks) if largest else 0.0
    permuted = permutation_tests(scores, pairs)
    found = []
    for (arm, other), effect, error, by_permutation in zip(
        pairs, effects.tolist(), errors.tolist(), permuted, strict=True
    ):
        shared = len(scores[arm].keys() & scores[other].keys())
        contrast = Contrast(arm, other, effect, None, None, None, shared)
        if by_permutation is not None:
            contrast = contrast._replace(permuted=min(1.0, looks * by_permutation))
        if largest is not None:
            low = effect - bound * error
            high = effect + bound * error
            contrast = contrast._replace(
                low=low,
                high=high,
                p=min(1.0, looks * largest.chance(abs(effect) / error)),
                equivalent=None if margin is None else -margin < low < high < margin,
                error=error,
                freedom=fit.freedom,
            )
        found.append(contrast)
    return found


def _check(scores: Scores, named: Sequence[str]) -> None:
    """Raises for an arm that is not there, and for scores that are none."""
    for arm in named:
        if arm not in scores:
            raise ValueError(f'{arm!r} is no arm: there are {", ".join(scores)}')
    for arm, by_seed in scores.items():
        if not by_seed:
            raise ValueError(f'{arm!r} has no score: leave it out')
        for seed, score in by_seed.items():
            if not np.isfinite(score):
                raise ValueError(f'{arm!r}, seed {seed}: {score} is no score')


def permutation_tests(scores: Scores, pairs: Sequence[Pair]) -> list[float | None]:
    """p of each pair, if the scores of a seed could as well stand at other arms.

    That is so where no arm differs, whatever the errors' law is (Fisher 1935). p is the
    share of exchanges of arms within seeds whose largest |t| of all pairs is as large
    as that of the pair (Westfall and Young 1993). It cannot be below what their number
    allows: of two arms and three seeds 0.25.

    Args:
      scores: `scores[arm][seed]`; seeds that an arm has not are left out.
      pairs: of arms.

    Returns:
      None of each where fewer than two seeds are left, or scores do not differ.
    """
    arms = sorted(scores)
    values_SA = _of_shared_seeds(scores, arms)
    if len(values_SA) < 2 or not np.ptp(values_SA, axis=1).any():
        return [None] * len(pairs)
    values_SA -= values_SA.mean(1, keepdims=True)
    variance = (values_SA**2).sum() / len(values_SA)
    above = [arms.index(arm) for arm, _ in pairs]
    below = [arms.index(base) for _, base in pairs]

    def sizes(means_XA):
        """Of the t of each pair, up to a factor: what means leave is chance."""
        left_X = variance - (means_XA**2).sum(1)
        chance_X = np.sqrt(np.maximum(left_X, 1e-12 * variance))
        differences_XP = np.abs(means_XA[:, above] - means_XA[:, below])
        return differences_XP / chance_X[:, None]

    own_P = sizes(values_SA.mean(0, keepdims=True))[0]
    largest_X = sizes(_exchanged_means(values_SA)).max(1)
    is_as_large_XP = largest_X[:, None] >= own_P * (1 - 1e-9)
    # The one that exchanges nothing counts as well.
    return ((1 + is_as_large_XP.sum(0)) / (1 + _EXCHANGES)).tolist()


def _of_shared_seeds(scores: Scores, arms: Sequence[str]) -> np.ndarray:
    """[seeds, arms], of the seeds that all arms have."""
    first = scores[arms[0]]
    shared = [seed for seed in first if all(seed in scores[arm] for arm in arms)]
    return np.array([[scores[arm][seed] for arm in arms] for seed in shared])


def _exchanged_means(values_SA: np.ndarray) -> np.ndarray:
    """[exchanges, arms], means over seeds after arms were exchanged within each."""
    random = np.random.default_rng(0)
    sums_XA = np.zeros((_EXCHANGES, values_SA.shape[1]))
    for values_A in values_SA:
        copies_XA = np.tile(values_A, (_EXCHANGES, 1))
        sums_XA += random.permuted(copies_XA, axis=1)
    return sums_XA / len(values_SA)


class Fit(NamedTuple):
    """Least squares.

    Attributes:
      arms: effects, up to a constant.
      covariance: of the effects, of errors of variance 1.
      variance: of the errors; 0 where nothing is left to tell it by.
      freedom: degrees of it.
    """

    arms: np.ndarray
    covariance: np.ndarray
    variance: float
    freedom: int


def _fit(scores: Scores) -> Fit:
    cells = _cells(scores)
    design = _design(cells)
    values = np.array([scores[arm][seed] for arm, seed in cells], float)
    inverse = np.linalg.inv(design.T @ design)
    coefficients = inverse @ design.T @ values
    residuals = values - design @ coefficients
    # Of equal scores only roundings are left.
    residuals[np.abs(residuals) <= 1e-9 * np.abs(values).max()] = 0
    freedom = len(cells) - design.shape[1]
    variance = float(residuals @ residuals) / freedom if freedom else 0.0
    arms = len(scores)
    return Fit(coefficients[:arms], inverse[:arms, :arms], variance, freedom)


def _design(cells: Sequence[tuple[str, Any]]) -> np.ndarray:
    """A row a score: a column for each arm, then one for each seed but the first.

    Without the seeds where arms do not share enough of them: some are joined to the
    rest by none, or no score is left to tell chance by.
    """
    of_arms = _indicators([arm for arm, _ in cells])
    of_seeds = _indicators([seed for _, seed in cells])
    design = np.hstack([of_arms, of_seeds[:, 1:]])
    is_joined = np.linalg.matrix_rank(design) == design.shape[1]
    return design if is_joined and len(cells) > design.shape[1] else of_arms


def _cells(scores: Scores) -> list[tuple[str, Any]]:
    return [(arm, seed) for arm, by_seed in scores.items() for seed in by_seed]


def _indicators(values: Sequence[Any]) -> np.ndarray:
    """A column for each value, 1 where it is."""
    kinds = dict.fromkeys(values)
    return np.array([[value == kind for kind in kinds] for value in values], float)


class Largest:
    """The largest |t| of all contrasts, if nothing differs.

    It is one law for any contrasts, and for runs that are missing: a table of Dunnett's
    or Tukey's has neither. Its integral over normal numbers is a mean over Sobol's
    points, that over the errors' variance is known: to some 1e-4 of a bound.

    Args:
      root: [contrasts, arms], which makes them of independent normal numbers.
      freedom: degrees of it, of the errors' variance.
    """

    def __init__(self, root: np.ndarray, freedom: int):
        from scipy import stats

        root = root / np.linalg.norm(root, axis=1, keepdims=True)
        sobol = stats.qmc.Sobol(root.shape[1], rng=0)
        normal = stats.norm.ppf(sobol.random_base2(_POINTS))
        self._largest = np.abs(normal @ root.T).max(1)
        self._freedom = freedom

    def chance(self, bound: float) -> float:
        """How likely it is to be beyond."""
        from scipy import special

        ratios = (self._largest / bound) ** 2 if bound else np.inf
        return float(np.mean(special.chdtr(self._freedom, self._freedom * ratios)))

    def bound(self, chance: float) -> float:
        """What it is beyond with this chance."""
        from scipy import optimize

        def excess(logarithm):
            return self.chance(np.exp(logarithm)) - chance

        found: Any = optimize.brentq(excess, -7, 14)
        return float(np.exp(found))


def smallest_seen(
    pilot: Scores, arms: int, seeds: int, looks: int = 1, power: float = 0.8
) -> float | None:
    """The least difference from the base that most experiments of a design would show.

    Args:
      pilot: scores of earlier runs, by which chance is told.
      arms: of the design, its base among them.
      seeds: of each arm.
      looks: as in `compare`.
      power: the share of experiments in which it is significant.

    Returns:
      None where the pilot does not tell chance, or the design leaves none to tell.
    """
    freedom = (arms - 1) * (seeds - 1)
    variance = _fit(pilot).variance if pilot else 0.0
    if freedom == 0 or variance == 0:
        return None
    from scipy import optimize, stats

    differences = np.hstack([np.eye(arms - 1), -np.ones((arms - 1, 1))])
    bound = Largest(differences, freedom).bound(LEVEL / looks)

    def missed(distance):
        return power - float(stats.nct.sf(bound, freedom, distance))

    distance: Any = optimize.brentq(missed, 0, 10 * bound)
    return float(distance * np.sqrt(2 * variance / seeds))


class OverSentences(NamedTuple):
    """A difference on a set of sentences, of which others might have been drawn.

    Attributes:
      effect: the mean over seeds.
      low, high: its interval over other seeds and other sentences; None where nothing
        varies.
      p: two-sided.
      share: of the variance that comes from the sentences.
    """

    effect: float
    low: float | None
    high: float | None
    p: float | None
    share: float | None


def over_sentences(
    base: np.ndarray,
    system: np.ndarray,
    score: Callable[[np.ndarray], float],
    family: int = 1,
    contrast: Contrast | None = None,
) -> OverSentences:
    """How sure a difference is, of seeds and of sentences at once.

    The variance of the mean difference is that over seeds, and that over sentences: the
    jackknife's (Tukey 1958), of a score of all sentences together, such as BLEU. It is
    that of a t of as many degrees of freedom as both have together (Satterthwaite
    1946). What sentences bring to each seed apart counts in both, which errs on the
    side of caution.

    Args:
      base, system: statistics of translations, [seeds, sentences, statistics], seed by
        seed and sentence by sentence of the same.
      score: of the sum over sentences, [statistics].
      family: how many differences are told at once (Bonferroni).
      contrast: the same difference among others, which knows the error over seeds from
        all arms; without it, from the seeds of these two.
    """
    from scipy import stats

    seeds, sentences, _ = base.shape

    def differences(of_base, of_system):
        """Of each seed, by the sums over sentences."""
        pairs = zip(of_base, of_system, strict=True)
        return np.array([score(other) - score(one) for one, other in pairs])

    base_sums = base.sum(1)
    system_sums = system.sum(1)
    by_seed = differences(base_sums, system_sums)
    effect = float(by_seed.mean())
    left_out = [
        differences(base_sums - base[:, i], system_sums - system[:, i]).mean()
        for i in range(sentences)
    ]
    of_seeds = (by_seed.var(ddof=1) / seeds if seeds > 1 else 0.0, seeds - 1)
    if contrast is not None and contrast.error is not None:
        of_seeds = (contrast.error**2, contrast.freedom)
    of_sentences = (np.var(left_out) * (sentences - 1), sentences - 1)
    variance = of_seeds[0] + of_sentences[0]
    if variance <= (1e-9 * max(abs(effect), 1e-9)) ** 2:
        return OverSentences(effect, None, None, None, None)
    parts = [(part, n) for part, n in (of_seeds, of_sentences) if part]
    freedom = variance**2 / sum(part**2 / n for part, n in parts)
    error = np.sqrt(variance)
    reach = float(stats.t.isf(LEVEL / family / 2, freedom) * error)
    p = min(1.0, 2 * family * float(stats.t.sf(abs(effect) / error, freedom)))
    share = float(of_sentences[0] / variance)
    return OverSentences(effect, effect - reach, effect + reach, p, share)


class Effect(NamedTuple):
    """What a factor brings, or several together beyond what each brings alone.

    Attributes:
      factors: which; of several it is their interaction.
      freedom: degrees of it, of the effect and of the errors.
      f: the variance that it explains, to that of the errors.
      p: how likely so large an f is by chance.
    """

    factors: tuple[str, ...]
    freedom: tuple[int, int]
    f: float
    p: float


def effects(
    scores: Scores,
    levels: Mapping[str, Sequence[str]],
    factors: Sequence[str],
) -> list[Effect]:
    """Whether each factor, and each combination of them, matters: blocked by seed.

    The analysis of variance of type II (Yates 1934): an effect is what it explains
    beyond all effects that do not contain it.

    Args:
      scores: `scores[arm][seed]`; runs may be missing.
      levels: arm → its level of each factor.
      factors: their names.

    Returns:
      None of them where nothing is left to tell chance by.
    """
    from scipy import stats

    cells = _cells(scores)
    values = np.array([scores[arm][seed] for arm, seed in cells], float)
    of_seeds = _indicators([seed for _, seed in cells])
    of_terms: dict[tuple[int, ...], np.ndarray] = {}
    for number in range(1, len(factors) + 1):
        for term in combinations(range(len(factors)), number):
            of_cells = [tuple(levels[arm][i] for i in term) for arm, _ in cells]
            of_terms[term] = _indicators(of_cells)

    def unexplained(terms):
        """The sum of squares that these terms leave, and the rank of them all."""
        design = np.hstack([of_seeds, *(of_terms[term] for term in terms)])
        fitted, _, rank, _ = np.linalg.lstsq(design, values, rcond=None)
        return float(((values - design @ fitted) ** 2).sum()), int(rank)

    rest, rank = unexplained(of_terms)
    freedom = len(values) - rank
    if freedom == 0 or rest <= 1e-18 * (values**2).sum():
        return []
    found = []
    for term in of_terms:
        others = [other for other in of_terms if not set(term) <= set(other)]
        without, smaller = unexplained(others)
        with_it, larger = unexplained([*others, term])
        if larger == smaller:
            continue  # no arm tells it
        own = larger - smaller
        f = (without - with_it) / own / (rest / freedom)
        p = float(stats.f.sf(f, own, freedom))
        names = tuple(factors[i] for i in term)
        found.append(Effect(names, (own, freedom), f, p))
    return found


class Improvement(NamedTuple):
    """How often a run of one arm is above one of another, over several data sets.

    Attributes:
      chance: the mean over data sets; equal runs count half.
      low, high: its interval, over other seeds.
    """

    chance: float
    low: float
    high: float


def improvement(
    base: Sequence[Sequence[float]], system: Sequence[Sequence[float]]
) -> Improvement:
    """The probability of improvement (Agarwal et al. 2021), which needs no common unit.

    Its interval is the bootstrap's, which draws the runs of each data set again.

    Args:
      base, system: for each data set the scores of the runs, more being better.
    """

    def chances(one, other):
        pairs = other[..., :, None] - one[..., None, :]
        return (np.sign(pairs).mean((-2, -1)) + 1) / 2

    random = np.random.default_rng(0)
    values = []
    drawn = []
    for of_base, of_system in zip(base, system, strict=True):
        values.append(chances(np.array(of_base), np.array(of_system)))
        base_again = random.choice(of_base, (_BOOTSTRAPS, len(of_base)))
        system_again = random.choice(of_system, (_BOOTSTRAPS, len(of_system)))
        drawn.append(chances(base_again, system_again))
    low, high = np.quantile(np.mean(drawn, 0), [LEVEL / 2, 1 - LEVEL / 2])
    return Improvement(float(np.mean(values)), float(low), float(high))


def expected_best(scores: Sequence[float], best: Any = max) -> list[float]:
    """The best of 1, 2, … trials, on average, as these scores came out.

    Trials are drawn from them with replacement (Dodge et al. 2019).

    Args:
      scores: of all trials.
      best: min, where less is better.
    """
    ranked = sorted(scores, reverse=best is min)
    number = len(ranked)
    shares = np.arange(number + 1) / number
    return [float(np.diff(shares**trials) @ ranked) for trials in range(1, number + 1)]
