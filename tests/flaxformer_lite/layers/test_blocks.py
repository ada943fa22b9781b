"""Tests of blocks, and of attention merged with attention to the source."""

import functools
import importlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pages
import pytest
import tiny
from flax import linen as nn
from tiny import record, slow

from flaxformer_lite import testing
from flaxformer_lite.layer_scope import publish
from flaxformer_lite.layers.blocks.parallel import Parallel
from flaxformer_lite.layers.blocks.sequential import Sequential
from flaxformer_lite.layers.dropout import Dropout
from flaxformer_lite.masks import AttentionContext, TokenBatch
from flaxformer_lite.norms.identity import Identity
from flaxformer_lite.residual.none import NoResidual
from flaxformer_lite.residual.pre_norm import PreNorm
from flaxformer_lite.testing.finding import broken
from flaxformer_lite.training.batch import source_and_inputs

CODE = pages.files('docs/how_to/extend.md')


class Times(nn.Module):
    """A stub of a sublayer that ignores its other arguments."""

    factor: float

    def project_kv(self, h_BTD, positions_BT):
        return h_BTD

    def __call__(self, h_BTD, *args, **kwargs):
        return self.factor * h_BTD


class PlusOne(nn.Module):
    """A stub of a norm."""

    def __call__(self, x_BTD):
        return x_BTD + 1


def sequential(x):
    return functools.reduce(lambda x, k: x + k * (x + 1), (2, 3, 5), x)


def parallel(x):
    return x + (2 + 3 + 5) * (x + 1)


@pytest.mark.parametrize(
    ('kind', 'expected'), [(Parallel, parallel), (Sequential, sequential)]
)
def test_sublayers_run_in_sequence_or_in_parallel(kind, expected):
    block = kind(
        self_attention=Times(2.0),
        cross_attention=Times(3.0),
        feed_forward=Times(5.0),
        residual=PreNorm(norm=PlusOne(), dropout=Dropout(0.0)),
    )
    x = tiny.normal32(1, 2, 3)
    context = AttentionContext(
        positions_BT=jnp.zeros((1, 2)),
        mask_BHTS=jnp.ones((1, 2)),
        cross_mask_BHTS=jnp.ones(()),
    )
    y, _ = block.apply({}, x, context, x)
    np.testing.assert_allclose(y, expected(x), rtol=1e-5)


@pytest.fixture
def convolution(tmp_path, monkeypatch):
    """Returns the block that a page of the documentation defines."""
    (tmp_path / 'my_blocks.py').write_text(CODE['my_blocks.py'])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, 'my_blocks', raising=False)
    importlib.invalidate_caches()
    return importlib.import_module('my_blocks').Convolution


def test_documented_block_convolves_each_sentence_of_a_packed_row(convolution):
    width, lengths = 3, (4, 1, 2)
    block = convolution(
        self_attention=Times(2.0),
        feed_forward=Times(1.0),
        residual=NoResidual(norm=Identity(), dropout=Dropout(0.0)),
        width=width,
    )
    w_JD, x_TD = tiny.normal(width, 5), tiny.normal(sum(lengths) + 1, 5, seed=1)
    segments = np.repeat([1, 2, 3, 0], [*lengths, 1])[None]
    positions = np.concatenate([*map(np.arange, lengths), [0]])[None]
    tokens = TokenBatch(*map(jnp.asarray, (segments, segments, positions)))
    context = AttentionContext(tokens.positions_BT, tokens.causal_mask())
    params = {'params': {'filter': jnp.float32(w_JD)}}
    y_BTD, _ = block.apply(params, jnp.float32(x_TD)[None], context)
    start = 0
    for length in lengths:
        part = slice(start, start + length)
        for d in range(5):
            expected = np.convolve(x_TD[part, d], w_JD[::-1, d])[:length]
            np.testing.assert_allclose(y_BTD[0, part, d], expected, atol=1e-5)
        start += length


@pytest.mark.slow
def test_documented_block_keeps_the_contracts_next_to_attention(convolution):
    testing.check(
        testing.small_model(
            block='[my_blocks.Convolution, parallel]',
            decoder__block='[my_blocks.Convolution(width=2), sequential]',
            num_layers=2,
            residual='pre_norm',
            scan_layers=True,
        )
    )


@pytest.mark.slow
def test_documented_block_with_published_values_keeps_the_contracts(
    tmp_path, monkeypatch
):
    (tmp_path / 'my_layers.py').write_text(CODE['my_layers.py'])
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    testing.check('my_layers.FromStart')


def test_convolution_that_ignores_sentences_breaks_the_contracts(convolution):
    class AlongTheRow(convolution):
        def _window(self, h_BTD, context):
            length = h_BTD.shape[1]
            before = [(0, 0), (self.width - 1, 0), (0, 0)]
            padded = jnp.pad(h_BTD, before)
            shifted = [padded[:, j : j + length] for j in range(self.width)]
            return jnp.stack(shifted, 2)

    found = testing.findings(AlongTheRow, quick=True)
    contracts = {finding.contract for finding in broken(found)}
    assert contracts == {'padding has no effect', 'packing has no effect'}


def test_layers_without_attention_are_left_out_of_recorded_weights(convolution):
    fields = dict(
        block=convolution, decoder__block='[my_blocks.Convolution, sequential]'
    )
    model = tiny.model(**fields)
    shapes = jax.eval_shape(
        functools.partial(record, model), tiny.all_variables(model), tiny.pairs_batch()
    )
    assert {name: len(x) for name, x in shapes.weights.items()} == {
        'decoder': 1,
        'decoder cross': 2,
    }
    assert len(shapes.norms['encoder']) == 3


def test_block_without_attention_cannot_be_merged(convolution):
    with pytest.raises(ValueError, match='model.block: .* no self-attention to merge'):
        tiny.model(block=convolution, merged_attention=True)
    with pytest.raises(ValueError, match='model.block: .* not a subclass of Block'):
        tiny.model(block='my_blocks._Last')


@pytest.mark.ci
@pytest.mark.parametrize(
    'block',
    [
        'value_residual(learned=True)',
        slow('value_residual(first=2.0, own=1.0)'),
        slow('value_residual'),
    ],
)
def test_value_residual_mixes_values_with_those_of_the_first_layer(block):
    """V'_n = λ_n1 V_1 + λ_n2 V_n (Zhou et al. 2024)."""
    fields = dict(architecture='decoder_only', num_layers=3, num_kv_heads=1)
    model = tiny.model(block=block, **fields)
    params = tiny.all_variables(model)
    found = record(model, params, tiny.pairs_batch()).values
    for i in range(3):
        layer = f'decoder/layer_{i}/self_attention'
        first, own = (2.0, 1.0) if '2.0' in block else (0.5, 0.5)
        if 'learned' in block:
            mix = params['params']['decoder'][f'layer_{i}']['value_mix']
            first, own = float(mix['first']), float(mix['own'])
        elif i == 0:
            first, own = 0.0, 1.0
        v_1 = np.float64(found['decoder/layer_0/self_attention/v'])
        v = first * v_1 + own * np.float64(found[f'{layer}/v'])
        pattern = np.float64(found[f'{layer}/pattern'])
        expected = np.einsum('bhts,bsu->bthu', pattern, v[:, :, 0])
        np.testing.assert_allclose(found[f'{layer}/z'], expected, atol=1e-5)


@pytest.mark.ci
def test_value_residual_reads_the_first_layer_of_its_kind():
    model = tiny.model(
        architecture='decoder_only',
        block='[sequential, value_residual(first=1.0, own=0.0)]',
        num_layers=4,
    )
    found = record(model, tiny.all_variables(model), tiny.batch([tiny.PAIRS])).values
    v = found['decoder/layer_1/self_attention/v']
    layer = 'decoder/layer_3/self_attention'
    expected = np.einsum('bhts,bshu->bthu', found[f'{layer}/pattern'], v)
    np.testing.assert_allclose(found[f'{layer}/z'], expected, atol=1e-5)


class Undeclared(Sequential):
    def keep(self, h_BTD, positions_BT):
        publish('input', h_BTD)
        return super().keep(h_BTD, positions_BT)


def test_scan_rejects_published_values_that_no_block_declares():
    arguments = source_and_inputs(tiny.batch([tiny.PAIRS]))
    for scan_layers in (False, True):
        fields = dict(block=Undeclared, architecture='decoder_only')
        model = tiny.model(**fields, scan_layers=scan_layers)
        params = tiny.all_variables(model)
        run = functools.partial(jax.eval_shape, model.apply, params, *arguments)
        if scan_layers:
            with pytest.raises(ValueError, match="'input' is published by .* scan"):
                run()
        else:
            run()


def rotary(x_BTHK, positions_BT, wavelength=10000.0):
    """Applies RoPE with complex numbers of features 2i and 2i + 1."""
    d_k = x_BTHK.shape[-1]
    rate = wavelength ** (-np.arange(0, d_k, 2) / d_k)
    turn = np.exp(1j * positions_BT[..., None, None] * rate)
    z = (x_BTHK[..., 0::2] + 1j * x_BTHK[..., 1::2]) * turn
    return np.stack([z.real, z.imag], -1).reshape(x_BTHK.shape)


def merged_attention(p, x_BTD, e_BSD, positions_BT, mask_BTS):
    """Returns softmax(Q [K_source; K_own]ᵀ / √d_k) [V_source; V_own] W_o, in float64.

    Positions act on the decoder's own tokens only.
    """
    q, k, v, out = (p[x]['kernel'] for x in ('query', 'key', 'value', 'out_proj'))
    query = rotary(np.einsum('btd,dhk->bthk', x_BTD, q), positions_BT)
    own = rotary(np.einsum('btd,dhk->bthk', x_BTD, k), positions_BT)
    keys = np.concatenate([np.einsum('bsd,dhk->bshk', e_BSD, k), own], 1)
    values = np.einsum('bsd,dhu->bshu', np.concatenate([e_BSD, x_BTD], 1), v)
    scores = np.einsum('bthk,bshk->bhts', query, keys) / np.sqrt(q.shape[-1])
    weights = np.where(mask_BTS[:, None], np.exp(scores), 0)
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum('bhts,bshu,hud->btd', weights, values, out)


@pytest.mark.ci
def test_merged_attention_is_one_softmax_over_source_and_target():
    """T5Gemma 2 (2512.14856). test_contracts covers cached decoding."""
    fields = dict(positions='rotary', attention='local(window=2)', num_layers=1)
    model = tiny.model(merged_attention=True, **fields)
    block = model.stacks()['decoder'].block
    p = tiny.parameters(model)['decoder']['layer_0']
    x_BTD, e_BSD = (tiny.normal(2, n, 12, seed=n) for n in (3, 4))
    source = TokenBatch.from_tokens(jnp.array([[4, 5, 6, 1], [7, 1, 0, 0]]))
    target = TokenBatch.from_tokens(jnp.array([[4, 5, 6], [7, 8, 9]]))
    context = AttentionContext(
        positions_BT=target.positions_BT,
        mask_BHTS=target.causal_mask(),
        cross_mask_BHTS=target.segment_mask(source),
    )
    encoder_kv = tiny.apply(
        block, {'params': p}, e_BSD, source.positions_BT, method='project_source'
    )
    arguments = x_BTD, context, None, None, encoder_kv
    found, _ = tiny.apply(block, {'params': p}, *arguments, method='attend_to_self')

    # The window is over target tokens only, and padding of the source is hidden.
    own = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 1]], bool)
    valid = np.array([[1, 1, 1, 1], [1, 1, 0, 0]], bool)
    mask_BTS = np.stack([np.concatenate([np.tile(x, (3, 1)), own], 1) for x in valid])
    weights = tiny.float64(p['self_attention'])
    positions_BT = np.tile(np.arange(3), (2, 1))
    expected = merged_attention(weights, x_BTD, e_BSD, positions_BT, mask_BTS)
    np.testing.assert_allclose(found, expected, atol=1e-5)
