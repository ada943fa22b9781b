"""Tests of data parallelism and sharded parameters on four devices."""

import contextlib
import functools
import re

import jax
import jax.numpy as jnp
import meshes
import numpy as np
import optax
import pytest
import tiny
from collectives import collectives, total_bytes
from flax.traverse_util import flatten_dict
from jax.sharding import PartitionSpec
from tiny import slow

from flaxformer_lite import sharding, testing
from flaxformer_lite.config import variants
from flaxformer_lite.config.schema import ModelConfig
from flaxformer_lite.decoding import BeamSearch
from flaxformer_lite.generation import generate
from flaxformer_lite.layers.dropout import keep_mask
from flaxformer_lite.ops import loss_of_logits, use_reference
from flaxformer_lite.sharding import state_shardings, sum_over_data
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
# A step of SGD is the gradient itself. Adam would amplify the smallest gradients,
# including rounding errors, to the size of the learning rate.
OPTIMIZER = optax.sgd(1.0, momentum=0.9)
ops_versions = pytest.mark.parametrize('ops', [contextlib.nullcontext, use_reference])


@pytest.fixture(autouse=True)
def loss_in_several_chunks(monkeypatch):
    """Makes the loss loop several times, since XLA unrolls a single iteration."""
    assert jax.device_count() == 4
    monkeypatch.setattr(loss_of_logits, 'CHUNK_ON_CPU', 4)


def batch_of(rows):
    pairs = [*tiny.PAIRS, ([6, 5, 4, 1], [3, 1])] * (rows // 4)
    return tiny.batch([[pair] for pair in pairs])


def on_mesh(sizes, function, state, *others, batch=None):
    """Returns a function's results with a sharded state, and its program.

    `others` are replicated, and the trees of the batch come last.
    """
    mesh = meshes.make_mesh(**sizes)
    arguments = [jax.device_put(state, state_shardings(state, mesh))]
    arguments += [jax.device_put(x, meshes.everywhere(mesh)) for x in others]
    if batch is not None:
        arguments.append(jax.device_put(batch, meshes.rows(mesh)))
    program = meshes.compile_on(mesh, jax.jit(function), *arguments)
    return jax.device_get(program(*arguments)), program


def replicated_on_mesh(function, state, batch):
    """Like `on_mesh` for data parallelism, with replicated results."""
    mesh = meshes.make_mesh()
    everywhere = meshes.everywhere(mesh)
    state = jax.device_put(state, everywhere)
    batch = jax.device_put(batch, meshes.rows(mesh))
    jitted = jax.jit(function, out_shardings=everywhere)
    program = meshes.compile_on(mesh, jitted, state, batch)
    return jax.device_get(program(state, batch)), program


def exchanges(program):
    """Returns the collectives, which must be outside of loops."""
    found = collectives(program)
    assert not [each for each in found if each.in_loop]
    return found


B, T, D, V = 8, 7, 6, 21


def gradients_of_loss(smoothing, dtype):
    formula = loss_of_logits.cross_entropy(smoothing, 0)
    options = loss_of_logits.LossOptions(formula, dtype)

    def loss(table_VD, batch):
        hidden_BTD, labels_BT = batch
        sums = loss_of_logits.loss_of_logits(
            hidden_BTD, (table_VD, None), (labels_BT,), options
        )
        return 3 * sums.loss, sums

    return jax.grad(loss, (0, 1), has_aux=True, allow_int=True)


def loss_arguments():
    rng = np.random.default_rng(0)
    table_VD = rng.normal(size=(V, D)).astype(np.float32)
    hidden_BTD = rng.normal(size=(B, T, D)).astype(np.float32)
    labels_BT = rng.integers(0, V, (B, T)).astype(np.int32)
    labels_BT[3, 2:] = 0  # devices have unequal numbers of tokens
    return table_VD, (hidden_BTD, labels_BT)


@pytest.mark.ci
@ops_versions
@pytest.mark.parametrize(
    ('smoothing', 'dtype'), [(0.1, jnp.float32), slow(0.0, jnp.bfloat16)]
)
def test_loss_and_gradients_equal_those_of_one_device(smoothing, dtype, ops):
    def function(table_VD, batch):
        (of_table, (of_hidden, _)), sums = gradients_of_loss(smoothing, dtype)(
            table_VD, batch
        )
        return of_table, of_hidden, sums

    with ops():
        expected = jax.jit(function)(*loss_arguments())
        found, program = replicated_on_mesh(function, *loss_arguments())
    # Sums in another order; in bfloat16 also of gradients that were rounded.
    tiny.assert_close(found, expected, atol=2e-5 if dtype == jnp.float32 else 0.05)
    exchanges(program)


def test_loss_exchanges_the_gradient_of_the_table_once_and_four_sums():
    def of_table(*arguments):
        return gradients_of_loss(0.1, jnp.float32)(*arguments)[0][0]

    _, program = replicated_on_mesh(of_table, *loss_arguments())
    found = exchanges(program)
    assert {each.kind for each in found} == {'all-reduce'}
    assert 4 * V * D <= total_bytes(found) <= 4 * V * D + 4 * 4


@ops_versions
def test_dropout_of_a_row_is_the_same_on_any_device(ops):
    def dropped(key, x_BT):
        keep = keep_mask(key, x_BT.shape, 0.5, of_rows=True)
        return jnp.where(keep, x_BT, 0).sum(0)

    x_BT = np.arange(1.0, 1 + B * T).reshape(B, T)
    with ops():
        expected = jax.jit(dropped)(KEY, x_BT)
        found, _ = replicated_on_mesh(lambda *x: sum_over_data(dropped)(*x), KEY, x_BT)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
def test_evaluation_exchanges_only_four_sums():
    model = tiny.model(num_layers=1)
    variables = tiny.all_variables(model)
    sums = functools.partial(loss_sums, model)
    found, program = replicated_on_mesh(sums, variables, batch_of(8))
    tiny.assert_close(found, jax.jit(sums)(variables, batch_of(8)), 1e-4)
    assert total_bytes(exchanges(program)) <= 4 * 4


@functools.cache
def training(accumulate=1, **overrides):
    """Returns a step of (state, key, batch), and the initial state."""
    model = tiny.model(**SIZES | overrides)
    step = make_train_step(model, OPTIMIZER, accumulate=accumulate)
    init = functools.partial(init_state, model, OPTIMIZER)

    def reordered(state, key, batch):
        return step(state, batch, key)

    return reordered, jax.jit(init)(jax.random.key(0))


@pytest.mark.ci
@pytest.mark.parametrize(
    ('tie', 'accumulate'), [('all', 2), slow('all', 1), slow('none', 2)]
)
def test_training_step_exchanges_gradients_once_and_four_sums(tie, accumulate):
    step, state = training(accumulate, tie=tie)
    mesh = meshes.make_mesh()
    everywhere = meshes.everywhere(mesh)
    state, key = jax.device_put((state, KEY), everywhere)
    batch = jax.device_put(batch_of(8), meshes.rows(mesh))
    jitted = jax.jit(step, out_shardings=everywhere)
    found = exchanges(meshes.compile_on(mesh, jitted, state, key, batch))
    gradients = sum(4 * x.size for x in jax.tree.leaves(state.params))
    assert {each.kind for each in found} == {'all-reduce'}
    assert total_bytes(found) == gradients + 4 * 4


@pytest.mark.ci
@pytest.mark.parametrize(
    ('sizes', 'settings'),
    [
        (BOTH, {}),
        slow(dict(fsdp=4), {}),
        slow(TENSOR, {}),
        slow(FSDP, dict(accumulate=2)),
        slow(FSDP, dict(tie='none')),
    ],
    ids=str,
)
def test_training_equals_that_of_one_device(sizes, settings):
    step, state = training(**settings)
    expected, expected_metrics = jax.jit(step)(state, KEY, batch_of(8))
    (found, metrics), _ = on_mesh(sizes, step, state, KEY, batch=batch_of(8))
    tiny.assert_close(metrics, expected_metrics, atol=0, rtol=1e-6)
    tiny.assert_close(found.params, expected.params, atol=1e-5)


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
def test_fsdp_gathers_weights_and_never_activations():
    step, state = training()

    def gathered(rows):
        _, program = on_mesh(FSDP, step, state, KEY, batch=batch_of(rows))
        found = collectives(program)
        return total_bytes([x for x in found if x.kind == 'all-gather'])

    parameters = sum(4 * x.size for x in jax.tree.leaves(state.params))
    assert 0 < gathered(8) <= 3 * parameters
    assert gathered(16) == gathered(8)


def test_weights_are_cast_before_they_are_gathered():
    model = tiny.model(**SIZES, dtype='bfloat16', architecture='decoder_only')

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


def test_each_device_stores_its_part_of_parameters_and_moments():
    _, state = training()
    placed = jax.device_put(state, state_shardings(state, meshes.make_mesh(fsdp=4)))
    whole = sum(x.nbytes for x in jax.tree.leaves((state.params, state.opt_state)))
    arrays = jax.tree.leaves((placed.params, placed.opt_state))
    part = sum(x.addressable_shards[0].data.nbytes for x in arrays)
    # Norms and biases are replicated.
    vectors = sum(x.nbytes for x in arrays if x.ndim < 2)
    assert part == (whole - vectors) / 4 + vectors


def test_parameters_are_sharded_by_the_letters_of_their_axes():
    mixture = {'decoder.feed_forward': 'mixture(experts=4)'}
    model = tiny.model(**SIZES, attention_bias=True, **mixture)
    shapes = {'params': tiny.parameters(model)}
    found = state_shardings(shapes, meshes.make_mesh(**BOTH))['params']
    found = flatten_dict(found, sep='/')
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


@pytest.mark.ci
@pytest.mark.parametrize(
    ('text', 'sizes'),
    [('mixture(experts=8)', dict(data=4)), ('mixture(capacity=1.0)', FSDP)],
)
def test_each_device_computes_its_part_of_a_mixture(text, sizes):
    module = variants.make('feed_forward', text, sizes=Sizes(d_model=32, d_ff=256))
    x = np.ones((8, 64, 32), np.float32)
    shapes = jax.eval_shape(module.init, KEY, x)['params']
    state = {'params': jax.tree.map(lambda p: np.zeros(p.shape, p.dtype), shapes)}

    def losses(state, x):
        return module.apply(state, x, mutable=['losses', 'metrics'])

    _, divided = on_mesh(sizes, losses, state, batch=x)
    whole = jax.jit(losses).lower(state, x).compile()
    flops = divided.cost_analysis()['flops'], whole.cost_analysis()['flops']
    assert flops[0] < 0.3 * flops[1]


@pytest.mark.slow
@pytest.mark.parametrize('sizes', [BOTH, FSDP, TENSOR], ids=str)
def test_search_finds_the_targets_of_one_device(sizes):
    model = tiny.model(**SIZES)
    variables = tiny.all_variables(model)
    source_BS = batch_of(8)['source']
    search = functools.partial(generate, model, strategy=BeamSearch(beams=3))
    expected = jax.jit(search)(variables, source_BS)
    found, _ = on_mesh(sizes, search, variables, batch=source_BS)
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-4)
