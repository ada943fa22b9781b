"""Tests of blocks: a guide's example against NumPy, and broken ones.

test_transformer covers `sequential` and `parallel`.
"""

import importlib
import sys

import jax.numpy as jnp
import numpy as np
import pages
import pytest
import tiny
from test_transformer import Times
from tiny import record

from experiments import check
from flaxformer_lite import testing
from flaxformer_lite.layers.dropout import Dropout
from flaxformer_lite.masks import AttentionContext, TokenBatch
from flaxformer_lite.norms.identity import IdentityNorm
from flaxformer_lite.residual.none import NoResidual
from flaxformer_lite.testing.finding import broken

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


def test_the_example_keeps_the_contracts(convolution, monkeypatch, capsys):
    monkeypatch.setattr(sys, 'argv', ['check', 'my_blocks.Convolution(width=4)'])
    check.main()
    assert 'cached decoding equals teacher forcing  ' in capsys.readouterr().out


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
