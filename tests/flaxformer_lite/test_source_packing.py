"""Tests of encoding packed sources, with sentences by themselves as the reference."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from flaxformer_lite.ensembling import ensemble, ensemble_variables
from flaxformer_lite.generation import generate
from flaxformer_lite.masks import TokenBatch
from flaxformer_lite.source_packing import encode_packed, packed_sources

LENGTH = 24
VARIANTS = [
    {},
    dict(attention='[softmax, local(window=2)]', positions='rotary'),
    dict(attention='linear', feed_forward='mixture', norm='batch'),
    dict(attention='differential', positions='none'),
    dict(positions='shaw', residual='hyper'),
    dict(positions='t5', scan_layers=True),
    dict(positions='alibi', share_layers=1),
    dict(positions='learned(max_length=24)', block='value_residual'),
    dict(positions='transformer_xl', continuous_positions=True),
    dict(merged_attention=True),
    dict(architecture='encoder_decoder(reads="same")'),
    dict(architecture='encoder_decoder(reads="mixture")'),
    dict(dtype='bfloat16'),
]


def sources(rows, seed=0, length=LENGTH):
    """Returns sentences of 0 to `length` tokens, longest first."""
    rng = np.random.default_rng(seed)
    lengths = -np.sort(-rng.integers(0, length + 1, rows))
    tokens_BS = rng.integers(4, tiny.VOCAB, (rows, length))
    return np.where(np.arange(length) < lengths[:, None], tokens_BS, 0)


def prefill(model, variables, source_BS):
    return jax.jit(functools.partial(model.apply, method='prefill'))(
        variables, source_BS
    )


@pytest.mark.parametrize('fields', VARIANTS, ids=str)
def test_a_packed_source_is_encoded_as_by_itself(fields):
    model = tiny.model(num_layers=2, **fields)
    variables = tiny.all_variables(model)
    source_BS = sources(50)
    alone = prefill(model, variables, source_BS)
    with packed_sources():
        packed = prefill(model, variables, source_BS)
    valid_BS = source_BS != 0
    atol = 0.05 if fields.get('dtype') else 1e-5

    def compare(found, expected):
        assert found.dtype == expected.dtype
        if expected.shape[-1] == LENGTH:  # of keys and values, without padding
            mask = valid_BS.reshape(50, *[1] * (expected.ndim - 2), LENGTH)
            found, expected = found * mask, expected * mask
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=atol)

    jax.tree.map(compare, packed, alone)


@pytest.mark.parametrize('rows', [40, 64])
@pytest.mark.parametrize('length', [15, 32, 70])
def test_each_token_sees_the_tokens_of_its_own_sentence(rows, length):
    source_BS = sources(rows, rows, length)
    source = TokenBatch.from_tokens(jnp.asarray(source_BS))

    def encode(batch):
        mask_BTS = batch.segment_mask(batch)[:, 0]
        sums_BT = (mask_BTS * batch.tokens_BT[:, None]).sum(-1)
        return sums_BT, batch.positions_BT

    sums_BS, positions_BS = encode_packed(encode, source)
    valid_BS = source_BS != 0
    expected_BS = np.broadcast_to(source_BS.sum(1, keepdims=True), source_BS.shape)
    np.testing.assert_array_equal(sums_BS * valid_BS, expected_BS * valid_BS)
    np.testing.assert_array_equal(positions_BS * valid_BS, valid_BS * np.arange(length))


def test_rows_without_text_are_not_encoded():
    calls = []

    def encode(batch):
        jax.debug.callback(lambda rows: calls.append(len(rows)), batch.tokens_BT)
        return batch.tokens_BT

    source_BS = np.zeros((256, 32), np.int32)
    source_BS[:30, :4] = 5  # 16 fit into a row, and 8 rows are encoded at a time
    jax.block_until_ready(
        jax.jit(functools.partial(encode_packed, encode))(
            TokenBatch.from_tokens(jnp.asarray(source_BS))
        )
    )
    jax.effects_barrier()
    assert calls == [8]


def test_vectors_are_packed():
    model = tiny.model(num_layers=1, tie='decoder').clone(source_vocab_size=3)
    source_BSF = np.random.default_rng(0).normal(size=(90, 6, 3)).astype(np.float32)
    source_BSF[30:, 4:] = 0
    variables = tiny.all_variables(model)
    alone = generate(model, variables, source_BSF, max_length=5)
    with packed_sources():
        packed = generate(model, variables, source_BSF, max_length=5)
    np.testing.assert_array_equal(packed.tokens_BNL, alone.tokens_BNL)
    np.testing.assert_allclose(packed.scores_BN, alone.scores_BN, rtol=1e-5)


def test_an_ensemble_packs_for_each_model():
    models = [tiny.model(num_layers=1), tiny.model(num_layers=2, positions='shaw')]
    variables = ensemble_variables([tiny.all_variables(model) for model in models])
    both = ensemble(models)
    alone = generate(both, variables, sources(30), 'beam(beams=3)', max_length=6)
    with packed_sources():
        packed = generate(both, variables, sources(30), 'beam(beams=3)', max_length=6)
    np.testing.assert_array_equal(packed.tokens_BNL, alone.tokens_BNL)
    np.testing.assert_allclose(packed.scores_BN, alone.scores_BN, rtol=1e-5)
