"""Tests of searches over a toy model, against NumPy in float64."""

import collections
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import struct
from tiny import slow

from flaxformer_lite import decoding, generate
from flaxformer_lite.config.spec import Component
from flaxformer_lite.config.variants import PROCESSORS, STRATEGIES
from flaxformer_lite.decoding import search as search_loop
from flaxformer_lite.decoding.processors.base import Processor
from flaxformer_lite.decoding.strategies.mbr import MBR, gleu
from flaxformer_lite.decoding.strategies.sample import Sample
from flaxformer_lite.generation import as_processors, as_strategy

PAD, EOS, BOS = 0, 1, 2
LENGTH = 5
# Four tokens (3 to 6) continue a sentence of 5 steps, so a beam of 4^4 is exhaustive.
EXHAUSTIVE = 4**4

SEARCHES = {
    'greedy': 'greedy',
    'beam': 'beam(beams=3)',
    'sample': 'sample(temperature=0.7, top_k=4, top_p=0.9)',
    'diverse_beam': 'diverse_beam(beams=4, groups=2)',
    'mbr': 'mbr(samples=2, top_p=0.9)',
}
# Other tests compare results of greedy and diverse search with lists.
every_search = pytest.mark.parametrize(
    'name', tiny.cases(SEARCHES, fast=('beam', 'sample', 'mbr'))
)


def test_every_strategy_is_tested():
    assert sorted(SEARCHES) == STRATEGIES.names()


class SlotsState(struct.PyTreeNode):
    """All tokens so far, in slots like those of a key-value cache."""

    sentence_BC: jax.Array
    token_BS: jax.Array

    def allocate(self, hypotheses, tokens):
        missing = hypotheses * tokens - self.token_BS.shape[1]
        padding = (0, 0), (0, missing)
        token_BS = jnp.pad(self.token_BS, padding, constant_values=-1)
        return self.replace(token_BS=token_BS)


class NoState(struct.PyTreeNode):
    rows_B: jax.Array

    def allocate(self, hypotheses, tokens):
        return self


class Toy:
    """logits = W tanh(S_sentence + Σ_j D_j ⊙ E[token_j]) + b over the tokens so far."""

    def __init__(self, vocab=7, sentences=6, width=7, seed=0, eos_bias=0.0):
        rng = np.random.default_rng(seed)
        shapes = (sentences, width), (64, width), (vocab, width), (vocab, width)
        self.S, self.D, self.E, self.W = (rng.normal(size=shape) for shape in shapes)
        self.b = np.where(np.arange(vocab) == EOS, eos_bias, 0.0)

    def log_p(self, sentence, prefix):
        past = [BOS, *prefix]
        h = self.S[sentence] + sum(
            self.D[j] * self.E[token] for j, token in enumerate(past)
        )
        logits = self.W @ np.tanh(h) + self.b
        return logits - np.log(np.exp(logits).sum())

    def score(self, sentence, tokens):
        return sum(self.log_p(sentence, tokens[:i])[t] for i, t in enumerate(tokens))

    def with_slots(self, sentences, beams):
        """Returns the arguments of a search, whose tokens are written to slots.

        A mask tells which hypothesis owns a slot, as in attention.
        """
        S, *arrays = (
            jnp.asarray(x, jnp.float32)
            for x in (self.S[sentences], self.D, self.E, self.W, self.b)
        )
        step = jax.tree_util.Partial(slots_step(beams), *arrays)
        return step, SlotsState(S, jnp.zeros((len(sentences), 0), jnp.int32))


@functools.cache
def slots_step(beams):
    """Takes the toy's arrays as arguments, so all toys of a shape share one program."""

    def step(D, E, W, b, token_BN, state, beam):
        token_BS = jax.lax.dynamic_update_slice_in_dim(
            state.token_BS, token_BN, beam.step * beams, 1
        )
        read_BSC = D[jnp.arange(token_BS.shape[1]) // beams][None] * E[token_BS]
        visible_BNS = beam.visible_BNS.astype(jnp.float32)
        past_BNC = jnp.einsum('bns,bsc->bnc', visible_BNS, read_BSC)
        h_BNC = state.sentence_BC[:, None] + past_BNC
        logits_BNV = jnp.einsum('bnc,vc->bnv', jnp.tanh(h_BNC), W) + b[None, None]
        return logits_BNV, state.replace(token_BS=token_BS)

    return step


@functools.partial(jax.jit, static_argnames=('spec', 'length', 'n_best', 'processors'))
def compiled_search(step, state, max_len_B, keys, spec, length, n_best, processors):
    inputs = decoding.DecodeInputs(
        step,
        state,
        max_len_B,
        BOS,
        EOS,
        length,
        keys_B=keys,
        processors=as_processors(processors),
    )
    return as_strategy(spec)(inputs, n_best)


def search(spec, model, limits, *, length=LENGTH, keys=None, n_best=1, processors=None):
    limits = jnp.asarray(limits, jnp.int32)
    found = compiled_search(*model, limits, keys, spec, length, n_best, processors)
    return tuple(np.asarray(x) for x in found)


def up_to_end(tokens_L):
    """Returns the tokens up to the end token, and checks that padding follows."""
    tokens = [int(t) for t in tokens_L]
    end = tokens.index(EOS) + 1
    assert not any(tokens[end:])
    return tokens[:end]


def length_penalty(length, alpha):
    return ((5 + length) / 6) ** alpha


def all_sentences(toy, limit):
    """Returns every sentence that ends within the limit."""
    vocab, prefixes, ended = len(toy.b), [[]], []
    for i in range(limit):
        ended += [[*p, EOS] for p in prefixes]
        if i + 1 < limit:
            prefixes = [[*p, t] for p in prefixes for t in range(vocab) if t > BOS]
    return ended


def extensions(toy, sentence, prefix, score, is_last):
    """Returns each allowed longer prefix with its log-probability."""
    log_p = toy.log_p(sentence, prefix)
    tokens = [t for t in range(len(log_p)) if t not in (PAD, BOS)]
    return [([*prefix, t], score + log_p[t]) for t in ([EOS] if is_last else tokens)]


def greedy_search(toy, sentence, limit):
    tokens = []
    while EOS not in tokens:
        is_last = len(tokens) + 1 == limit
        found = extensions(toy, sentence, tokens, 0.0, is_last)
        tokens, _ = max(found, key=lambda c: c[1])
    return tokens


def beam_search(toy, sentence, limit, beams, alpha, groups=1, diversity=0.0):
    """Returns results of (diverse) beam search with lists, the best first.

    A group keeps N live prefixes of 2N candidates. A token costs λ for each earlier
    group that chose it at this step, by Hamming diversity (algorithm 1).
    """
    width = beams // groups
    live, ended = [[([], 0.0)] for _ in range(groups)], [[] for _ in range(groups)]
    for i in range(limit):
        chosen = []
        for g in range(groups):
            candidates = []
            for prefix, score in live[g]:
                is_last = i + 1 == limit
                candidates += extensions(toy, sentence, prefix, score, is_last)
            candidates.sort(key=lambda c: diversity * chosen.count(c[0][-1]) - c[1])
            candidates = candidates[: 2 * width]
            chosen = chosen + [prefix[-1] for prefix, _ in candidates[:width]]
            penalty = length_penalty(i + 1, alpha)
            ended[g] += [(p, s / penalty) for p, s in candidates if p[-1] == EOS]
            ended[g] = sorted(ended[g], key=lambda c: -c[1])[:width]
            live[g] = [c for c in candidates if c[0][-1] != EOS][:width]
    return sorted(sum(ended, []), key=lambda c: -c[1])


class Rewarded(decoding.BeamSearch):
    """Rewards words up to the fourth (Huang et al. 2017), so scores may be positive."""

    def score(self, log_p, length):
        return log_p + 2.0 * jnp.minimum(length, 4)


@pytest.mark.parametrize(
    ('strategy', 'score'),
    [
        (
            decoding.BeamSearch(EXHAUSTIVE),
            lambda log_p, n: log_p / ((5 + n) / 6) ** 0.6,
        ),
        slow(
            decoding.BeamSearch(EXHAUSTIVE, alpha=3.0),
            lambda log_p, n: log_p / ((5 + n) / 6) ** 3,
        ),
        (Rewarded(EXHAUSTIVE), lambda log_p, n: log_p + 2 * min(n, 4)),
    ],
    ids=['0.6', '3.0', 'rewarded'],
)
def test_exhaustive_beam_finds_the_best_of_all_sentences(strategy, score):
    toy, limits, n_best = Toy(), [5, 3, 1, 0, 4, 5], 6
    model = toy.with_slots(np.arange(6), EXHAUSTIVE)
    tokens, scores, exists = search(strategy, model, limits, n_best=n_best)
    for sentence, limit in enumerate(limits):
        ended = all_sentences(toy, limit)
        expected_scores = [score(toy.score(sentence, t), len(t)) for t in ended]
        order = np.argsort(expected_scores)[::-1][:n_best]
        number = len(order)
        found = [up_to_end(t) for t in tokens[sentence, :number]]
        assert found == [ended[i] for i in order]
        expected = np.array(expected_scores)[order]
        np.testing.assert_allclose(scores[sentence, :number], expected, rtol=1e-5)
        # Fewer sentences than results are possible, so the others do not exist.
        assert exists[sentence, :number].all()
        assert not exists[sentence, len(ended) :].any()


@pytest.mark.parametrize(
    ('toy', 'alpha'),
    [
        # The largest of 3 × 700 candidates are found block by block.
        pytest.param(Toy(vocab=700, eos_bias=3.0), 0.6, id='large vocabulary'),
        # Many sentences end early, and longer ones may still win.
        pytest.param(Toy(sentences=100, eos_bias=1.5), 2.0, id='early ends'),
    ],
)
def test_narrow_beam_equals_beam_search_with_lists(toy, alpha):
    limits = [2 + i % 4 for i in range(len(toy.S))]
    model = toy.with_slots(np.arange(len(limits)), 3)
    tokens, scores, _ = search(f'beam(beams=3, alpha={alpha})', model, limits)
    for sentence, limit in enumerate(limits):
        expected, score = beam_search(toy, sentence, limit, beams=3, alpha=alpha)[0]
        assert up_to_end(tokens[sentence, 0]) == expected
        np.testing.assert_allclose(scores[sentence, 0], score, rtol=1e-4)


@pytest.mark.ci
@pytest.mark.parametrize(
    ('beams', 'groups', 'diversity', 'alpha'),
    [(6, 3, 1.5, 1.0), *(slow(*x) for x in ((4, 2, 0.5, 0.6), (3, 3, 0.8, 0.0)))],
)
def test_diverse_beam_equals_algorithm_1(beams, groups, diversity, alpha):
    spec = (
        f'diverse_beam(beams={beams}, groups={groups}, diversity={diversity}, '
        f'alpha={alpha})'
    )
    for eos_bias in (-1.0, 1.5):
        toy = Toy(sentences=20, eos_bias=eos_bias)
        limits = [2 + i % 4 for i in range(20)]
        model = toy.with_slots(np.arange(20), beams)
        # With all results, the search ends no sooner than the lists do.
        found = search(spec, model, limits, n_best=beams)
        for sentence, limit in enumerate(limits):
            expected = beam_search(
                toy, sentence, limit, beams, alpha, groups, diversity
            )
            tokens, scores, exists = (x[sentence] for x in found)
            assert exists.sum() == len(expected)
            # Equal results of several groups have equal scores, but for rounding.
            assert sorted(map(up_to_end, tokens[exists])) == sorted(
                p for p, _ in expected
            )
            expected_scores = [score for _, score in expected]
            np.testing.assert_allclose(scores[exists], expected_scores, rtol=1e-4)


def test_groups_must_divide_beams():
    with pytest.raises(ValueError, match='DiverseBeamSearch.beams=4 cannot be divided'):
        as_strategy('diverse_beam(beams=4, groups=3)')


@pytest.mark.ci
def test_greedy_search_chooses_the_likeliest_tokens():
    # Of many sentences, finished ones leave the batch before the others end.
    sentences = 70
    toy = Toy(sentences=sentences, eos_bias=1.0)
    limits = [[5, 3, 1, 4, 2, 5][i % 6] for i in range(sentences)]
    model = toy.with_slots(np.arange(sentences), 1)
    tokens, scores, exists = search('greedy', model, limits)
    assert exists.all()
    for sentence, limit in enumerate(limits):
        expected = greedy_search(toy, sentence, limit)
        assert up_to_end(tokens[sentence, 0]) == expected
        score = toy.score(sentence, expected)
        np.testing.assert_allclose(scores[sentence, 0], score, rtol=1e-4)


def constant_step(logits_V, token_BN, state, beam):
    return jnp.broadcast_to(logits_V, (*token_BN.shape, len(logits_V))), state


def search_rows(name, toy, rows, limits, **settings):
    spec = SEARCHES[name]
    keys = jax.vmap(jax.random.key)(jnp.asarray(rows, jnp.uint32))
    model = toy.with_slots(np.asarray(rows), as_strategy(spec).hypotheses)
    return search(spec, model, limits, keys=keys, **settings)


@pytest.mark.ci
@every_search
def test_results_of_a_row_are_the_same_next_to_other_rows(name):
    toy, limits = Toy(), np.array([5, 2, 4, 1, 5, 3])
    tokens, scores, _ = search_rows(name, toy, range(6), limits)
    others = search_rows(name, toy, [5, 0, 4, 1, 0, 0], [3, 0, 5, 2, 0, 0])
    rows, places = [5, 4, 1], [0, 2, 3]
    np.testing.assert_array_equal(tokens[rows], others[0][places])
    np.testing.assert_allclose(scores[rows], others[1][places], rtol=1e-6)
    # Rows of padding stay empty.
    np.testing.assert_array_equal(others[0][[1, 4, 5]], 0)
    assert not others[2][[1, 4, 5]].any()
    for sentence in range(6):
        path = up_to_end(tokens[sentence, 0])
        penalty = length_penalty(len(path), 0.6) if 'beam' in name else 1.0
        expected = toy.score(sentence, path) / penalty
        np.testing.assert_allclose(scores[sentence, 0], expected, rtol=1e-4)


@every_search
def test_special_tokens_and_nan_are_never_chosen(name):
    toy = Toy()
    toy.b[[PAD, BOS]] = 9.0
    tokens, *_ = search_rows(name, toy, range(6), [5] * 6)
    for row in tokens[:, 0]:
        assert not {PAD, BOS} & set(up_to_end(row))
    toy.b[:] = np.nan
    tokens, scores, exists = search_rows(name, toy, range(6), [5] * 6)
    assert not exists.any() and not tokens.any()
    np.testing.assert_array_equal(scores, -np.inf)


@functools.partial(jax.jit, static_argnames='name')
def compiled_trace(name, step, state, max_len_B, keys_B):
    inputs = decoding.DecodeInputs(
        step, state, max_len_B, BOS, EOS, LENGTH, keys_B=keys_B
    )
    return as_strategy(SEARCHES[name]).search(inputs).trace()


def trace_of(name, toy, limits):
    model = toy.with_slots(np.arange(6), as_strategy(SEARCHES[name]).hypotheses)
    keys = jax.vmap(jax.random.key)(jnp.arange(6, dtype=jnp.uint32))
    return compiled_trace(name, *model, jnp.asarray(limits, jnp.int32), keys)


@pytest.mark.ci
@pytest.mark.parametrize(
    'name', ['beam', *map(slow, ('greedy', 'sample', 'diverse_beam'))]
)
def test_trace_contains_every_step_of_the_search(name):
    toy, limits = Toy(seed=3, eos_bias=-2.0), [5, 4, 5, 3, 5, 4]
    trace = trace_of(name, toy, limits)
    result = search_rows(name, toy, range(6), limits)
    for found, expected in zip(trace.result, result, strict=True):
        np.testing.assert_array_equal(found, expected)
    for row in range(6):
        hypotheses = trace.hypotheses(EOS, row)
        before = []
        for tokens, score in hypotheses.items():
            assert not tokens or tokens[:-1] in before
            before.append(tokens)
            is_result = EOS in tokens and 'beam' in name
            penalty = length_penalty(len(tokens), 0.6) if is_result else 1.0
            expected = toy.score(row, tokens) / penalty
            np.testing.assert_allclose(score, expected, rtol=1e-4)
        best, score = trace.result.of_row(EOS, row)[0]
        assert list(best) == up_to_end(result[0][row, 0])
        assert hypotheses[best] == score


def test_trace_of_a_beam_contains_the_hypotheses_of_beam_search():
    toy = Toy(seed=1, eos_bias=-9.0)
    hypotheses = trace_of('beam', toy, [3] * 6).hypotheses(EOS)
    live = [[]]
    for length in (1, 2):
        longer = [[*tokens, t] for tokens in live for t in range(3, len(toy.b))]
        live = sorted(longer, key=lambda tokens: -toy.score(0, tokens))[:3]
        found = {x for x in hypotheses if len(x) == length and EOS not in x}
        assert found == set(map(tuple, live))


def test_length_penalty_is_that_of_gnmt():
    np.testing.assert_allclose(decoding.length_penalty(7, 0.6), 2**0.6)
    np.testing.assert_allclose(decoding.length_penalty(1, 1.3), 1.0)
    assert decoding.length_penalty(50, 0.0) == 1.0


LOGITS = np.log([0.4, 0.3, 0.2, 0.06, 0.04])


def test_filters_leave_the_expected_tokens():
    for settings, tokens in (
        (dict(), [0, 1, 2, 3, 4]),
        (dict(top_k=1), [0]),
        (dict(top_k=3), [0, 1, 2]),
        (dict(top_k=9), [0, 1, 2, 3, 4]),
        (dict(top_p=0.01), [0]),
        (dict(top_p=0.39), [0]),
        (dict(top_p=0.41), [0, 1]),
        (dict(top_p=0.69), [0, 1]),
        (dict(top_p=0.71), [0, 1, 2]),
        (dict(top_p=0.95), [0, 1, 2, 3]),
        # The nucleus is one of the top k, whose probabilities are .571 and .429.
        (dict(top_k=2, top_p=0.5), [0]),
        (dict(top_k=2, top_p=0.6), [0, 1]),
        # The temperature comes first: p^2 gives .55, .31, .14, …
        (dict(temperature=0.5, top_p=0.5), [0]),
    ):
        logits = jnp.asarray(LOGITS[None], jnp.float32)
        found = decoding.filter_logits(logits, **settings)
        p = np.asarray(jax.nn.softmax(found))[0]
        assert np.flatnonzero(p).tolist() == tokens
        left = np.exp(LOGITS[tokens] / settings.get('temperature', 1.0))
        np.testing.assert_allclose(p[tokens], left / left.sum(), rtol=1e-5)


@pytest.mark.ci
@pytest.mark.parametrize(
    ('settings', 'limit'),
    # A draw in a thousand exceeds this χ², with 4 and 2 degrees of freedom.
    [(dict(temperature=2.0, top_k=3), 13.82), slow(dict(), 18.47)],
)
def test_sampled_frequencies_follow_the_softmax(settings, limit):
    logits = jnp.asarray([9.0, -40.0, 9.0, *LOGITS], jnp.float32)
    rows = 6_000
    keys = jax.random.split(jax.random.key(0), rows)
    model = jax.tree_util.Partial(constant_step, logits), NoState(jnp.zeros(rows))
    strategy = Sample(**settings)
    tokens, *_ = search(strategy, model, [4] * rows, keys=keys, length=4)
    p = np.exp(LOGITS / settings.get('temperature', 1.0))
    p[settings.get('top_k', 5) :] = 0
    expected = p / p.sum() * rows
    is_possible = expected > 0
    for position in range(3):
        observed = np.bincount(tokens[:, 0, position] - 3, minlength=5)
        assert not observed[~is_possible].any()
        errors = (observed - expected)[is_possible] ** 2 / expected[is_possible]
        assert errors.sum() < limit


def repeats(tokens, size):
    grams = [tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1)]
    return len(set(grams)) < len(grams)


# Whether each processor allows token t after some tokens.
RULES_OF_PROCESSORS = {
    'no_repeat_ngram(size=2)': lambda tokens, t: not repeats([*tokens, t], 2),
    'no_repeat_ngram(size=1)': lambda tokens, t: t not in tokens,
    'min_length(length=3)': lambda tokens, t: t != EOS or len(tokens) >= 3,
    'forced_prefix(tokens=(4, 6))': lambda tokens, t: (
        len(tokens) >= 2 or t == (4, 6)[len(tokens)]
    ),
}


def test_every_processor_has_a_rule():
    names = {Component.of(text).name for text in RULES_OF_PROCESSORS}
    assert sorted(names) == PROCESSORS.names()


class RaisesToken5(Processor):
    def __call__(self, logits_BNV, tokens_BNL, step, eos):
        return logits_BNV.at[..., 5].add(3.0)


@pytest.mark.ci
@pytest.mark.parametrize(
    'processor',
    [
        'no_repeat_ngram(size=2)',
        'forced_prefix(tokens=(4, 6))',
        slow('no_repeat_ngram(size=1)'),
        slow('min_length(length=3)'),
        slow(RaisesToken5(), id='raises a logit'),
    ],
)
def test_search_finds_the_best_of_the_sentences_that_a_processor_allows(processor):
    toy, limits = Toy(), [5, 4, 2, 1, 5, 3]
    rule = RULES_OF_PROCESSORS.get(processor)
    num_forced = 2 if processor == 'forced_prefix(tokens=(4, 6))' else 0
    spec = f'beam(beams={EXHAUSTIVE}, alpha=0)'
    model = toy.with_slots(np.arange(6), EXHAUSTIVE)
    tokens, scores, _ = search(spec, model, limits, processors=processor)
    for sentence, limit in enumerate(limits):

        def score(path, sentence=sentence, limit=limit):
            log_p = [toy.log_p(sentence, path[:i])[t] for i, t in enumerate(path)]
            if rule is None:  # a raised logit is at most certain
                for i, t in enumerate(path):
                    is_raised = t == 5 and i + 1 < limit
                    log_p[i] = min(log_p[i] + 3.0 * is_raised, 0.0)
            # The end token at the limit is not forced.
            return sum(log_p[min(num_forced, limit - 1) :])

        allowed = [
            path
            for path in all_sentences(toy, limit)
            if rule is None
            or all(rule(path[:i], t) for i, t in enumerate(path) if i + 1 < limit)
        ]
        best = max(map(score, allowed))
        path = up_to_end(tokens[sentence, 0])
        assert path in allowed
        assert score(path) == pytest.approx(best, abs=1e-5)
        np.testing.assert_allclose(scores[sentence, 0], best, rtol=1e-5, atol=1e-5)


@pytest.mark.ci
def test_all_processors_of_a_list_apply():
    toy, limits = Toy(sentences=40, eos_bias=1.0), [5] * 40
    model = toy.with_slots(np.arange(40), 3)
    both = '[min_length(length=2), no_repeat_ngram(size=1)]'
    tokens, _, exists = search('beam(beams=3)', model, limits, processors=both)
    paths = [up_to_end(row)[:-1] for row in tokens[:, 0]]
    assert exists[:, 0].all() and all(len(set(path)) == len(path) for path in paths)
    assert min(map(len, paths)) == 2


@pytest.mark.ci
def test_capacity_that_grows_during_a_search_changes_nothing(monkeypatch):
    toy, limits = Toy(eos_bias=-12.0), [40, 7, 33, 32, 1, 20]
    expected = search_rows('beam', toy, range(6), limits, length=40)
    compiled_search.clear_cache()  # its key lacks these settings
    monkeypatch.setattr(search_loop, 'FIRST_CAPACITY', 2)
    monkeypatch.setattr(search_loop, 'GROWTH', 2)
    found = search_rows('beam', toy, range(6), limits, length=40)
    compiled_search.clear_cache()
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-5)
    lengths = [len(up_to_end(t)) for t in expected[0][:, 0]]
    assert max(lengths) > 8
    assert all(n <= limit for n, limit in zip(lengths, limits, strict=True))


def ngrams(tokens):
    return collections.Counter(
        tuple(tokens[i : i + n])
        for n in range(1, 5)
        for i in range(len(tokens) - n + 1)
    )


def reference_gleu(tokens, reference):
    """Counts n-grams as Wu et al. (2016) do."""
    own, others = ngrams(tokens), ngrams(reference)
    most = max(own.total(), others.total())
    return (own & others).total() / most if most else 0.0


def test_gleu_is_the_lower_of_precision_and_recall():
    rng = np.random.default_rng(0)
    jitted, found, expected = jax.jit(gleu), [], []
    for _ in range(50):
        texts = [rng.integers(3, 6, n).tolist() for n in rng.integers(0, 8, 2)]
        arguments = []
        for text in texts:
            row = jnp.asarray([*text, 1, *[0] * (7 - len(text))], jnp.int32)
            arguments += [row, len(text)]
        found.append(float(jitted(*arguments)))
        expected.append(reference_gleu(*texts))
    assert 0 < np.mean(expected) < 0.9
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def generated(strategy):
    """Returns the best text of each source, and the whole result."""
    model = tiny.model(num_layers=1, architecture='decoder_only')
    sources, key = [[4, 5, 6, 1], [7, 1], [], [5, 5, 1]], jax.random.key(3)
    variables = tiny.all_variables(model)
    search = as_strategy(strategy)
    found = generate(model, variables, sources, search, max_length=5, key=key)
    rows = [found.of_row(EOS, i) for i in range(len(sources))]
    return [row[0][0][:-1] if row else None for row in rows], found


@pytest.mark.ci
def test_mbr_finds_the_sample_most_similar_to_all(monkeypatch):
    draw, draws = Sample.__call__, []

    def record(self, inputs, n_best=1):
        result = draw(self, inputs, n_best)
        jax.debug.callback(lambda *x: draws.append(x), result, inputs.keys_B)
        return result

    monkeypatch.setattr(Sample, '__call__', record)
    found, _ = generated('mbr(samples=6, top_k=4)')
    jax.clear_caches()  # of the program with the record
    assert len(draws) == 6
    for i, best in enumerate(found):
        samples = [result.of_row(EOS, i) for result, _ in draws]
        if best is None:
            assert not any(samples)
            continue
        texts = [sample[0][0][:-1] for sample in samples]
        means = {x: np.mean([reference_gleu(x, y) for y in texts]) for x in texts}
        assert len(means) > 1
        assert means[best] == pytest.approx(max(means.values()))


@pytest.mark.slow
def test_mbr_with_one_sample_equals_sampling():
    tiny.assert_equal(generated('mbr(samples=1)')[1], generated('sample')[1])


def longest(y_L, length, reference_L, reference_length):
    return jnp.float32(length)


def shortest(y_L, length, reference_L, reference_length):
    return -jnp.float32(length)


@pytest.mark.slow
def test_mbr_utility_can_be_a_function_of_token_ids():
    long, short = (generated(MBR(utility=x))[0] for x in (longest, shortest))
    for one, other in zip(long, short, strict=True):
        assert one is other is None or len(one) > len(other)
