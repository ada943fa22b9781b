"""Differences between arms that share their seeds: how large, how sure, all at once.

A score is what its arm and its seed bring, and chance: y = arm + seed + error, by least
squares (Fisher 1935, randomised blocks). So what a seed brings to all arms alike is no
noise of their difference. The intervals hold together: all of them cover what is true
in 95 of 100 experiments, and a p below 0.05 is the same statement (Dunnett 1955, of
arms and a base; Tukey 1953, of all pairs; Hothorn, Bretz and Westfall 2008, of any
contrasts).
"""

import collections
import operator
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain, combinations
from typing import Any, NamedTuple

import numpy as np

LEVEL = 0.05
POWER = 0.8  # at which a difference is called detectable
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
    sd = None
    if len(there) > 1:
        sd = statistics.stdev(there)
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
    low: float | None = None
    high: float | None = None
    p: float | None = None
    seeds: int = 0
    equivalent: bool | None = None
    error: float | None = None
    freedom: int = 0
    permuted: float | None = None

    @property
    def significant(self) -> bool:
        """Whether chance alone would rarely bring such a difference."""
        return self.p is not None and self.p < LEVEL

    @property
    def detectable(self) -> float | None:
        """The minimum detectable difference at a power of 80 %; None without a test."""
        if self.low is None or self.high is None or not self.error:
            return None
        bound = (self.high - self.low) / 2 / self.error
        return _detectable(bound, self.freedom) * self.error


def compare(
    scores: Scores,
    base: str | None = None,
    contrasts: Sequence[Pair] | None = None,
    margin: float | None = None,
    looks: int = 1,
    data: Mapping[str, str] | None = None,
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
      data: arm → what its scores are of; None: all are of the same. On other data a
        seed brings something else, and chance is another: a difference is estimated
        from the arms of its own data alone, and each data set has an equal share of the
        error rate (Bonferroni).

    Raises:
      ValueError: an arm is not there, or has no score; a score is not finite; a margin
        is not above 0.
    """
    if margin is not None and not margin > 0:
        raise ValueError(f'margin must be above 0, not {margin}')
    if contrasts is not None:
        pairs = list(contrasts)
    elif base is not None:
        pairs = [(arm, base) for arm in scores if arm != base]
    else:
        pairs = list(combinations(scores, 2))
    _check(scores, pairs)
    data = data or {}
    by_data = families(pairs, data)
    found = {}
    for sets, of_sets in by_data.items():
        own = {arm: x for arm, x in scores.items() if data.get(arm) in sets}
        for contrast in _family(own, of_sets, margin, looks * len(by_data)):
            found[contrast.arm, contrast.base] = contrast
    return [found[pair] for pair in pairs]


def families(
    pairs: Sequence[Pair], data: Mapping[str, str]
) -> dict[frozenset[str | None], list[Pair]]:
    """Groups pairs by the data of their arms; each group has an error of its own."""
    by_data = collections.defaultdict(list)
    for pair in pairs:
        by_data[frozenset(map(data.get, pair))].append(pair)
    return by_data


def pairs_with(bases: Mapping[str, str], arms: Collection[str]) -> list[Pair]:
    """Each of these arms with its own base, where that is another of them."""
    return [
        (arm, bases[arm]) for arm in arms if bases[arm] != arm and bases[arm] in arms
    ]


def _family(
    scores: Scores, pairs: Sequence[Pair], margin: float | None, looks: int
) -> list[Contrast]:
    """The same of arms that have one law of chance; arguments as `compare` has them."""
    ordered = dict(sorted(scores.items()))  # the same answer in any order
    means, covariance, variance, freedom = _fit(ordered)
    differences = _differences(pairs, list(ordered))
    effects = differences @ means
    root = differences @ np.linalg.cholesky(covariance)
    errors = np.sqrt(variance) * np.linalg.norm(root, axis=1)
    largest = None
    bound = 0.0
    if errors.any():
        largest = Largest(root, freedom)
        bound = largest.bound(LEVEL / looks)
    permuted = permutation_tests(scores, pairs)
    found = []
    for (arm, other), effect, error, by_permutation in zip(
        pairs, effects.tolist(), errors.tolist(), permuted, strict=True
    ):
        shared = scores[arm].keys() & scores[other].keys()
        contrast = Contrast(arm, other, effect, seeds=len(shared))
        if by_permutation is not None:
            contrast = contrast._replace(permuted=min(1.0, looks * by_permutation))
        if largest is not None:
            reach = bound * error
            low = effect - reach
            high = effect + reach
            chance = largest.chance(abs(effect) / error)
            is_within = None if margin is None else -margin < low < high < margin
            contrast = contrast._replace(
                low=low,
                high=high,
                p=min(1.0, looks * chance),
                equivalent=is_within,
                error=error,
                freedom=freedom,
            )
        found.append(contrast)
    return found


def _differences(pairs: Sequence[Pair], arms: Sequence[str]) -> np.ndarray:
    """[pairs, arms], which makes the differences of pairs of what arms have."""
    above = [arms.index(arm) for arm, _ in pairs]
    below = [arms.index(base) for _, base in pairs]
    identity = np.eye(len(arms))
    return identity[above] - identity[below]


def _check(scores: Scores, pairs: Sequence[Pair]) -> None:
    """Raises for an arm that is not there, and for scores that are none."""
    for arm in chain(*pairs):
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
    values_SA = _of_shared_seeds(scores)
    if len(values_SA) < 2 or not np.ptp(values_SA, axis=1).any():
        return [None] * len(pairs)
    values_SA -= values_SA.mean(1, keepdims=True)
    variance = (values_SA**2).sum() / len(values_SA)
    differences_PA = _differences(pairs, sorted(scores))

    def sizes(means_XA):
        """Of the t of each pair, up to a factor: what means leave is chance."""
        left_X = variance - (means_XA**2).sum(1)
        least = 1e-12 * variance
        chance_X = np.sqrt(np.maximum(left_X, least))
        effects_PX = differences_PA @ means_XA.T
        return np.abs(effects_PX) / chance_X

    own_P1 = sizes(values_SA.mean(0, keepdims=True))
    largest_X = sizes(_exchanged_means(values_SA)).max(0)
    is_as_large_PX = largest_X >= own_P1 * (1 - 1e-9)
    # The one that exchanges nothing counts as well.
    counts_P = 1 + is_as_large_PX.sum(1)
    return (counts_P / (1 + _EXCHANGES)).tolist()


def _of_shared_seeds(scores: Scores) -> np.ndarray:
    """[seeds, arms], of the seeds that all arms have; arms by their names."""
    of_arms = [scores[arm] for arm in sorted(scores)]
    shared = [seed for seed in of_arms[0] if all(seed in x for x in of_arms)]
    rows = [[of_arm[seed] for of_arm in of_arms] for seed in shared]
    return np.array(rows, float)


def _exchanged_means(values_SA: np.ndarray) -> np.ndarray:
    """[exchanges, arms], means over seeds after arms were exchanged within each."""
    random = np.random.default_rng(0)
    sums_XA = np.zeros((_EXCHANGES, values_SA.shape[1]))
    for values_A in values_SA:
        copies_XA = np.tile(values_A, (_EXCHANGES, 1))
        sums_XA += random.permuted(copies_XA, axis=1)
    return sums_XA / len(values_SA)


def _fit(scores: Scores) -> tuple[np.ndarray, np.ndarray, float, int]:
    """Least squares.

    Returns:
      effects of arms, up to a constant; their covariance, of errors of variance 1; the
      variance of the errors, 0 where nothing is left to tell it by; its degrees of
      freedom.
    """
    arms, seeds, values = _columns(scores)
    design = _design(arms, seeds)
    inverse = np.linalg.inv(design.T @ design)
    coefficients = inverse @ design.T @ values
    residuals = values - design @ coefficients
    # Of equal scores only roundings are left.
    rounding = 1e-9 * np.abs(values).max()
    residuals[np.abs(residuals) <= rounding] = 0
    squares = float(residuals @ residuals)
    freedom = len(values) - design.shape[1]
    variance = 0.0
    if freedom:
        variance = squares / freedom
    of_arms = slice(len(scores))
    covariance = inverse[of_arms, of_arms]
    return coefficients[of_arms], covariance, variance, freedom


def _design(arms: Sequence[str], seeds: Sequence[Any]) -> np.ndarray:
    """A row a score: a column for each arm, then one for each seed but the first.

    Without the seeds where arms do not share enough of them: some are joined to the
    rest by none, or no score is left to tell chance by.
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
    """The arms of all scores, their seeds, and the scores themselves."""
    rows = []
    for arm, by_seed in scores.items():
        rows += [(arm, seed, score) for seed, score in by_seed.items()]
    arms, seeds, values = zip(*rows, strict=True)
    return arms, seeds, np.array(values, float)


def _indicators(values: Sequence[Any]) -> np.ndarray:
    """A column for each value, 1 where it is."""
    kinds = dict.fromkeys(values)
    rows = [[value == kind for kind in kinds] for value in values]
    return np.array(rows, float)


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
        uniform = sobol.random_base2(_POINTS)
        normal = stats.norm.ppf(uniform)
        self._largest = np.abs(normal @ root.T).max(1)
        self._freedom = freedom

    def chance(self, bound: float) -> float:
        """How likely it is to be beyond."""
        from scipy import special

        if not bound:
            return 1.0
        squares = self._freedom * (self._largest / bound) ** 2
        chances = special.chdtr(self._freedom, squares)
        return float(np.mean(chances))

    def bound(self, chance: float) -> float:
        """What it is beyond with this chance."""
        from scipy import optimize

        def excess(logarithm):
            return self.chance(np.exp(logarithm)) - chance

        found: Any = optimize.brentq(excess, -7, 14)
        return float(np.exp(found))


def _detectable(bound: float, freedom: int) -> float:
    """Returns the mean at which a t is beyond a bound with a probability of `POWER`."""
    from scipy import optimize, stats

    def missed(mean):
        return POWER - float(stats.nct.sf(bound, freedom, mean))

    found: Any = optimize.brentq(missed, 0, 10 * bound)
    return float(found)


def minimum_detectable(
    pilot: Scores,
    arms: Sequence[str],
    pairs: Sequence[Pair],
    seeds: int,
    looks: int = 1,
) -> float | None:
    """Returns the difference that a planned design detects with a power of 80 %.

    Args:
      pilot: Scores of earlier runs, which estimate the variance of the errors.
      arms: All arms of the design.
      pairs: Those that are compared.
      seeds: Number of seeds of each arm.
      looks: As in `compare`.

    Returns:
      None where the pilot has no estimate, or the design leaves no degree of freedom.
    """
    freedom = (len(arms) - 1) * (seeds - 1)
    if freedom == 0 or not pilot:
        return None
    _, _, variance, _ = _fit(pilot)
    if variance == 0:
        return None
    differences = _differences(pairs, arms)
    bound = Largest(differences, freedom).bound(LEVEL / looks)
    error = np.sqrt(2 * variance / seeds)
    return float(_detectable(bound, freedom) * error)


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
    both = np.stack([base, system])
    sums = both.sum(2)

    def differences(sums):
        """Of each seed, by the sums over sentences of the base and the system."""
        pairs = zip(*sums, strict=True)
        return np.array([score(other) - score(one) for one, other in pairs])

    by_seed = differences(sums)
    effect = float(by_seed.mean())
    left_out = []
    for i in range(sentences):
        without = differences(sums - both[:, :, i])
        left_out.append(without.mean())
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
        return OverSentences(effect)
    # What does not vary may have no degree of freedom.
    shares = of_seeds**2 / max(1, freedom_of_seeds)
    shares += of_sentences**2 / max(1, sentences - 1)
    law = stats.t(variance**2 / shares)
    error = np.sqrt(variance)
    reach = float(law.isf(LEVEL / family / 2) * error)
    beyond = float(law.sf(abs(effect) / error))
    p = min(1.0, 2 * family * beyond)
    share = float(of_sentences / variance)
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


def effects(scores: Scores, levels: Mapping[str, Mapping[str, str]]) -> list[Effect]:
    """Whether each factor, and each combination of them, matters: blocked by seed.

    The analysis of variance of type II (Yates 1934): an effect is what it explains
    beyond all effects that do not contain it.

    Args:
      scores: `scores[arm][seed]`; runs may be missing.
      levels: arm → factor → its level.

    Returns:
      None of them where nothing is left to tell chance by.
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

    def unexplained(terms):
        """The sum of squares that these terms leave, and the rank of them all."""
        columns = [of_terms[term] for term in terms]
        design = np.hstack([of_seeds, *columns])
        coefficients, _, rank, _ = np.linalg.lstsq(design, values, rcond=None)
        residuals = values - design @ coefficients
        return float((residuals**2).sum()), int(rank)

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
        explained = (without - with_it) / own
        f = explained / (rest / freedom)
        p = float(stats.f.sf(f, own, freedom))
        found.append(Effect(term, (own, freedom), f, p))
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

    random = np.random.default_rng(0)

    def drawn(runs):
        """[1 + bootstraps, runs]: they themselves, and drawn again from them."""
        again = random.choice(runs, (_BOOTSTRAPS, len(runs)))
        return np.vstack([runs, again])

    of_sets = []
    for of_base, of_system in zip(base, system, strict=True):
        base_XR = drawn(of_base)
        system_XR = drawn(of_system)
        above_XRR = system_XR[:, :, None] - base_XR[:, None]
        balance_X = np.sign(above_XRR).mean((1, 2))
        of_sets.append((balance_X + 1) / 2)
    chance, *others = np.mean(of_sets, 0).tolist()
    ends = np.quantile(others, [LEVEL / 2, 1 - LEVEL / 2])
    return Improvement(chance, *ends.tolist())


def expected_best(scores: Sequence[float], best: Any = max) -> list[float]:
    """The best of 1, 2, … trials, on average, as these scores came out.

    Trials are drawn from them with replacement (Dodge et al. 2019).

    Args:
      scores: of all trials.
      best: min, where less is better.
    """
    ranked = sorted(scores, reverse=best is min)
    number = len(ranked)
    means = []
    for trials in range(1, number + 1):
        shares = np.arange(number + 1) / number
        chances = np.diff(shares**trials)
        means.append(float(chances @ ranked))
    return means
