"""Tests of training steps."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny

from flaxformer_lite.layers.dense.base import Dense
from flaxformer_lite.special_tokens import SpecialTokens
from flaxformer_lite.training import freezing
from flaxformer_lite.training.loss import loss_and_grads, loss_sums
from flaxformer_lite.training.loss_scale import LossScale
from flaxformer_lite.training.train_step import init_state, make_train_step

RATE = 1e-2
# The word of a source that only some batches hold, so that a matrix' row can spoil only
# those.
RARE = 12


@functools.cache
def model(**overrides):
    return tiny.model(**dict(tie='none', num_layers=1) | overrides)


@functools.cache
def make(accumulate=1, **overrides):
    """Returns the compiled step, and a counter of its traces."""
    traces = []
    step = make_train_step(model(**overrides), tiny.adam(RATE), accumulate=accumulate)

    def counted(state, batch, key):
        traces.append(jax.tree.map(jnp.shape, batch))
        return step(state, batch, key)

    return jax.jit(counted, donate_argnums=0), traces


@functools.cache
def compiled_init(**overrides):
    return jax.jit(functools.partial(init_state, model(**overrides), tiny.adam(RATE)))


def start(seed=0):
    return compiled_init()(jax.random.key(seed))


def batch(word=4):
    (source, labels), *others = tiny.PAIRS
    pairs = [([word, *source[1:]], labels), *others, ([6, 5, 4, 1], [3, 1])]
    return tiny.batch([[pair] for pair in pairs])


def copy(tree):
    return jax.tree.map(np.array, tree)


def same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_a_training_step_is_as_it_was():
    """Every number follows from the seeds. If you changed them on purpose, for example
    by
    a new initialization or order of operations, copy the new ones here. Say so in the
    changelog, because resumed runs will differ too. Other tests check their
    correctness.
    """
    state, metrics = make()[0](start(), batch(), jax.random.key(1))
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
    why = f'{test_a_training_step_is_as_it_was.__doc__}\n{found}'
    assert found == pytest.approx(expected, rel=1e-5), why


def test_the_gradients_norm_is_that_of_the_mean_gradient():
    state, metrics = make()[0](start(), batch(), jax.random.key(1))
    gradient = tiny.float64(jax.tree.leaves(tiny.first_gradient(state)))
    norm = np.sqrt(sum((g**2).sum() for g in gradient))
    np.testing.assert_allclose(metrics.gradient_norm, norm, rtol=1e-5)


def test_the_first_parameters_depend_on_the_key_alone():
    one, two, other = start(0).params, start(0).params, start(1).params
    same(one, two)
    kernels = [
        (x, y)
        for x, y in zip(*map(jax.tree.leaves, (one, other)), strict=True)
        if x.ndim > 1
    ]
    assert kernels and all((x != y).any() for x, y in kernels)
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(one))


def test_dropout_follows_its_own_key_and_the_step():
    step, _ = make()
    losses = {}
    for name, key, count in [
        ('one', 1, 0),
        ('again', 1, 0),
        ('key', 2, 0),
        ('step', 1, 1),
    ]:
        state = start().replace(step=jnp.int32(count))
        losses[name] = float(step(state, batch(), jax.random.key(key))[1].sums.loss)
    assert losses['one'] == losses['again']
    assert len({losses['one'], losses['key'], losses['step']}) == 3


def test_the_step_is_traced_once_and_its_state_is_given_away():
    step, traces = make()
    state = start()
    for i in range(3):
        before, (state, _) = state, step(state, batch(), jax.random.key(1))
        assert all(x.is_deleted() for x in jax.tree.leaves(before))
        assert state.step == i + 1 and state.skipped == 0
    assert len(traces) == 1


def test_an_update_that_is_not_finite_is_not_made_and_is_counted():
    step, _ = make()
    state = start()
    source = state.params['source_embedding'].at[RARE].set(3e38)
    state = state.replace(params=state.params | {'source_embedding': source})
    good, _ = step(state, batch(), jax.random.key(1))
    before = copy(good)

    after, metrics = step(good, batch(RARE), jax.random.key(1))
    assert not np.isfinite(metrics.sums.loss)
    same(copy(after.params), before.params)
    same(copy(after.opt_state), before.opt_state)
    assert after.step == before.step + 1 and after.skipped == 1

    again, metrics = step(after, batch(), jax.random.key(1))
    assert np.isfinite(metrics.sums.loss) and again.skipped == 1
    assert (np.asarray(again.params['embedding']) != before.params['embedding']).any()


def test_an_update_that_overflows_float16_halves_the_scale_and_is_not_made():
    step, _ = make(dtype='float16')
    state = compiled_init(dtype='float16')(jax.random.key(0))
    state = state.replace(loss_scale=LossScale(jnp.float32(2.0**22), jnp.int32(7)))
    before = copy(state)

    after, metrics = step(state, batch(), jax.random.key(1))
    assert np.isfinite(metrics.sums.loss) and not np.isfinite(metrics.gradient_norm)
    same(copy(after.params), before.params)
    assert after.skipped == 1 and after.loss_scale.scale == 2.0**21
    assert metrics.loss_scale == 2.0**22
    assert after.loss_scale.finite_updates == 0


def test_the_scale_doubles_after_two_thousand_finite_updates():
    scale = LossScale(jnp.float32(8), jnp.int32(1998))
    scale = scale.adjusted(jnp.bool(True))
    assert (scale.scale, scale.finite_updates) == (8, 1999)
    scale = scale.adjusted(jnp.bool(True))
    assert (scale.scale, scale.finite_updates) == (16, 0)
    assert LossScale(jnp.float32(1), jnp.int32(3)).adjusted(jnp.bool(False)).scale == 1


def test_float16_makes_the_update_of_float32_whatever_the_scale():
    exact, _ = make(dropout=0.0)[0](start(), batch(), jax.random.key(1))
    for scale in (1.0, 2.0**10):
        state = compiled_init(dtype='float16')(jax.random.key(0))
        state = state.replace(loss_scale=LossScale(jnp.float32(scale), jnp.int32(0)))
        step, _ = make(dtype='float16', dropout=0.0)
        found, metrics = step(state, batch(), jax.random.key(1))
        # 11 bits of fraction, and some ten roundings.
        close(tiny.first_gradient(found), tiny.first_gradient(exact), 10 * 2.0**-11)
        assert metrics.sums.loss.dtype == jnp.float32


def test_a_float16_model_needs_a_loss_scale():
    state = compiled_init(dtype='float16')(jax.random.key(0))
    step, _ = make(dtype='float16')
    with pytest.raises(ValueError, match=r'state\.loss_scale: a float16 model needs'):
        step(state.replace(loss_scale=None), batch(), jax.random.key(1))


def close(one, other, atol):
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=atol), one, other)


def test_parts_of_a_batch_add_up_to_the_whole():
    # The rows hold 4, 6, 2 and 2 tokens: a mean of the parts' means would be another.
    whole, whole_metrics = make(dropout=0.0)[0](start(), batch(), jax.random.key(1))
    state, metrics = make(accumulate=2, dropout=0.0)[0](
        start(), batch(), jax.random.key(1)
    )
    close(metrics, whole_metrics, 1e-5)
    close(tiny.first_gradient(state), tiny.first_gradient(whole), 1e-6)


class Words:
    """A stub of a model that compiles fast: one vector per token, noisy with a key."""

    dense = Dense(())
    scans_layers = False
    logit_cap = None
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


def words(optimizer, rows, seed=1, **settings):
    state = init_state(Words(), optimizer, jax.random.key(0))
    step = jax.jit(make_train_step(Words(), optimizer, **settings))
    return state, *step(state, rows, jax.random.key(seed))


@pytest.mark.parametrize('parts', [2, 4])
def test_parts_of_a_batch_do_not_share_noise(parts):
    rows = tiny.batch([[tiny.PAIRS[0]]] * 4)
    some = {k: x.at[1:].set(0) for k, x in rows.items()}
    losses = [
        words(tiny.adam(RATE), r, accumulate=parts)[2].sums.loss for r in (rows, some)
    ]
    assert abs(losses[0] - 4 * losses[1]) > 1e-2


def test_a_batch_of_padding_moves_nothing():
    before, after, metrics = words(
        optax.sgd(1.0), jax.tree.map(jnp.zeros_like, batch())
    )
    same(copy(after.params), copy(before.params))
    assert metrics.sums.tokens == 0 and after.skipped == 0


def once(accumulate=1, rows=None, **overrides):
    """Returns initial parameters, and the state and metrics after one step."""
    overrides = dict(dropout=0.0) | overrides
    first = compiled_init(**overrides)(jax.random.key(0))
    step, _ = make(accumulate, **overrides)
    given_away = jax.tree.map(jnp.copy, first)
    return first, *step(given_away, rows or batch(), jax.random.key(1))


BATCH_NORM = dict(norm='batch(momentum=0.0)', residual='pre_norm')


def test_evaluation_reads_the_batch_stats_that_training_leaves():
    first, state, metrics = once(**BATCH_NORM)
    m = model(dropout=0.0, **BATCH_NORM)
    sums = jax.jit(functools.partial(loss_sums, m))
    # Without momentum they are the batch's own, so the same parameters have the same
    # loss again.
    variables = first.replace(batch_stats=state.batch_stats).variables
    again = sums(variables, batch())
    np.testing.assert_allclose(again.loss, metrics.sums.loss, rtol=1e-5)
    other = sums(first.variables, batch())
    assert not np.allclose(other.nll, metrics.sums.nll)


def test_what_parts_add_to_the_loss_is_learnt_from_and_not_reported_as_loss():
    def learnt(balance):
        fields = dict(tie='all', architecture='decoder_only', dropout=0.0)
        m = model(**fields, feed_forward=f'mixture(balance={balance})')
        variables = {'params': tiny.parameters(m)}
        step = functools.partial(loss_and_grads, m, dropout_key=jax.random.key(1))
        return jax.jit(step)(variables, batch())[0]

    (sums, others, none), (_, _, once), (_, _, twice) = found = [
        learnt(x) for x in (0.0, 1.0, 2.0)
    ]
    assert all(x[0] == sums for x in found)
    assert set(others) == {'balance', 'dropped'}
    expected = jax.tree.map(lambda x, y: x + 2 * (y - x), none, once)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-4)
    jax.tree.map(close, twice, expected)
    gates = [g['decoder']['layer_0']['feed_forward']['gate'] for g in (none, once)]
    assert np.abs(gates[0]['kernel'] - gates[1]['kernel']).max() > 1e-2


def test_a_step_and_its_state_need_the_same_frozen_paths():
    state, key = start(), jax.random.key(1)
    path = min(freezing.paths(state.params))
    for frozen in {path}, path:
        step = make_train_step(model(), tiny.adam(RATE), frozen=frozen)
        with pytest.raises(ValueError):
            jax.eval_shape(step, state, batch(), key)
        init = functools.partial(init_state, model(), tiny.adam(RATE), frozen=frozen)
        jax.eval_shape(step, jax.eval_shape(init, key), batch(), key)


def test_a_module_is_not_a_frozen_path():
    init = functools.partial(init_state, model(), tiny.adam(RATE), frozen='encoder')
    problem = r"^frozen: unknown parameter 'encoder'\. .* such as \{'encoder/"
    with pytest.raises(ValueError, match=problem):
        jax.eval_shape(init, jax.random.key(0))
