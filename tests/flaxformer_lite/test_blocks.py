"""Tests of blocks."""

import functools
import importlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pages
import pytest
import tiny
from test_transformer import Times
from tiny import record

from flaxformer_lite import testing
from flaxformer_lite.layer_scope import publish
from flaxformer_lite.layers.blocks.sequential import SequentialBlock
from flaxformer_lite.layers.dropout import Dropout
from flaxformer_lite.masks import AttentionContext, TokenBatch
from flaxformer_lite.norms.identity import IdentityNorm
from flaxformer_lite.residual.none import NoResidual
from flaxformer_lite.testing.finding import broken
from flaxformer_lite.training.batch import source_and_inputs

CODE = pages.files('docs/how_to/extend.md')['my_blocks.py']


@pytest.fixture
def convolution(tmp_path, monkeypatch):
    (tmp_path / 'my_blocks.py').write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, 'my_blocks', raising=False)
    importlib.invalidate_caches()
    return importlib.import_module('my_blocks').Convolution


def test_the_example_convolves_each_sentence_of_a_packed_row(convolution):
    rng = np.random.default_rng(0)
    width, lengths = 3, (4, 1, 2)
    block = convolution(
        self_attention=Times(2.0),
        feed_forward=Times(1.0),
        residual=NoResidual(norm=IdentityNorm(), dropout=Dropout(0.0)),
        width=width,
    )
    w_JD = rng.normal(size=(width, 5))
    x_TD = rng.normal(size=(sum(lengths) + 1, 5))
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
def test_the_example_keeps_the_contracts_beside_attention(convolution):
    testing.check(
        testing.small_model(
            block='[my_blocks.Convolution, parallel]',
            decoder__block='[my_blocks.Convolution(width=2), sequential]',
            num_layers=2,
            residual='pre_norm',
            scan_layers=True,
        )
    )


def test_a_convolution_along_the_row_does_not_keep_them(convolution):
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


def test_layers_of_attention_are_recorded_beside_others(convolution):
    model = tiny.model(block=convolution, decoder__block='sequential')
    rows = tiny.batch([[pair] for pair in tiny.PAIRS])
    found = record(model, tiny.all_variables(model), rows)
    assert set(found.weights) == {'decoder', 'decoder cross'}
    assert len(found.norms['encoder']) == 3
    mixed = tiny.model(block='[my_blocks.Convolution, sequential]')
    found = record(mixed, tiny.all_variables(mixed), rows)
    assert [len(found.weights[x]) for x in ('encoder', 'decoder cross')] == [1, 2]


def test_what_is_no_attention_cannot_be_merged_with_one(convolution):
    with pytest.raises(ValueError, match='model.block=.* no self-attention to merge'):
        tiny.model(block=convolution, merged_attention=True)
    with pytest.raises(
        ValueError, match='model.block: my_blocks._Last is not a subclass of Block'
    ):
        tiny.model(block='my_blocks._Last')


@pytest.mark.slow
def test_the_example_of_published_values_keeps_the_contracts(tmp_path, monkeypatch):
    code = pages.files('docs/how_to/extend.md')['my_layers.py']
    (tmp_path / 'my_layers.py').write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    testing.check('my_layers.FromStart')


@pytest.mark.parametrize(
    'block',
    [
        'value_residual',
        'value_residual(first=2.0, own=1.0)',
        'value_residual(learned=True)',
    ],
)
def test_weights_read_sums_of_the_first_and_the_layers_own_values(block):
    """V'_n = λ_n1 V_1 + λ_n2 V_n (Zhou et al. 2024), in each stack."""
    model = tiny.model(block=block, num_layers=3, num_kv_heads=1)
    params = tiny.all_variables(model)
    found = record(model, params, tiny.batch([[pair] for pair in tiny.PAIRS])).values
    for stack in ('encoder', 'decoder'):
        for i in range(3):
            layer = f'{stack}/layer_{i}/self_attention'
            first, own = (2.0, 1.0) if '2.0' in block else (0.5, 0.5)
            if 'learned' in block:
                mix = params['params'][stack][f'layer_{i}']['value_mix']
                first, own = float(mix['first']), float(mix['own'])
            elif i == 0:
                first, own = 0.0, 1.0
            v_1 = np.float64(found[f'{stack}/layer_0/self_attention/v'])
            v = first * v_1 + own * np.float64(found[f'{layer}/v'])
            pattern = np.float64(found[f'{layer}/pattern'])
            expected = np.einsum('bhts,bsu->bthu', pattern, v[:, :, 0])
            np.testing.assert_allclose(found[f'{layer}/z'], expected, atol=1e-5)


def test_layers_between_others_find_the_values_of_the_first_of_their_kind():
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


class Undeclared(SequentialBlock):
    def keep(self, h_BTD, positions_BT):
        publish('input', h_BTD)
        return super().keep(h_BTD, positions_BT)


def test_a_scan_refuses_values_that_no_block_declares():
    arguments = source_and_inputs(tiny.batch([tiny.PAIRS]))
    for scan in (False, True):
        model = tiny.model(block=Undeclared, scan_layers=scan)
        params = tiny.all_variables(model)
        run = functools.partial(jax.eval_shape, model.apply, params, *arguments)
        if scan:
            with pytest.raises(ValueError, match="'input' is published by .* scan"):
                run()
        else:
            run()
