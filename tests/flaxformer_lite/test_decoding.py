"""Tests of searches over a toy model, against NumPy in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from flaxformer_lite import decoding
from flaxformer_lite.config.spec import Component
from flaxformer_lite.config.variants import PROCESSORS, STRATEGIES
from flaxformer_lite.decoding import search as search_loop
from flaxformer_lite.decoding.processors.base import Processor
from flaxformer_lite.decoding.strategies.sample import Sampling
from flaxformer_lite.generation import as_processors, as_strategy

PAD, EOS, BOS = 0, 1, 2
LENGTH = 5
# 4 tokens that go on (3 to 6) and 5 steps: a beam of 4^4 leaves nothing out.
EVERYTHING = 4**4


SEARCHES = {
    'greedy': 'greedy',
    'beam': 'beam(beams=3)',
    'sample': 'sample(temperature=0.7, top_k=4, top_p=0.9)',
    'diverse_beam': 'diverse_beam(beams=4, groups=2)',
    'mbr': 'mbr(samples=2, top_p=0.9)',
}
every_search = pytest.mark.parametrize('name', SEARCHES)


def test_each_strategy_is_searched_with():
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
        self.S, self.D = (
            rng.normal(size=(sentences, width)),
            rng.normal(size=(64, width)),
        )
        self.E, self.W = (
            rng.normal(size=(vocab, width)),
            rng.normal(size=(vocab, width)),
        )
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

    def by_slots(self, sentences, beams):
        """Writes tokens to slots, as attention does; a mask tells which hypothesis owns
        them.
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
def searched(step, state, max_len_B, keys, spec, length, n_best, processors):
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


def run(spec, model, limits, *, length=LENGTH, keys=None, n_best=1, processors=None):
    step, state = model
    limits = jnp.asarray(limits, jnp.int32)
    found = searched(step, state, limits, keys, spec, length, n_best, processors)
    return tuple(np.asarray(x) for x in found)


def cut(tokens_L):
    """Returns the tokens up to the end token, and checks that padding follows."""
    tokens = [int(t) for t in tokens_L]
    end = tokens.index(EOS) + 1
    assert not any(tokens[end:])
    return tokens[:end]


def everything(toy, limit):
    """Returns every sentence that ends within the limit."""
    vocab, prefixes, ended = len(toy.b), [[]], []
    for i in range(limit):
        ended += [[*p, EOS] for p in prefixes]
        if i + 1 < limit:
            prefixes = [[*p, t] for p in prefixes for t in range(vocab) if t > BOS]
    return ended


def choices(log_p, last):
    """Returns each allowed next token, with its log-probability among all tokens."""
    tokens = [EOS] if last else [t for t in range(len(log_p)) if t not in (PAD, BOS)]
    return [(t, log_p[t]) for t in tokens]


def greedily(toy, sentence, limit):
    tokens = []
    while EOS not in tokens:
        log_p = toy.log_p(sentence, tokens)
        tokens.append(
            max(choices(log_p, len(tokens) + 1 == limit), key=lambda c: c[1])[0]
        )
    return tokens


def by_beam(toy, sentence, limit, beams, alpha):
    """Returns beam search of one sentence with lists: 2N candidates, N live."""
    live, done = [([], 0.0)], []
    for i in range(limit):
        candidates = []
        for prefix, score in live:
            log_p = toy.log_p(sentence, prefix)
            candidates += [
                ([*prefix, t], score + p) for t, p in choices(log_p, i + 1 == limit)
            ]
        candidates = sorted(candidates, key=lambda c: -c[1])[: 2 * beams]
        done += [
            (p, s / ((5 + i + 1) / 6) ** alpha) for p, s in candidates if p[-1] == EOS
        ]
        live = [c for c in candidates if c[0][-1] != EOS][:beams]
    return max(done, key=lambda c: c[1])


@pytest.mark.parametrize('alpha', [0.0, 0.6, 1.5, 3.0])
def test_a_wide_beam_finds_the_best_of_all_sentences(alpha):
    toy, limits, n_best = Toy(), [5, 3, 1, 0, 4, 5], 6
    tokens, scores, exists = run(
        f'beam(beams={EVERYTHING}, alpha={alpha})',
        toy.by_slots(np.arange(6), EVERYTHING),
        limits,
        n_best=n_best,
    )
    for sentence, limit in enumerate(limits):
        ended = everything(toy, limit)
        penalised = [
            toy.score(sentence, t) / ((5 + len(t)) / 6) ** alpha for t in ended
        ]
        order = np.argsort(penalised)[::-1][:n_best]
        found = [cut(t) for t in tokens[sentence, : len(order)]]
        assert found == [ended[i] for i in order]
        np.testing.assert_allclose(
            scores[sentence, : len(order)], np.array(penalised)[order], rtol=1e-5
        )
        # Where fewer sentences are possible than results, the rest does not exist.
        assert exists[sentence, : len(order)].all()
        assert not exists[sentence, len(ended) :].any()


@pytest.mark.parametrize(
    ('toy', 'alpha'),
    [
        # 3 × 700 candidates: the largest are sought block by block.
        pytest.param(Toy(vocab=700, eos_bias=3.0), 0.6, id='large vocabulary'),
        # Ends crowd out what goes on, and what is longer may yet win.
        pytest.param(Toy(sentences=200, eos_bias=1.5), 2.0, id='early ends'),
    ],
)
def test_a_narrow_beam_is_the_textbooks(toy, alpha):
    limits = [2 + i % 4 for i in range(len(toy.S))]
    model = toy.by_slots(np.arange(len(limits)), 3)
    tokens, scores, _ = run(f'beam(beams=3, alpha={alpha})', model, limits)
    for sentence, limit in enumerate(limits):
        expected, score = by_beam(toy, sentence, limit, beams=3, alpha=alpha)
        assert cut(tokens[sentence, 0]) == expected
        np.testing.assert_allclose(scores[sentence, 0], score, rtol=1e-4)


def by_diverse_beam(toy, sentence, limit, beams, groups, diversity, alpha):
    """Returns diverse beam search with Hamming diversity (algorithm 1), with lists.

    A token costs λ for each earlier group that chose it at this step.
    """
    width = beams // groups
    live, done = [[([], 0.0)] for _ in range(groups)], [[] for _ in range(groups)]
    for i in range(limit):
        chosen = []
        for g in range(groups):
            candidates = []
            for prefix, score in live[g]:
                log_p = toy.log_p(sentence, prefix)
                candidates += [
                    ([*prefix, t], score + p) for t, p in choices(log_p, i + 1 == limit)
                ]
            candidates.sort(key=lambda c: diversity * chosen.count(c[0][-1]) - c[1])
            candidates = candidates[: 2 * width]
            chosen = chosen + [prefix[-1] for prefix, _ in candidates[:width]]
            penalty = ((5 + i + 1) / 6) ** alpha
            done[g] += [(p, s / penalty) for p, s in candidates if p[-1] == EOS]
            done[g] = sorted(done[g], key=lambda c: -c[1])[:width]
            live[g] = [c for c in candidates if c[0][-1] != EOS][:width]
    return sorted(sum(done, []), key=lambda c: -c[1])


@pytest.mark.parametrize(
    ('beams', 'groups', 'diversity', 'alpha'),
    [(4, 2, 0.5, 0.6), (6, 3, 1.5, 1.0), (3, 3, 0.8, 0.0), (4, 1, 0.5, 0.6)],
)
@pytest.mark.parametrize('eos_bias', [-1.0, 1.5])
def test_groups_of_beams_are_those_of_algorithm_1(
    beams, groups, diversity, alpha, eos_bias
):
    toy = Toy(sentences=40, eos_bias=eos_bias)
    limits = [2 + i % 4 for i in range(40)]
    given = f'beams={beams}, groups={groups}, diversity={diversity}, alpha={alpha}'
    model = toy.by_slots(np.arange(40), beams)
    # All are asked for, so that a search ends no sooner than the lists do.
    found = run(f'diverse_beam({given})', model, limits, n_best=beams)
    for sentence, limit in enumerate(limits):
        expected = by_diverse_beam(
            toy, sentence, limit, beams, groups, diversity, alpha
        )
        tokens, scores, exists = (x[sentence] for x in found)
        assert exists.sum() == len(expected)
        # Equal results of several groups have equal scores, but for rounding.
        assert sorted(map(cut, tokens[exists])) == sorted(p for p, _ in expected)
        expected_scores = [score for _, score in expected]
        np.testing.assert_allclose(scores[exists], expected_scores, rtol=1e-4)


def test_beams_are_divided_among_groups():
    with pytest.raises(ValueError, match='^beams=4 cannot be divided among groups=3: '):
        as_strategy('diverse_beam(beams=4, groups=3)')


# Of many sentences, those that have ended leave the batch, and the others go on without
# them.
@pytest.mark.parametrize('sentences', [6, 70])
def test_greedy_takes_the_likeliest_token_each_time(sentences):
    toy = Toy(sentences=sentences, eos_bias=1.0)
    limits = [[5, 3, 1, 4, 2, 5][i % 6] for i in range(sentences)]
    model = toy.by_slots(np.arange(sentences), 1)
    tokens, scores, exists = run('greedy', model, limits)
    assert exists.all()
    for sentence, limit in enumerate(limits):
        expected = greedily(toy, sentence, limit)
        assert cut(tokens[sentence, 0]) == expected
        np.testing.assert_allclose(
            scores[sentence, 0], toy.score(sentence, expected), rtol=1e-4
        )


def constant_step(logits_V, token_BN, state, beam):
    return jnp.broadcast_to(logits_V, (*token_BN.shape, len(logits_V))), state


def search_constant(name, logits, limit):
    """Searches one sentence whose next token always has these logits."""
    step = jax.tree_util.Partial(constant_step, jnp.asarray(logits, jnp.float32))
    keys = jax.random.split(jax.random.key(0), 1)
    return run(SEARCHES[name], (step, NoState(jnp.zeros(1))), [limit], keys=keys)


@every_search
def test_padding_and_the_start_token_are_never_chosen(name):
    tokens, *_ = search_constant(name, [9.0, -9.0, 9.0, 0.0, 1.0], 5)
    assert set(cut(tokens[0, 0])) <= {3, 4, EOS}


@every_search
def test_logits_that_are_not_numbers_give_no_result(name):
    tokens, scores, exists = search_constant(name, [np.nan] * 5, 3)
    assert not exists.any() and not tokens.any()
    np.testing.assert_array_equal(scores, -np.inf)


def search_rows(name, toy, rows, limits, **settings):
    spec = SEARCHES[name]
    keys = jax.vmap(jax.random.key)(jnp.asarray(rows, jnp.uint32))
    model = toy.by_slots(np.asarray(rows), as_strategy(spec).hypotheses)
    return run(spec, model, limits, keys=keys, **settings)


@every_search
def test_a_row_does_not_depend_on_the_rows_beside_it(name):
    toy, limits = Toy(), np.array([5, 2, 4, 1, 5, 3])
    tokens, scores, _ = search_rows(name, toy, range(6), limits)
    alone = search_rows(name, toy, [4], limits[[4]])
    # Rows of padding stay empty and disturb nobody.
    beside = search_rows(name, toy, [5, 0, 0, 1, 0, 0], [3, 0, 0, 2, 0, 0])
    for rows, found, at in (([4], alone, [0]), ([5, 1], beside, [0, 3])):
        np.testing.assert_array_equal(tokens[rows], found[0][at])
        np.testing.assert_allclose(scores[rows], found[1][at], rtol=1e-6)
    np.testing.assert_array_equal(beside[0][[1, 2, 4, 5]], 0)
    assert not beside[2][[1, 2, 4, 5]].any()


@every_search
def test_scores_are_the_log_probabilities_of_the_tokens(name):
    toy = Toy(seed=3)
    tokens, scores, _ = search_rows(name, toy, range(6), [5] * 6)
    for sentence in range(6):
        path = cut(tokens[sentence, 0])
        penalty = ((5 + len(path)) / 6) ** 0.6 if 'beam' in name else 1.0
        expected = toy.score(sentence, path) / penalty
        np.testing.assert_allclose(scores[sentence, 0], expected, rtol=1e-4)


@pytest.mark.parametrize('name', sorted(SEARCHES.keys() - {'mbr'}))  # it searches twice
def test_a_trace_has_every_step_of_the_search(name):
    toy, limits = Toy(seed=3, eos_bias=-2.0), [5, 4, 5, 3, 5, 4]
    strategy = as_strategy(SEARCHES[name])
    step, state = toy.by_slots(np.arange(6), strategy.hypotheses)
    keys = jax.vmap(jax.random.key)(jnp.arange(6, dtype=jnp.uint32))

    @jax.jit
    def traced(step, state, max_len_B, keys_B):
        inputs = decoding.DecodeInputs(
            step, state, max_len_B, BOS, EOS, LENGTH, keys_B=keys_B
        )
        return strategy.search(inputs).trace()

    trace = traced(step, state, jnp.asarray(limits, jnp.int32), keys)
    called = search_rows(name, toy, range(6), limits)  # compiled for other tests
    for found, wanted in zip(trace.result, called, strict=True):
        np.testing.assert_array_equal(found, wanted)
    for row in range(6):
        hypotheses = trace.hypotheses(EOS, row)
        before = []
        for tokens, score in hypotheses.items():
            assert not tokens or tokens[:-1] in before
            before.append(tokens)
            is_result = EOS in tokens and 'beam' in name
            penalty = ((5 + len(tokens)) / 6) ** 0.6 if is_result else 1.0
            expected = toy.score(row, tokens) / penalty
            np.testing.assert_allclose(score, expected, rtol=1e-4)
        best, score = trace.result.of_row(EOS, row)[0]
        assert list(best) == cut(called[0][row, 0])
        assert hypotheses[best] == score


def test_a_trace_of_a_beam_has_the_textbooks_hypotheses():
    toy = Toy(seed=1, eos_bias=-9.0)
    step, state = toy.by_slots(np.arange(1), 2)
    inputs = decoding.DecodeInputs(step, state, jnp.array([3]), BOS, EOS, 3)
    trace = jax.jit(as_strategy('beam(beams=2)').search(inputs).trace)()
    live = [[]]
    for _ in range(2):
        longer = [[*tokens, t] for tokens in live for t in range(3, len(toy.b))]
        live = sorted(longer, key=lambda tokens: -toy.score(0, tokens))[:2]
        length = len(live[0])
        there = {x for x in trace.hypotheses(EOS) if len(x) == length and EOS not in x}
        assert there == set(map(tuple, live))


def test_the_length_penalty_is_gnmts_and_no_power_of_the_length():
    np.testing.assert_allclose(decoding.length_penalty(7, 0.6), 2**0.6)
    np.testing.assert_allclose(decoding.length_penalty(1, 1.3), 1.0)
    assert decoding.length_penalty(50, 0.0) == 1.0


LOGITS = np.log([0.4, 0.3, 0.2, 0.06, 0.04])


def kept(**settings):
    logits = decoding.filter_logits(jnp.asarray(LOGITS[None], jnp.float32), **settings)
    p = np.asarray(jax.nn.softmax(logits))[0]
    return [int(i) for i in np.flatnonzero(p)], p


@pytest.mark.parametrize(
    ('settings', 'tokens'),
    [
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
        # The nucleus is of what the top k left: .571 and .429.
        (dict(top_k=2, top_p=0.5), [0]),
        (dict(top_k=2, top_p=0.6), [0, 1]),
        # And of what the temperature made: p^2 gives .55, .31, .14, .
        (dict(temperature=0.5, top_p=0.5), [0]),
    ],
)
def test_filters_leave_the_right_tokens(settings, tokens):
    found, p = kept(**settings)
    assert found == tokens
    left = np.exp(LOGITS[tokens] / settings.get('temperature', 1.0))
    np.testing.assert_allclose(p[tokens], left / left.sum(), rtol=1e-5)


@functools.cache
def drawn(**settings):
    """Returns 6,000 rows of three tokens drawn from `LOGITS`."""
    logits = jnp.asarray([9.0, -40.0, 9.0, *LOGITS], jnp.float32)
    rows = 6_000
    keys = jax.random.split(jax.random.key(0), rows)
    step = jax.tree_util.Partial(constant_step, logits)
    model = step, NoState(jnp.zeros(rows))
    tokens, *_ = run(Sampling(**settings), model, [4] * rows, keys=keys, length=4)
    return tokens[:, 0, :3] - 3


@pytest.mark.parametrize(
    ('settings', 'limit'),
    # The value of χ² that one draw in a thousand exceeds, at 4 and 2 degrees of
    # freedom.
    [
        (dict(), 18.47),
        (dict(temperature=2.0, top_k=3), 13.82),
    ],
)
def test_sampled_frequencies_follow_the_softmax(settings, limit):
    p = np.exp(LOGITS / settings.get('temperature', 1.0))
    p[settings.get('top_k', 5) :] = 0
    expected = p / p.sum() * 6_000
    some = expected > 0
    for position in range(3):
        observed = np.bincount(drawn(**settings)[:, position], minlength=5)
        assert not observed[~some].any()
        assert (((observed - expected)[some] ** 2) / expected[some]).sum() < limit


# The laws of processors: what may come after some tokens.


def repeats(tokens, size):
    grams = [tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1)]
    return len(set(grams)) < len(grams)


PROCESSORS_LAWS = {
    'no_repeat_ngram(size=2)': lambda tokens, t: not repeats([*tokens, t], 2),
    'no_repeat_ngram(size=1)': lambda tokens, t: t not in tokens,
    'min_length(length=3)': lambda tokens, t: t != EOS or len(tokens) >= 3,
    'forced_prefix(tokens=(4, 6))': lambda tokens, t: (
        len(tokens) >= 2 or t == (4, 6)[len(tokens)]
    ),
}


def test_each_processor_has_a_law():
    assert (
        sorted({Component.of(text).name for text in PROCESSORS_LAWS})
        == PROCESSORS.names()
    )


@pytest.mark.parametrize('text', PROCESSORS_LAWS)
def test_a_search_finds_the_best_of_the_sentences_that_its_processor_leaves(text):
    law, toy, limits = PROCESSORS_LAWS[text], Toy(), [5, 4, 2, 1, 5, 3]
    forced = 2 if text.startswith('forced') else 0
    search = f'beam(beams={EVERYTHING}, alpha=0)'
    model = toy.by_slots(np.arange(6), EVERYTHING)
    tokens, scores, _ = run(search, model, limits, processors=text)
    for sentence, limit in enumerate(limits):

        def score(path, sentence=sentence, limit=limit):
            log_p = [toy.log_p(sentence, path[:i])[t] for i, t in enumerate(path)]
            # The end token that a limit asks for is not forced.
            return sum(log_p[min(forced, limit - 1) :])

        left = [
            path
            for path in everything(toy, limit)
            if all(law(path[:i], t) for i, t in enumerate(path) if i + 1 < limit)
        ]
        best = max(left, key=score)
        assert cut(tokens[sentence, 0]) == best
        np.testing.assert_allclose(scores[sentence, 0], score(best), rtol=1e-5)


class Favors(Processor):
    token: int = 5

    def __call__(self, logits_BNV, tokens_BNL, step, eos):
        return logits_BNV.at[..., self.token].add(3.0)


def test_a_raised_logit_is_at_most_certain_and_the_best_sentence_is_found():
    toy, limits = Toy(), [5, 4, 2, 1, 5, 3]
    model = toy.by_slots(np.arange(6), EVERYTHING)
    search = f'beam(beams={EVERYTHING}, alpha=0)'
    tokens, scores, _ = run(search, model, limits, processors=Favors())
    for sentence, limit in enumerate(limits):

        def score(path, sentence=sentence, limit=limit):
            total = 0.0
            for i, t in enumerate(path):
                log_p = toy.log_p(sentence, path[:i])[t]
                favored = t == 5 and i + 1 < limit
                total += min(log_p + 3.0 * favored, 0.0)
            return total

        paths = everything(toy, limit)
        best = max(map(score, paths))
        assert score(cut(tokens[sentence, 0])) == pytest.approx(best, abs=1e-5)
        np.testing.assert_allclose(scores[sentence, 0], best, atol=1e-5)


def test_processors_follow_one_another():
    toy, limits = Toy(sentences=40, eos_bias=1.0), [5] * 40
    model = toy.by_slots(np.arange(40), 3)
    both = '[min_length(length=2), no_repeat_ngram(size=1)]'
    tokens, _, exists = run('beam(beams=3)', model, limits, processors=both)
    paths = [cut(row)[:-1] for row in tokens[:, 0]]
    assert exists[:, 0].all() and all(len(set(path)) == len(path) for path in paths)
    assert min(map(len, paths)) == 2


def test_room_is_made_as_sentences_grow(monkeypatch):
    toy, limits = Toy(eos_bias=-12.0), [40, 7, 33, 32, 1, 20]
    at_once = search_rows('beam', toy, range(6), limits, length=40)
    searched.clear_cache()  # its key does not have what is set here
    monkeypatch.setattr(search_loop, 'FIRST_CAPACITY', 2)
    monkeypatch.setattr(search_loop, 'GROWTH', 2)
    by_and_by = search_rows('beam', toy, range(6), limits, length=40)
    searched.clear_cache()
    np.testing.assert_array_equal(at_once[0], by_and_by[0])
    np.testing.assert_allclose(at_once[1], by_and_by[1], rtol=1e-5)
    lengths = [len(cut(t)) for t in at_once[0][:, 0]]
    assert max(lengths) > 8 and all(
        n <= limit for n, limit in zip(lengths, limits, strict=True)
    )
