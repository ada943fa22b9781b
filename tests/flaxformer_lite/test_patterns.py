"""Tests of patterns over layers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from tiny import record

from flaxformer_lite.config import variants
from flaxformer_lite.config.schema import ModelConfig
from flaxformer_lite.masks import AttentionContext, TokenBatch

# Two of each kind, and the names of what they are for layers 0 and 1.
KINDS = {
    'attention': ('local(window=2)', 'softmax(cap=5.0)'),
    'positions': ('rotary(max_wavelength=100.0)', 'shaw(max_distance=2)'),
    'norm': ('rms', 'layer'),
    'residual': ('pre_norm', 'sandwich'),
    'feed_forward': ('swiglu', 'relu(d_ff=8)'),
}
PATTERNS = {kind: f'[{", ".join(entries)}]' for kind, entries in KINDS.items()}


def entry(i):
    return {kind: entries[i % 2] for kind, entries in KINDS.items()}


@pytest.mark.parametrize('kind', KINDS)
def test_a_pattern_of_one_entry_or_of_equal_ones_is_no_pattern(kind):
    one = KINDS[kind][0]
    model = tiny.model(**{kind: one})
    assert tiny.model(**{kind: f'[{one}]'}) == model
    assert tiny.model(**{kind: f'[{one}, {one}]'}, scan_layers=False) == model


def test_a_stack_of_a_pattern_is_layers_built_by_hand():
    model = tiny.model(architecture='decoder_only', num_layers=3, **PATTERNS)
    p = tiny.parameters(model)['decoder']
    tokens = TokenBatch.from_tokens(tiny.padded([[4, 5, 6, 7, 1], [8, 1]]))
    context = AttentionContext(tokens.positions_BT, tokens.causal_mask())
    rng = np.random.default_rng(0)
    x_BTD = jnp.float32(rng.normal(size=(2, 5, tiny.SIZES['d_model'])))

    def by_hand():
        y_BTD = x_BTD
        for i in range(3):
            # Depth decides nothing of these kinds.
            by_itself = tiny.model(architecture='decoder_only', **entry(i))
            block = by_itself.decoder.block
            y_BTD, _ = block.apply({'params': p[f'layer_{i}']}, y_BTD, context)
        residual = by_itself.decoder.block.residual
        return residual.apply({'params': p['final']}, y_BTD, method='final_norm')

    found, _ = tiny.apply(model.decoder, {'params': p}, x_BTD, context)
    np.testing.assert_allclose(found, jax.jit(by_hand)(), atol=1e-5)


@pytest.mark.parametrize('continuous', [False, True])
@pytest.mark.parametrize('attention', ['local(window=1)', '[local(window=1), cosine]'])
def test_a_window_of_self_attention_is_not_passed_on(attention, continuous):
    model = tiny.model(attention=attention, continuous_positions=continuous)
    rows = tiny.batch([[pair] for pair in tiny.PAIRS])
    recorded = record(model, tiny.all_variables(model), rows).weights
    is_token = np.asarray(rows['source'] != 0)
    for weights in recorded['decoder cross']:
        first_sees = (np.asarray(weights)[:, :, 0] > 0).all(1)
        np.testing.assert_array_equal(first_sees, is_token)
    asked = tiny.model(attention=attention, cross__attention='local(window=1)')
    weights = record(asked, tiny.all_variables(asked), rows).weights['decoder cross'][0]
    is_near = np.eye(*weights.shape[-2:], dtype=bool)
    assert (np.asarray(weights)[..., ~is_near] == 0).all()


def test_each_stack_has_the_patterns_of_its_own_fields():
    model = tiny.model(
        num_layers=6,
        attention='[local, softmax]',
        decoder__norm='[layer, rms, scale]',
        decoder__feed_forward='relu',
    )
    assert model.layer_periods == {'encoder': 2, 'decoder': 6}
    for i in range(6):
        encoder, decoder = model.encoder.template(i), model.decoder.template(i)
        kind = ('LocalAttention', 'SoftmaxAttention')[i % 2]
        assert type(encoder.self_attention.core_attention).__name__ == kind
        assert type(decoder.self_attention.core_attention).__name__ == kind
        assert (
            type(decoder.cross_attention.core_attention).__name__ == 'SoftmaxAttention'
        )
        assert type(encoder.residual.norm).__name__ == 'LayerNorm'
        norm = ('LayerNorm', 'RMSNorm', 'ScaleNorm')[i % 3]
        assert type(decoder.residual.norm).__name__ == norm


def test_matrices_begin_as_the_residual_connection_of_their_layer_asks():
    model = tiny.model(residual='[deepnorm, post_norm]')
    inits = [
        type(model.encoder.template(i).feed_forward.dense.kernel_init).__name__
        for i in range(2)
    ]
    assert inits == ['DeepNormInit', 'XavierInit']


def test_a_field_is_unused_where_no_layer_uses_it():
    def unused(residual):
        return variants.unused_fields(ModelConfig(residual=residual))

    assert 'norm' in unused('[rezero, none]')
    assert 'norm' not in unused('[rezero, pre_norm]')


def test_layers_that_hold_their_weights_are_recorded_by_their_own_mask():
    model = tiny.model(attention='[local(window=1), softmax]')
    rows = tiny.batch([[pair] for pair in tiny.PAIRS])
    near, far = record(model, tiny.all_variables(model), rows).weights['encoder']
    is_near = np.eye(near.shape[-1], dtype=bool)
    assert (np.asarray(near)[..., ~is_near] == 0).all()
    assert (np.asarray(far)[..., ~is_near] > 0).any()
