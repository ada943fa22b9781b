"""Tests of shared layers, against a model whose layers have equal parameters."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from tiny import attention_stats, record

from flaxformer_lite import testing
from flaxformer_lite.layers.scanned_stack import stack_layers, unstack_layers
from flaxformer_lite.testing import models
from flaxformer_lite.training.loss import loss_and_grads
from flaxformer_lite.training.train_step import init_variables

SHARED = dict(
    num_layers=4,
    share_layers=2,
    decoder__num_layers=2,
    decoder__share_layers=1,
    attention='[softmax, local(window=2)]',
    decoder__attention='softmax',
    cross__attention='softmax',
    residual='pre_norm',
)
DISTINCT = {'encoder': 2, 'decoder': 1}
DEPTHS = {'encoder': 4, 'decoder': 2}


def unshared():
    nothing = dict(share_layers=None, decoder__share_layers=None)
    return tiny.model(**SHARED | nothing)


def copies(params):
    """Gives layer i the parameters of layer i mod n."""
    found = dict(params)
    for stack, depth in DEPTHS.items():
        layers = {
            f'layer_{i}': params[stack][f'layer_{i % DISTINCT[stack]}']
            for i in range(depth)
        }
        found[stack] = found[stack] | layers
    return found


def sums(gradients):
    found = dict(gradients)
    for stack, depth in DEPTHS.items():
        of_stack = dict(gradients[stack])
        each = [of_stack.pop(f'layer_{i}') for i in range(depth)]
        for i in range(DISTINCT[stack]):
            same = each[i :: DISTINCT[stack]]
            of_stack[f'layer_{i}'] = jax.tree.map(lambda *x: sum(x), *same)
        found[stack] = of_stack
    return found


def close(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=4e-6 * max(1, np.abs(y).max()))


@functools.cache
def expected():
    model = tiny.model(**SHARED)
    variables = tiny.all_variables(model)
    found = {'params': copies(variables['params'])}
    result, _ = jax.jit(functools.partial(loss_and_grads, unshared()))(found, batch())
    return model, variables, result._replace(gradients=sums(result.gradients))


def batch():
    return tiny.batch([*([p] for p in tiny.PAIRS), tiny.PAIRS, []])


@pytest.mark.parametrize(
    'remat', ['none', pytest.param('blocks', marks=pytest.mark.slow)]
)
def test_gradients_are_the_sums_of_those_of_equal_layers(remat):
    model, variables, result = expected()
    step = functools.partial(loss_and_grads, model.with_remat(remat))
    found, _ = jax.jit(step)(variables, batch())
    close(found, result)


@pytest.mark.parametrize(
    'remat', [pytest.param('none', marks=pytest.mark.slow), 'blocks']
)
def test_a_loop_of_shared_layers_computes_the_same(remat):
    _, variables, result = expected()
    scanned = tiny.model(**SHARED, scan_layers=True)
    stacked = stack_layers(variables, scanned.layer_periods)
    step = functools.partial(loss_and_grads, scanned.with_remat(remat))
    found, _ = jax.jit(step)(stacked, batch())
    close(found._replace(gradients=unstack_layers(found.gradients)), result)
    again = jax.eval_shape(
        scanned.init, jax.random.key(0), *[jnp.ones((1, 1), int)] * 2
    )
    assert jax.tree.map(jnp.shape, again) == jax.tree.map(jnp.shape, stacked)


def test_as_many_layers_as_there_are_share_nothing():
    assert tiny.model(share_layers=2) == tiny.model()


@pytest.mark.slow
def test_contracts_hold_where_each_layer_decodes_with_a_cache_of_its_own():
    model = tiny.model(**SHARED, scan_layers=True)
    found = models.examine(model, models.random_variables(model))
    testing.require(models.findings(found), 'layers that share')


def test_the_first_parameters_are_those_of_as_many_layers():
    key = jax.random.key(3)
    init = jax.jit(init_variables, static_argnums=0)
    found = init(tiny.model(**SHARED), key)['params']
    others = init(unshared(), key)['params']
    for stack, distinct in DISTINCT.items():
        names = {name for name in found[stack] if name.startswith('layer_')}
        assert names == {f'layer_{i}' for i in range(distinct)}
        for name, tree in found[stack].items():
            jax.tree.map(np.testing.assert_array_equal, tree, others[stack][name])


def test_running_statistics_are_those_of_each_depth():
    sizes = dict(num_layers=3, norm='batch', architecture='decoder_only')
    model = tiny.model(**sizes, share_layers=1)
    separate = tiny.model(**sizes)
    variables = tiny.all_variables(model)
    others = tiny.all_variables(separate)['batch_stats']
    given = variables | {'batch_stats': others}
    step = functools.partial(loss_and_grads, model, dropout_key=jax.random.key(0))
    _, written = jax.eval_shape(step, given, batch())
    assert jax.tree.structure(written) == jax.tree.structure(others)


@pytest.mark.slow
def test_what_is_inside_is_recorded_by_depth():
    model, variables, _ = expected()
    params = {'params': copies(variables['params'])}
    found = record(model, variables, batch())
    close(found, record(unshared(), params, batch()))
    scanned = tiny.model(**SHARED, scan_layers=True)
    stacked = stack_layers(variables, scanned.layer_periods)
    close(
        attention_stats(scanned, stacked, batch()),
        attention_stats(unshared(), params, batch()),
    )
