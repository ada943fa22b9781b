"""Tests of stacks of layers: patterns of components, and shared layers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from tiny import record, slow

from flaxformer_lite.config import variants
from flaxformer_lite.config.schema import ModelConfig
from flaxformer_lite.layers.scanned_stack import stack_layers, unstack_layers
from flaxformer_lite.masks import AttentionContext, TokenBatch
from flaxformer_lite.training.loss import loss_and_grads
from flaxformer_lite.training.train_step import init_variables

# Two components of each kind, which alternate between layers.
KINDS = {
    'attention': ('local(window=2)', 'softmax(cap=5.0)'),
    'positions': ('rotary(max_wavelength=100.0)', 'shaw(max_distance=2)'),
    'norm': ('rms', 'layer'),
    'residual': ('pre_norm', 'sandwich'),
    'feed_forward': ('swiglu', 'relu(d_ff=8)'),
}


def test_pattern_of_equal_components_equals_one_component():
    for kind, (one, _) in KINDS.items():
        model = tiny.model(**{kind: one})
        assert tiny.model(**{kind: f'[{one}]'}) == model
        assert tiny.model(**{kind: f'[{one}, {one}]'}, scan_layers=False) == model


@pytest.mark.ci
def test_stack_of_a_pattern_equals_its_blocks_in_sequence():
    patterns = {kind: f'[{", ".join(entries)}]' for kind, entries in KINDS.items()}
    model = tiny.model(architecture='decoder_only', num_layers=3, **patterns)
    p = tiny.parameters(model)['decoder']
    tokens = TokenBatch.from_tokens(tiny.padded([[4, 5, 6, 7, 1], [8, 1]]))
    context = AttentionContext(tokens.positions_BT, tokens.causal_mask())
    x_BTD = tiny.normal32(2, 5, tiny.SIZES['d_model'])

    def in_sequence():
        y_BTD = x_BTD
        for i in range(3):
            # These kinds do not depend on the depth.
            fields = {kind: entries[i % 2] for kind, entries in KINDS.items()}
            single = tiny.model(architecture='decoder_only', **fields)
            block = single.stacks()['decoder'].block
            y_BTD, _ = block.apply({'params': p[f'layer_{i}']}, y_BTD, context)
        residual = single.stacks()['decoder'].block.residual
        return residual.apply({'params': p['final']}, y_BTD, method='final_norm')

    found, _ = tiny.apply(model.stacks()['decoder'], {'params': p}, x_BTD, context)
    np.testing.assert_allclose(found, jax.jit(in_sequence)(), atol=1e-5)


def patterns_of_attention(**fields):
    model = tiny.model(**fields)
    rows = tiny.pairs_batch()
    return rows, record(model, tiny.all_variables(model), rows).weights


@pytest.mark.ci
@pytest.mark.parametrize(
    ('attention', 'continuous'),
    [('[local(window=1), cosine]', True), slow('local(window=1)', False)],
)
def test_cross_attention_does_not_inherit_a_window(attention, continuous):
    rows, weights = patterns_of_attention(
        attention=attention, continuous_positions=continuous
    )
    is_token = np.asarray(rows['source'] != 0)
    for pattern in weights['decoder cross']:
        first_sees = (np.asarray(pattern)[:, :, 0] > 0).all(1)
        np.testing.assert_array_equal(first_sees, is_token)


@pytest.mark.ci
def test_weights_are_recorded_with_the_mask_of_their_layer():
    fields = dict(attention='[local(window=1), softmax]')
    _, weights = patterns_of_attention(**fields, cross__attention='local(window=1)')
    near, far = weights['encoder']
    for pattern in (near, weights['decoder cross'][0]):
        is_near = np.eye(*pattern.shape[-2:], dtype=bool)
        assert (np.asarray(pattern)[..., ~is_near] == 0).all()
    is_near = np.eye(far.shape[-1], dtype=bool)
    assert (np.asarray(far)[..., ~is_near] > 0).any()


def test_patterns_of_encoder_and_decoder_are_independent():
    model = tiny.model(
        num_layers=6,
        attention='[local, softmax]',
        decoder__norm='[layer, rms, scale]',
        decoder__feed_forward='relu',
    )
    assert model.layer_periods == {'encoder': 2, 'decoder': 6}

    def name(part):
        return type(part).__name__

    for i in range(6):
        encoder, decoder = (stack.template(i) for stack in model.stacks().values())
        kind = ('Local', 'Softmax')[i % 2]
        assert name(encoder.self_attention.core_attention) == kind
        assert name(decoder.self_attention.core_attention) == kind
        assert name(decoder.cross_attention.core_attention) == 'Softmax'
        assert name(encoder.residual.norm) == 'LayerNorm'
        norm = ('LayerNorm', 'RMSNorm', 'ScaleNorm')[i % 3]
        assert name(decoder.residual.norm) == norm


def test_matrices_start_as_the_residual_connection_of_their_layer_requires():
    model = tiny.model(residual='[deepnorm, post_norm]')
    blocks = [model.stacks()['encoder'].template(i) for i in range(2)]
    inits = [type(x.feed_forward.dense.kernel_init).__name__ for x in blocks]
    assert inits == ['DeepNorm', 'Xavier']


def test_field_is_unused_if_no_layer_uses_it():
    def unused(residual):
        return variants.unused_fields(ModelConfig(residual=residual))

    assert 'norm' in unused('[rezero, none]')
    assert 'norm' not in unused('[rezero, pre_norm]')


SHARED = dict(
    architecture='decoder_only',
    num_layers=4,
    share_layers=2,
    attention='[softmax, local(window=2)]',
    residual='pre_norm',
)


def unshared():
    return tiny.model(**SHARED | dict(share_layers=None))


def with_copies(params):
    """Gives layer i the parameters of layer i mod 2."""
    decoder = params['decoder']
    layers = {f'layer_{i}': decoder[f'layer_{i % 2}'] for i in range(4)}
    return params | {'decoder': decoder | layers}


def summed_over_copies(gradients):
    decoder = dict(gradients['decoder'])
    each = [decoder.pop(f'layer_{i}') for i in range(4)]
    for i in range(2):
        decoder[f'layer_{i}'] = jax.tree.map(jnp.add, each[i], each[i + 2])
    return gradients | {'decoder': decoder}


def assert_close(found, expected):
    def compare(x, y):
        np.testing.assert_allclose(x, y, rtol=0, atol=4e-6 * max(1, np.abs(y).max()))

    jax.tree.map(compare, found, expected)


@functools.cache
def unshared_results():
    """Returns a model that shares layers, and results of one with equal layers."""
    model = tiny.model(**SHARED)
    variables = tiny.all_variables(model)
    copies = {'params': with_copies(variables['params'])}
    learn = jax.jit(functools.partial(loss_and_grads, unshared()))
    result, _ = learn(copies, tiny.packed_batch())
    gradients = summed_over_copies(result.gradients)
    return model, variables, result._replace(gradients=gradients)


@pytest.mark.ci
@pytest.mark.parametrize('remat', ['none', slow('blocks')])
def test_gradients_of_shared_layers_sum_over_equal_layers(remat):
    model, variables, expected = unshared_results()
    learn = functools.partial(loss_and_grads, model.with_remat(remat))
    found, _ = jax.jit(learn)(variables, tiny.packed_batch())
    assert_close(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize('remat', ['none', 'blocks'])
def test_scan_of_shared_layers_computes_the_same(remat):
    _, variables, expected = unshared_results()
    scanned = tiny.model(**SHARED, scan_layers=True)
    stacked = stack_layers(variables, scanned.layer_periods)
    learn = functools.partial(loss_and_grads, scanned.with_remat(remat))
    found, _ = jax.jit(learn)(stacked, tiny.packed_batch())
    assert_close(found._replace(gradients=unstack_layers(found.gradients)), expected)
    tokens = [jnp.ones((1, 1), int)] * 2
    first = jax.eval_shape(scanned.init, jax.random.key(0), *tokens)
    assert jax.tree.map(jnp.shape, first) == jax.tree.map(jnp.shape, stacked)


def test_sharing_as_many_layers_as_there_are_changes_nothing():
    assert tiny.model(share_layers=2).stacks() == tiny.model().stacks()


@pytest.mark.slow
def test_shared_layers_start_like_the_first_unshared_ones():
    key = jax.random.key(3)
    init = jax.jit(init_variables, static_argnums=0)
    found = init(tiny.model(**SHARED), key)['params']
    others = init(unshared(), key)['params']
    names = {name for name in found['decoder'] if name.startswith('layer_')}
    assert names == {'layer_0', 'layer_1'}
    for name, tree in found['decoder'].items():
        tiny.assert_equal(tree, others['decoder'][name])


def test_shared_layers_have_separate_running_statistics():
    sizes = dict(num_layers=3, norm='batch', architecture='decoder_only')
    model = tiny.model(**sizes, share_layers=1)
    statistics = tiny.all_variables(tiny.model(**sizes))['batch_stats']
    given = tiny.all_variables(model) | {'batch_stats': statistics}
    step = functools.partial(loss_and_grads, model, dropout_key=jax.random.key(0))
    _, written = jax.eval_shape(step, given, tiny.packed_batch())
    assert jax.tree.structure(written) == jax.tree.structure(statistics)
