"""Tests of sources of vectors, such as frames of speech."""

import numpy as np
import pytest
import tiny
from tiny import log_probs, record, slow

import flaxformer_lite

FEATURES = 5
TARGETS = [[4, 5, 6, 1], [7, 1]]
VECTORS = [np.float32(tiny.normal(n, FEATURES, seed=n)) for n in (6, 3)]
every_architecture = pytest.mark.parametrize(
    'architecture',
    [
        'encoder_decoder',
        *(slow(name) for name in ('decoder_only', 'prefix_lm', 'recurrent')),
    ],
)


def opened(architecture='encoder_decoder', features=FEATURES, **overrides):
    fields = dict(architecture=architecture, tie='decoder', num_layers=1)
    model = tiny.model(**fields | overrides).clone(source_vocab_size=features)
    return model, tiny.all_variables(model)


@pytest.mark.ci
@every_architecture
def test_one_hot_vectors_equal_tokens(architecture):
    model, p = opened(architecture, features=9)
    tokens = [[4, 5, 8, 3, 1], [6, 1]]
    vectors = [np.eye(9, dtype=np.float32)[row] for row in tokens]

    def results(sources):
        batch = flaxformer_lite.make_batch(sources, TARGETS)
        scores = log_probs(model, p, batch).log_p
        beam = flaxformer_lite.decoding.BeamSearch(beams=3)
        found = flaxformer_lite.generate(model, p, sources, beam, max_length=6)
        return scores, found

    tiny.assert_close(results(vectors), results(tokens), atol=0, rtol=1e-5)


@pytest.mark.ci
def test_stream_of_the_encoder_starts_with_the_weighted_rows():
    model, p = opened(positions='none')
    batch = flaxformer_lite.make_batch(VECTORS, TARGETS)
    found = record(model, p, batch).values['encoder/layer_0/resid_pre']
    table_FD = np.float64(p['params']['source_embedding'])
    for row, vectors_SF in enumerate(VECTORS):
        expected = np.float64(vectors_SF) @ table_FD * model.d_model**0.5
        stream = found[row, : len(vectors_SF)]
        np.testing.assert_allclose(stream, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.ci
@every_architecture
def test_padding_of_vectors_changes_nothing(architecture):
    model, p = opened(architecture)
    batch = flaxformer_lite.make_batch(VECTORS, TARGETS, length=9)
    together = log_probs(model, p, batch).log_p
    row, length = 1, len(TARGETS[1])
    batch = flaxformer_lite.make_batch([VECTORS[row]], [TARGETS[row]])
    alone = log_probs(model, p, batch).log_p[0]
    found = together[row, :length]
    np.testing.assert_allclose(found, alone[:length], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ('source', 'message'),
    [
        ([np.ones((2, 5)), np.ones((2, 4))], r'row 1: .* \(length, 5\)'),
        ([np.zeros((2, 5)), np.ones((1, 5))], 'row 0: .*all zeros'),
        ([np.full((1, 5), np.nan), np.ones((1, 5))], 'row 0: .*must be finite'),
        ([np.ones((2, 5)), [3, 1]], 'row 1: '),
        (VECTORS, 'source has a row of 6 tokens, more than'),
    ],
)
def test_invalid_vectors_are_rejected(source, message):
    with pytest.raises(ValueError, match=message):
        flaxformer_lite.make_batch(source, TARGETS, length=5)


def test_vectors_of_other_features_are_rejected():
    model, p = opened(features=7)
    with pytest.raises(ValueError, match='5 features, and the model.*size is 7'):
        flaxformer_lite.generate(model, p, VECTORS)
