"""Tests of sources of vectors, such as frames of speech."""

import numpy as np
import pytest
import tiny
from tiny import log_probs, record

import flaxformer_lite

FEATURES = 5
TARGETS = [[4, 5, 6, 1], [7, 1]]
VECTORS = [
    np.random.default_rng(row).normal(size=(length, FEATURES)).astype(np.float32)
    for row, length in enumerate([6, 3])
]
OTHERS = 'decoder_only', 'prefix_lm', 'recurrent'
every_architecture = pytest.mark.parametrize(
    'architecture',
    [
        'encoder_decoder',
        *(pytest.param(x, marks=pytest.mark.slow) for x in OTHERS),
    ],
)


def made(architecture='encoder_decoder', features=FEATURES, **overrides):
    model = tiny.model(architecture=architecture, tie='decoder', **overrides)
    model = model.clone(source_vocab_size=features)
    return model, tiny.all_variables(model)


def as_one_hot(tokens, size):
    return [np.eye(size, dtype=np.float32)[row] for row in tokens]


@every_architecture
def test_vectors_with_a_single_1_are_tokens(architecture):
    model, p = made(architecture, features=9)
    sources = [[4, 5, 8, 3, 1], [6, 1]]
    one_hot = as_one_hot(sources, 9)
    tokens, vectors = (
        flaxformer_lite.make_batch(x, TARGETS) for x in (sources, one_hot)
    )
    np.testing.assert_allclose(
        log_probs(model, p, vectors).log_p,
        log_probs(model, p, tokens).log_p,
        rtol=1e-5,
    )
    found, expected = (
        flaxformer_lite.generate(model, p, x, 'beam(beams=3)', max_length=6)
        for x in (one_hot, sources)
    )
    np.testing.assert_array_equal(found.tokens_BNL, expected.tokens_BNL)
    np.testing.assert_allclose(found.scores_BN, expected.scores_BN, rtol=1e-5)


def test_the_stream_of_the_encoder_begins_with_the_weighted_rows():
    model, p = made(positions='none')
    batch = flaxformer_lite.make_batch(VECTORS, TARGETS)
    found = record(model, p, batch).values['encoder/layer_0/resid_pre']
    table_FD = np.asarray(p['params']['source_embedding'], np.float64)
    for row, vectors_SF in enumerate(VECTORS):
        expected = vectors_SF.astype(np.float64) @ table_FD * model.d_model**0.5
        np.testing.assert_allclose(
            found[row, : len(vectors_SF)], expected, rtol=1e-5, atol=1e-6
        )


@every_architecture
def test_padding_of_vectors_changes_nothing(architecture):
    model, p = made(architecture)
    for row, vectors in enumerate(VECTORS):
        target = [TARGETS[row]]
        alone = flaxformer_lite.make_batch([vectors], target)
        beside = flaxformer_lite.make_batch(VECTORS, TARGETS, length=9)
        alone, beside = (log_probs(model, p, x).log_p for x in (alone, beside))
        of_target = len(target[0])
        np.testing.assert_allclose(
            beside[row, :of_target], alone[0, :of_target], rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize(
    ('source', 'message'),
    [
        ([np.ones((2, 5)), np.ones((2, 4))], r'row 1: .* \(length, 5\), not \(2, 4\)'),
        ([np.zeros((2, 5)), np.ones((1, 5))], 'row 0: .*all zeros, which means'),
        ([np.full((1, 5), np.nan), np.ones((1, 5))], 'row 0: .*must be finite'),
        ([np.ones((2, 5)), [3, 1]], r'row 1: .* not \(2,\)'),
    ],
)
def test_vectors_that_cannot_be_are_refused(source, message):
    with pytest.raises(ValueError, match=message):
        flaxformer_lite.make_batch(source, TARGETS)


def test_vectors_longer_than_length_are_refused():
    with pytest.raises(ValueError, match='source has a row of 6 tokens, more than'):
        flaxformer_lite.make_batch(VECTORS, TARGETS, length=5)


def test_vectors_of_other_features_are_refused():
    model, p = made(features=7)
    with pytest.raises(ValueError, match='5 features, and the model.*size is 7'):
        flaxformer_lite.generate(model, p, VECTORS)
