"""Tests of training steps."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny

from flaxformer_lite.layers.dense.base import Dense
from flaxformer_lite.models.base import Embeddings
from flaxformer_lite.special_tokens import SpecialTokens
from flaxformer_lite.training import freezing
from flaxformer_lite.training.loss import loss_and_grads, loss_sums
from flaxformer_lite.training.loss_scale import LossScale
from flaxformer_lite.training.train_step import init_state, make_train_step

RATE = 1e-2
# Only some batches contain this source token, so its embedding can spoil only these.
RARE = 12


@functools.cache
def model(**overrides):
    return tiny.model(**dict(tie='none', num_layers=1) | overrides)


@functools.cache
def compiled_step(accumulate=1, **overrides):
    """Returns the compiled step, and a list of its traces."""
    traces = []
    step = make_train_step(model(**overrides), tiny.adam(RATE), accumulate=accumulate)

    def counted(state, batch, key):
        traces.append(jax.tree.map(jnp.shape, batch))
        return step(state, batch, key)

    return jax.jit(counted, donate_argnums=0), traces


@functools.cache
def compiled_init(**overrides):
    return jax.jit(functools.partial(init_state, model(**overrides), tiny.adam(RATE)))


def initial_state(seed=0, **overrides):
    return compiled_init(**overrides)(jax.random.key(seed))


def run_step(state, batch, seed=1, **settings):
    step, _ = compiled_step(**settings)
    return step(state, batch, jax.random.key(seed))


def batch(word=4):
    (source, labels), *others = tiny.PAIRS
    pairs = [([word, *source[1:]], labels), *others, ([6, 5, 4, 1], [3, 1])]
    return tiny.batch([[pair] for pair in pairs])


def copy(tree):
    return jax.tree.map(np.array, tree)


@pytest.mark.ci
def test_training_step_has_the_golden_results():
    """Every number follows from the seeds. If you changed them on purpose, for example
    by a new initialization or order of operations, copy the new ones here. Say so in
    the changelog, because resumed runs will differ too. Other tests check their
    correctness.
    """
    state, metrics = run_step(initial_state(), batch())
    parameters = sum(
        np.abs(x).sum(dtype=np.float64) for x in jax.tree.leaves(state.params)
    )
    found = dict(
        loss=float(metrics.sums.loss),
        nll=float(metrics.sums.nll),
        correct=float(metrics.sums.correct),
        tokens=float(metrics.sums.tokens),
        gradient_norm=float(metrics.gradient_norm),
        parameters=float(parameters),
    )
    expected = dict(
        loss=39.77964,
        nll=39.563,
        correct=2.0,
        tokens=14.0,
        gradient_norm=1.760468,
        parameters=624.1959,
    )
    why = f'{test_training_step_has_the_golden_results.__doc__}\n{found}'
    assert found == pytest.approx(expected, rel=1e-5), why
    assert float(metrics.loss) == pytest.approx(39.77964 / 14, rel=1e-5)
    assert float(metrics.accuracy) == pytest.approx(2 / 14, rel=1e-5)
    gradient = tiny.float64(jax.tree.leaves(tiny.first_gradient(state)))
    norm = np.sqrt(sum((g**2).sum() for g in gradient))
    np.testing.assert_allclose(metrics.gradient_norm, norm, rtol=1e-5)


def test_initial_parameters_depend_on_the_key_alone():
    one, again, other = (initial_state(seed).params for seed in (0, 0, 1))
    tiny.assert_equal(one, again)
    leaves = zip(*map(jax.tree.leaves, (one, other)), strict=True)
    kernels = [(x, y) for x, y in leaves if x.ndim > 1]
    assert kernels and all((x != y).any() for x, y in kernels)
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(one))


def test_dropout_depends_on_its_key_and_the_step():
    losses = {}
    for name, key, step in [
        ('one', 1, 0),
        ('again', 1, 0),
        ('key', 2, 0),
        ('step', 1, 1),
    ]:
        state = initial_state().replace(step=jnp.int32(step))
        losses[name] = float(run_step(state, batch(), key)[1].sums.loss)
    assert losses['one'] == losses['again']
    assert len({losses['one'], losses['key'], losses['step']}) == 3


def test_step_with_other_frozen_parameters_than_the_state_is_rejected():
    optimizer = tiny.adam(1e-2)
    state = init_state(model(), optimizer, jax.random.key(0), frozen='^encoder/')
    step = make_train_step(model(), optimizer)
    with pytest.raises(ValueError, match='the same frozen to init_state and make_tr'):
        jax.eval_shape(step, state, batch(), jax.random.key(0))


def test_step_is_traced_once_and_donates_its_state():
    step, traces = compiled_step()
    state = initial_state()
    for i in range(3):
        before, (state, _) = state, step(state, batch(), jax.random.key(1))
        assert all(x.is_deleted() for x in jax.tree.leaves(before))
        assert state.step == i + 1 and state.skipped == 0
    assert len(traces) == 1


def test_update_that_is_not_finite_is_skipped_and_counted():
    state = initial_state()
    source = state.params['source_embedding'].at[RARE].set(3e38)
    state = state.replace(params=state.params | {'source_embedding': source})
    good, _ = run_step(state, batch())
    before = copy(good)

    after, metrics = run_step(good, batch(RARE))
    assert not np.isfinite(metrics.sums.loss)
    tiny.assert_equal(copy(after.params), before.params)
    tiny.assert_equal(copy(after.opt_state), before.opt_state)
    assert after.step == before.step + 1 and after.skipped == 1

    again, metrics = run_step(after, batch())
    assert np.isfinite(metrics.sums.loss) and again.skipped == 1
    assert (np.asarray(again.params['embedding']) != before.params['embedding']).any()


PLAIN = dict(dropout=0.0, architecture='decoder_only')
FLOAT16 = PLAIN | dict(dtype='float16')


def with_loss_scale(scale, finite_updates=0):
    loss_scale = LossScale(jnp.float32(scale), jnp.int32(finite_updates))
    return initial_state(**FLOAT16).replace(loss_scale=loss_scale)


def test_update_that_overflows_float16_is_skipped_and_halves_the_scale():
    state = with_loss_scale(2.0**22, 7)
    before = copy(state)
    after, metrics = run_step(state, batch(), **FLOAT16)
    assert np.isfinite(metrics.sums.loss) and not np.isfinite(metrics.gradient_norm)
    tiny.assert_equal(copy(after.params), before.params)
    assert after.skipped == 1 and after.loss_scale.scale == 2.0**21
    assert metrics.loss_scale == 2.0**22
    assert after.loss_scale.finite_updates == 0


def test_scale_doubles_after_two_thousand_finite_updates():
    scale = LossScale(jnp.float32(8), jnp.int32(1998))
    scale = scale.adjusted(jnp.bool(True))
    assert (scale.scale, scale.finite_updates) == (8, 1999)
    scale = scale.adjusted(jnp.bool(True))
    assert (scale.scale, scale.finite_updates) == (16, 0)
    assert LossScale(jnp.float32(1), jnp.int32(3)).adjusted(jnp.bool(False)).scale == 1


@pytest.mark.ci
def test_float16_update_equals_that_of_float32_at_any_scale():
    exact, _ = run_step(initial_state(**PLAIN), batch(), **PLAIN)
    for scale in (1.0, 2.0**10):
        found, metrics = run_step(with_loss_scale(scale), batch(), **FLOAT16)
        # 11 bits of fraction, and some ten roundings.
        gradients = tiny.first_gradient(found), tiny.first_gradient(exact)
        tiny.assert_close(*gradients, atol=10 * 2.0**-11)
        assert metrics.sums.loss.dtype == jnp.float32
    with pytest.raises(ValueError, match=r'state\.loss_scale: a float16 model needs'):
        state = initial_state(**FLOAT16).replace(loss_scale=None)
        run_step(state, batch(), **FLOAT16)


@pytest.mark.ci
def test_parts_of_a_batch_sum_to_the_whole():
    # The rows have 4, 6, 2 and 2 tokens: a mean of the parts' means would differ.
    whole, expected = run_step(initial_state(**PLAIN), batch(), **PLAIN)
    state, metrics = run_step(initial_state(**PLAIN), batch(), accumulate=2, **PLAIN)
    tiny.assert_close(metrics, expected, 1e-5)
    tiny.assert_close(tiny.first_gradient(state), tiny.first_gradient(whole), 1e-6)


class Words:
    """A stub of a model that compiles fast: one vector per token, noisy with a key."""

    dense = Dense(())
    scans_layers = False
    embeddings = Embeddings()
    special_tokens = SpecialTokens()

    def with_remat(self, remat):
        assert remat == 'none'
        return self

    def init(self, key, *tokens, **settings):
        return {'params': {'table': jax.random.normal(key, (tiny.VOCAB, 6))}}

    def apply(self, variables, source, inputs, method, rngs, mutable):
        table = variables['params']['table']
        h = table[inputs.tokens_BT]
        noisy = h + jax.random.normal(rngs['dropout'], h.shape)
        return ((noisy,), table, None), {}


def run_step_of_words(optimizer, rows, **settings):
    """Returns the initial state, the next one and the metrics."""
    state = init_state(Words(), optimizer, jax.random.key(0))
    step = jax.jit(make_train_step(Words(), optimizer, **settings))
    return state, *step(state, rows, jax.random.key(1))


@pytest.mark.ci
@pytest.mark.parametrize('parts', [2, 4])
def test_parts_of_a_batch_have_different_noise(parts):
    rows = tiny.batch([[tiny.PAIRS[0]]] * 4)
    some = {k: x.at[1:].set(0) for k, x in rows.items()}
    whole, part = (
        run_step_of_words(tiny.adam(RATE), x, accumulate=parts)[2].sums.loss
        for x in (rows, some)
    )
    assert abs(whole - 4 * part) > 1e-2


def test_batch_of_padding_changes_no_parameter():
    rows = jax.tree.map(jnp.zeros_like, batch())
    before, after, metrics = run_step_of_words(optax.sgd(1.0), rows)
    tiny.assert_equal(copy(after.params), copy(before.params))
    assert metrics.sums.tokens == 0 and after.skipped == 0


@pytest.mark.ci
def test_evaluation_uses_the_batch_statistics_of_training():
    fields = PLAIN | dict(norm='batch(momentum=0.0)', residual='pre_norm')
    first = initial_state(**fields)
    state, metrics = run_step(copy(first), batch(), **fields)
    sums = jax.jit(functools.partial(loss_sums, model(**fields)))
    # Without momentum, they are those of the batch, so equal parameters have an equal
    # loss.
    variables = first.replace(batch_stats=state.batch_stats).variables
    again = sums(variables, batch())
    np.testing.assert_allclose(again.loss, metrics.sums.loss, rtol=1e-5)
    other = sums(first.variables, batch())
    assert not np.allclose(other.nll, metrics.sums.nll)


@pytest.mark.slow
def test_auxiliary_losses_have_gradients_but_are_reported_apart():
    def results(balance):
        m = model(**PLAIN, tie='all', feed_forward=f'mixture(balance={balance})')
        variables = {'params': tiny.parameters(m)}
        step = functools.partial(loss_and_grads, m, dropout_key=jax.random.key(1))
        return jax.jit(step)(variables, batch())[0]

    (sums, others, none), (_, _, once), (_, _, twice) = found = [
        results(x) for x in (0.0, 1.0, 2.0)
    ]
    assert all(x[0] == sums for x in found)
    assert set(others) == {'balance', 'dropped'}
    expected = jax.tree.map(lambda x, y: x + 2 * (y - x), none, once)
    tiny.assert_close(twice, expected, rtol=1e-3, atol=1e-4)
    gates = [g['decoder']['layer_0']['feed_forward']['gate'] for g in (none, once)]
    assert np.abs(gates[0]['kernel'] - gates[1]['kernel']).max() > 1e-2


@pytest.mark.ci
def test_frozen_paths_of_step_and_state_must_agree():
    state, key = initial_state(), jax.random.key(1)
    path = min(freezing.paths(state.params))
    for frozen in {path}, path:
        step = make_train_step(model(), tiny.adam(RATE), frozen=frozen)
        with pytest.raises(ValueError):
            jax.eval_shape(step, state, batch(), key)
        init = functools.partial(init_state, model(), tiny.adam(RATE), frozen=frozen)
        jax.eval_shape(step, jax.eval_shape(init, key), batch(), key)


def test_frozen_takes_whole_paths_or_a_regular_expression():
    scanned, key = model(scan_layers=True, num_layers=2), jax.random.key(1)
    for frozen, message in (
        ({'encoder'}, "^frozen: unknown parameter 'encoder'"),
        ('encodr', "^frozen='encodr' matches no parameter"),
        ('.', '^frozen=.* matches every parameter'),
        ('encoder/layer_0', '^frozen=.* matches only some of the layers'),
        ('(', '^frozen must be a regular expression'),
    ):
        init = functools.partial(init_state, scanned, tiny.adam(RATE), frozen=frozen)
        with pytest.raises(ValueError, match=message):
            jax.eval_shape(init, key)
    frozen = '^encoder/layer_[01]/|embedding'
    init = functools.partial(init_state, scanned, tiny.adam(RATE), frozen=frozen)
    state = jax.jit(init)(key)
    step = jax.jit(make_train_step(scanned, tiny.adam(RATE), frozen=frozen))
    after, _ = step(state, batch(), key)
    before, after = freezing.paths(state.params), freezing.paths(after.params)
    unchanged = {path for path, x in before.items() if (x == after[path]).all()}
    expected = {x for x in before if x.startswith(('encoder/layers', 'embedding'))}
    assert unchanged >= expected and 'decoder/ln_final/scale' not in unchanged
