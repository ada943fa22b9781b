"""Tests of `ops.use_reference` and of derivatives of any order.

Derivatives are compared with differences at four points along a line: (f(−2h) − 8 f(−h)
+ 8 f(h) − f(2h)) / 12h, whose error is O(h⁴). At h = 0.1, the errors measured for
float32 and a smooth model, with GELU and no dropout, are at most a fifteenth of the
tolerance.
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
BATCH = tiny.pairs_batch()


def mean_loss(model, params, dropout_key=None):
    sums = loss_sums(model, {'params': params}, BATCH, dropout_key=dropout_key)
    return sums.loss / sums.tokens


@pytest.mark.ci
def test_references_contain_no_tuned_operation():
    model = tiny.model(feed_forward='gelu', num_layers=1)
    arguments = tiny.parameters(model), jax.random.key(0)

    def programs():
        loss = functools.partial(mean_loss, model)
        found = [jax.make_jaxpr(f)(*arguments) for f in (loss, jax.grad(loss))]
        return ' '.join(map(str, found))

    tuning = ('custom_vjp_call', 'optimization_barrier', 'platform_index')
    assert all(name in programs() for name in tuning)
    with use_reference():
        reference = programs()
    assert not any(name in reference for name in tuning)
    # JAX 0.12 has a separate derivative rule for `erfc`.
    rules = re.findall(r'custom_jvp_call\[\s*name=(\w+)', reference)
    assert set(rules) <= {'exp_neg_sq'}
    assert reference.count('custom_') == len(rules)


@pytest.mark.ci
def test_compiled_function_follows_the_switch():
    """The references drop other elements, so the results differ, too."""
    model = tiny.model(num_layers=1, dropout=0.5, architecture='decoder_only')
    arguments = tiny.parameters(model), jax.random.key(0)
    loss = jax.jit(functools.partial(mean_loss, model))
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


def version_of_bits():
    """Returns which version makes the bits of a dropout mask."""
    key, shape = jax.random.key(0), (64, 64)
    found = np.asarray(keep_mask(key, shape, 0.5))
    for version in (random_bits.tuned, random_bits.reference):
        if (found == (np.asarray(version(key, shape)) >= 2**31)).all():
            return version.__name__
    raise AssertionError('neither version made the mask')


def test_switch_ends_with_its_context_and_after_an_error():
    assert version_of_bits() == 'tuned'
    with use_reference():
        assert version_of_bits() == 'reference'
        with use_reference():
            assert version_of_bits() == 'reference'
        assert version_of_bits() == 'reference'
    assert version_of_bits() == 'tuned'
    with pytest.raises(RuntimeError), use_reference():
        raise RuntimeError
    assert version_of_bits() == 'tuned'


@pytest.mark.slow
def test_hessian_vector_product_equals_differences_of_gradients():
    model = tiny.model(feed_forward='gelu', num_layers=1, dropout=0.0)
    loss = functools.partial(mean_loss, model)
    params = tiny.parameters(model)
    direction = tiny.random_like(params, seed=1)

    def flat(tree):
        leaves = jax.tree.leaves(tree)
        return np.concatenate([np.float64(x).reshape(-1) for x in leaves])

    length = np.linalg.norm(flat(direction))
    direction = jax.tree.map(lambda v: v / length, direction)
    with use_reference():
        gradient = jax.jit(jax.grad(loss))

        def at(multiple):
            step = multiple * STEP
            moved = jax.tree.map(lambda x, v: x + step * v, params, direction)
            return flat(gradient(moved))

        @jax.jit
        def product(params, direction):
            return jax.jvp(jax.grad(loss), (params,), (direction,))[1]

        found = flat(product(params, direction))
        expected = (at(-2) - 8 * at(-1) + 8 * at(1) - at(2)) / (12 * STEP)
    error = np.linalg.norm(found - expected)
    assert error < TOLERANCE * np.linalg.norm(expected)
