"""Tests of `ops.use_reference` and of derivatives of any order.

Derivatives are compared with differences at four points along a line: (f(−2h) − 8 f(−h)
+ 8 f(h) − f(2h)) / 12h, whose error is O(h⁴). Arrays are float32, so rounding adds an
error of some 10⁻⁷ |f| / h. Measured relative errors of the slope and the Hessian-vector
product:

    h = 0.005   7·10⁻⁴   2·10⁻⁴   by rounding
    h = 0.1     2·10⁻⁵   2·10⁻⁵
    h = 0.4     2·10⁻⁴   3·10⁻³   by the points' distance

The tolerance is fifteen times the largest error at h = 0.1. The model is smooth: it
uses GELU and no dropout.
"""

import functools
import re

import jax
import numpy as np
import pytest
import tiny

from flaxformer_lite.layers.dropout import keep_mask
from flaxformer_lite.ops import random_bits, use_reference
from flaxformer_lite.training.loss import loss_sums

STEP = 0.1
TOLERANCE = 3e-4
MODEL = tiny.model(feed_forward='gelu', num_layers=1, dropout=0.0)
BATCH = tiny.batch([[pair] for pair in tiny.PAIRS])


def mean_loss(params, dropout_key=None, model=MODEL):
    sums = loss_sums(model, {'params': params}, BATCH, dropout_key=dropout_key)
    return sums.loss / sums.tokens


def along(direction, params, step):
    return jax.tree.map(lambda x, v: x + step * v, params, direction)


def differences(function, params, direction):
    """Returns the derivative of a jitted function along a direction, by four points."""

    def at(multiple):
        return tiny.float64(function(along(direction, params, multiple * STEP)))

    return jax.tree.map(
        lambda a, b, c, d: (a - 8 * b + 8 * c - d) / (12 * STEP),
        *(at(multiple) for multiple in (-2, -1, 1, 2)),
    )


def flat(tree):
    return np.concatenate([np.float64(x).reshape(-1) for x in jax.tree.leaves(tree)])


def assert_near(found, expected):
    error = np.linalg.norm(flat(found) - flat(expected))
    assert error < TOLERANCE * np.linalg.norm(flat(expected))


@pytest.fixture(scope='module')
def params():
    return tiny.parameters(MODEL)


@pytest.fixture(scope='module')
def direction(params):
    direction = tiny.random_like(params, seed=1)
    length = np.linalg.norm(flat(direction))
    return jax.tree.map(lambda v: v / length, direction)


@pytest.fixture(scope='module')
def gradient():
    return jax.jit(jax.grad(mean_loss))


def test_no_tuned_version_is_left():
    model = tiny.model(feed_forward='gelu')  # with dropout
    arguments = tiny.parameters(model), jax.random.key(0)

    def programs():
        loss = functools.partial(mean_loss, model=model)
        found = [jax.make_jaxpr(f)(*arguments) for f in (loss, jax.grad(loss))]
        return ' '.join(map(str, found))

    tuning = ('custom_vjp_call', 'optimization_barrier', 'platform_index')
    assert all(name in programs() for name in tuning)
    with use_reference():
        reference = programs()
    assert not any(name in reference for name in tuning)
    # JAX 0.12 differentiates `erfc` by a rule of its own.
    rules = re.findall(r'custom_jvp_call\[\s*name=(\w+)', reference)
    assert set(rules) <= {'exp_neg_sq'}
    assert reference.count('custom_') == len(rules)


def test_a_compiled_function_follows_the_switch():
    """The references drop other elements, so the results differ, too."""
    model = tiny.model(num_layers=1, dropout=0.5)
    arguments = tiny.parameters(model), jax.random.key(0)
    loss = jax.jit(functools.partial(mean_loss, model=model))
    losses = {'tuned': set(), 'reference': set()}

    def run(version):
        program = str(jax.make_jaxpr(loss)(*arguments))
        assert ('custom_vjp' in program) == (version == 'tuned')
        losses[version].add(float(loss(*arguments)))

    for version in (*losses, *losses):
        if version == 'tuned':
            run(version)
        else:
            with use_reference():
                run(version)
    (tuned,), (reference,) = losses.values()
    assert abs(tuned - reference) > 1e-3


def drops_by():
    """Returns whether threefry or the hash makes the bits of a dropout mask."""
    key, shape = jax.random.key(0), (64, 64)
    found = np.asarray(keep_mask(key, shape, 0.5))
    for version in (random_bits.tuned, random_bits.reference):
        if (found == (np.asarray(version(key, shape)) >= 2**31)).all():
            return version.__name__
    raise AssertionError('a mask of neither')


def test_the_switch_ends_with_its_block_and_after_an_error():
    assert drops_by() == 'tuned'
    with use_reference():
        assert drops_by() == 'reference'
        with use_reference():
            assert drops_by() == 'reference'
        assert drops_by() == 'reference'
    assert drops_by() == 'tuned'
    with pytest.raises(RuntimeError), use_reference():
        raise RuntimeError
    assert drops_by() == 'tuned'


@pytest.mark.slow
def test_a_hessian_vector_product_is_that_of_differences(params, direction, gradient):
    with use_reference():

        @jax.jit
        def product(params, direction):
            return jax.jvp(jax.grad(mean_loss), (params,), (direction,))[1]

        found = product(params, direction)
        expected = differences(gradient, params, direction)
    assert_near(found, expected)
