"""Tests of sharded parameters."""

import functools
import re

import jax
import meshes
import numpy as np
import optax
import pytest
import tiny
from collectives import collectives, total_bytes
from flax.traverse_util import flatten_dict
from jax.sharding import PartitionSpec

from flaxformer_lite import sharding, testing
from flaxformer_lite.config import variants
from flaxformer_lite.config.schema import ModelConfig
from flaxformer_lite.generation import generate
from flaxformer_lite.introspection import record
from flaxformer_lite.sharding import state_shardings
from flaxformer_lite.sizes import Sizes
from flaxformer_lite.testing import forms
from flaxformer_lite.training.loss import loss_sums
from flaxformer_lite.training.train_step import init_state, make_train_step

KEY = jax.random.key(1)
FSDP = dict(data=2, fsdp=2)
TENSOR = dict(data=2, tensor=2)
BOTH = dict(fsdp=2, tensor=2)
# 2 and 4 divide d_model = 12, num_heads = 4 and d_ff = 16.
SIZES = dict(num_layers=1, num_heads=4)
# A step is the gradient itself: Adam would make one of the rate of the least of them,
# rounding included. The optimizer's state is shaped as the parameters.
OPTIMIZER = optax.sgd(1.0, momentum=0.9)
ROUNDING = 1e-5


def batch_of(rows):
    pairs = [*tiny.PAIRS, ([6, 5, 4, 1], [3, 1])] * (rows // 4)
    return tiny.batch([[pair] for pair in pairs])


def on_mesh(sizes, function, state, *others, batch=None):
    """Returns a function's results with a sharded state, and its program.

    `others` are replicated, and the batch comes last.
    """
    mesh = meshes.make_mesh(**sizes)
    arguments = [jax.device_put(state, state_shardings(state, mesh))]
    arguments += [jax.device_put(x, meshes.everywhere(mesh)) for x in others]
    if batch is not None:
        arguments.append(jax.device_put(batch, meshes.rows(mesh)))
    program = meshes.compile_on(mesh, jax.jit(function), *arguments)
    return program(*arguments), program


def assert_close(found, expected, atol):
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, atol=atol),
        jax.device_get(found),
        jax.device_get(expected),
    )


@functools.cache
def training(accumulate=1, **overrides):
    model = tiny.model(**SIZES | overrides)
    step = make_train_step(model, OPTIMIZER, accumulate=accumulate)
    first = functools.partial(init_state, model, OPTIMIZER)
    state = jax.jit(first)(jax.random.key(0))

    def reordered(state, key, batch):
        return step(state, batch, key)

    return reordered, state, jax.jit(reordered)(state, KEY, batch_of(8))


def assert_trains_alike(sizes, **settings):
    step, state, (expected, metrics) = training(**settings)
    (found, found_metrics), _ = on_mesh(sizes, step, state, KEY, batch=batch_of(8))
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-6), found_metrics, metrics
    )
    assert_close(found.params, expected.params, ROUNDING)


@pytest.mark.parametrize(
    ('sizes', 'settings'),
    [
        (BOTH, {}),
        pytest.param(dict(fsdp=4), {}, marks=pytest.mark.slow),
        pytest.param(TENSOR, {}, marks=pytest.mark.slow),
        pytest.param(FSDP, dict(accumulate=2), marks=pytest.mark.slow),
        pytest.param(FSDP, dict(tie='none'), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_training_goes_as_on_one_device(sizes, settings):
    assert_trains_alike(sizes, **settings)


def every_variant():
    for field in variants.FOLDERS:
        for name in tiny.here(field):
            if name != getattr(ModelConfig(), field):
                yield {field: name}


@pytest.mark.slow
@pytest.mark.parametrize('sizes', [FSDP, BOTH], ids=str)
@pytest.mark.parametrize('overrides', list(every_variant()), ids=str)
def test_every_variant_trains_as_on_one_device(overrides, sizes):
    model = tiny.model(**SIZES | overrides)
    variables = tiny.all_variables(model)
    testing.require([forms.same_on_devices(model, variables, sizes)], str(overrides))


@pytest.mark.slow
def test_weights_are_sent_and_never_activations():
    step, state, _ = training()

    def gathered(rows):
        _, program = on_mesh(FSDP, step, state, KEY, batch=batch_of(rows))
        found = collectives(program)
        return total_bytes([x for x in found if x.kind == 'all-gather'])

    parameters = sum(4 * x.size for x in jax.tree.leaves(state.params))
    assert 0 < gathered(8) <= 3 * parameters
    assert gathered(16) == gathered(8)


def test_weights_are_cast_before_they_are_gathered():
    model = tiny.model(**SIZES, dtype='bfloat16')

    def logits(variables, batch):
        return model.apply(variables, batch['source'], batch['inputs'])

    with jax.set_mesh(meshes.make_mesh(**FSDP)):
        program = jax.jit(logits).lower(tiny.all_variables(model), batch_of(8))
    constraints = re.findall(r'sdy.sharding_constraint .*', program.as_text())
    heads = [line for line in constraints if '12x4x' in line]
    assert heads and all('xbf16>' in line for line in heads)


def test_activations_can_be_placed_within_a_map_over_data():
    x_BTHK = np.arange(4 * 3 * 2 * 2.0).reshape(4, 3, 2, 2)
    rows = sharding.rows_spec

    def place(x_BTHK):
        return sharding.place(2 * x_BTHK, 'BTHK')

    with jax.set_mesh(meshes.make_mesh(**TENSOR)):
        mapped = sharding.by_device(place, rows(), rows(), axes=('data',))
        np.testing.assert_array_equal(jax.jit(mapped)(x_BTHK), 2 * x_BTHK)


def test_each_device_holds_its_part_of_parameters_and_moments():
    _, state, _ = training()
    mesh = meshes.make_mesh(fsdp=4)
    placed = jax.device_put(state, state_shardings(state, mesh))
    whole = sum(x.nbytes for x in jax.tree.leaves((state.params, state.opt_state)))
    held = jax.tree.leaves((placed.params, placed.opt_state))
    part = sum(x.addressable_shards[0].data.nbytes for x in held)
    # Norms and biases are whole.
    vectors = sum(x.nbytes for x in held if x.ndim < 2)
    assert part == (whole - vectors) / 4 + vectors


def test_parameters_go_by_the_letters_of_their_axes():
    mixture = {'decoder.feed_forward': 'mixture(experts=4)'}
    model = tiny.model(**SIZES, attention_bias=True, **mixture)
    shapes = {'params': tiny.parameters(model)}
    mesh = meshes.make_mesh(**BOTH)
    found = flatten_dict(state_shardings(shapes, mesh)['params'], sep='/')
    layer = 'decoder/layer_0'
    expected = {
        f'{layer}/self_attention/query/kernel': ('fsdp', 'tensor', None),
        f'{layer}/cross_attention/value/kernel': ('fsdp', 'tensor', None),
        f'{layer}/self_attention/out_proj/kernel': ('tensor', None, 'fsdp'),
        'encoder/layer_0/feed_forward/up/kernel': ('fsdp', 'tensor'),
        'encoder/layer_0/feed_forward/down/kernel': ('tensor', 'fsdp'),
        f'{layer}/feed_forward/experts/up/kernel': ('fsdp', None, 'tensor'),
        f'{layer}/feed_forward/experts/down/kernel': ('fsdp', 'tensor', None),
        f'{layer}/feed_forward/experts/up/bias': ('fsdp', 'tensor'),
        # Two devices do not divide a vocabulary of 13.
        'embedding': (None, 'fsdp'),
        'encoder/layer_0/feed_forward/up/bias': (),
        f'{layer}/self_attention/query/bias': ('tensor', None),
        f'{layer}/cross_attention/value/bias': ('tensor', None),
    }
    for path, axes in expected.items():
        assert found[path].spec == PartitionSpec(*axes), path


@pytest.mark.parametrize(
    ('text', 'sizes'),
    [('mixture(experts=8)', dict(data=4)), ('mixture(capacity=1.0)', FSDP)],
)
def test_each_device_computes_its_part_of_a_mixture(text, sizes):
    module = variants.make('feed_forward', text, sizes=Sizes(d_model=32, d_ff=256))
    x = np.ones((8, 64, 32), np.float32)
    state = jax.eval_shape(module.init, KEY, x)
    state = {
        'params': jax.tree.map(lambda p: np.zeros(p.shape, p.dtype), state['params'])
    }

    def losses(state, x):
        return module.apply(state, x, mutable=['losses', 'metrics'])

    _, divided = on_mesh(sizes, losses, state, batch=x)
    whole = jax.jit(losses).lower(state, x).compile()
    flops = divided.cost_analysis()['flops'], whole.cost_analysis()['flops']
    assert flops[0] < 0.3 * flops[1]


@pytest.mark.slow
@pytest.mark.parametrize('sizes', [FSDP, BOTH], ids=str)
def test_evaluation_and_looking_inside_are_as_on_one_device(sizes):
    model = tiny.model(**SIZES)
    variables = tiny.all_variables(model)

    def figures(variables, batch):
        found = record(model, variables, batch)
        return loss_sums(model, variables, batch), found.weights

    expected = jax.jit(figures)(variables, batch_of(8))
    found, _ = on_mesh(sizes, figures, variables, batch=batch_of(8))
    assert_close(found, expected, 1e-4)


@pytest.mark.parametrize(
    'sizes',
    [*(pytest.param(sizes, marks=pytest.mark.slow) for sizes in (FSDP, TENSOR)), BOTH],
    ids=str,
)
def test_a_search_finds_what_that_on_one_device_finds(sizes):
    model = tiny.model(**SIZES)
    variables = tiny.all_variables(model)
    source_BS = batch_of(8)['source']
    search = functools.partial(generate, model, strategy='beam(beams=3)')
    expected = jax.jit(search)(variables, source_BS)
    found, _ = on_mesh(sizes, search, variables, batch=source_BS)
    np.testing.assert_array_equal(found.tokens_BNL, expected.tokens_BNL)
    np.testing.assert_allclose(found.scores_BN, expected.scores_BN, rtol=1e-4)
