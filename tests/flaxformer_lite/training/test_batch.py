"""Tests of batches of tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from flaxformer_lite import make_batch
from flaxformer_lite.special_tokens import SpecialTokens
from flaxformer_lite.training.batch import BATCH_ARRAYS


def test_batch_has_one_pair_per_row():
    found = make_batch(tiny.SOURCES, tiny.TARGETS)
    expected = tiny.pairs_batch()
    assert found.keys() == expected.keys() == set(BATCH_ARRAYS)
    tiny.assert_equal(found, expected)
    assert all(array.dtype == jnp.int32 for array in found.values())
    # Padded arrays give the same batch, even if they are traced.
    padded = tiny.padded(tiny.SOURCES), np.asarray(tiny.padded(tiny.TARGETS))
    tiny.assert_equal(jax.jit(make_batch)(*padded), found)
    assert make_batch([[4, 1]], [[5]], length=3)['labels'].shape == (1, 3)


@pytest.mark.parametrize(
    ('source', 'target', 'message'),
    [
        ([[4], [5]], [[6]], 'each of the 2 sources, not 1 rows'),
        ([[4, 0, 5]], [[6]], 'source, row 0: '),
        ([4, 5], [[6]], 'source must be rows of tokens'),
        (np.ones((2, 3)), [[6]], 'source must be whole numbers'),
        ([[4, 1]], [[5, 6, 7, 1]], 'target has a row of 4 tokens, more than len'),
        (np.array([[4], [4]]), np.array([[5, 1, 0], [0, 5, 1]]), 'target, row 1: padd'),
        (np.array([[4], [4]]), np.array([[5, 1, 0], [5, 0, 1]]), 'target, row 1: padd'),
    ],
)
def test_invalid_rows_are_rejected(source, target, message):
    with pytest.raises(ValueError, match=message):
        make_batch(source, target, length=3)


@pytest.mark.parametrize(('side', 'size'), [('source', 9), ('target', 6)])
def test_token_beyond_the_vocabulary_of_its_side_is_rejected(side, size):
    model = tiny.model(tie='decoder').clone(vocab_size=6, source_vocab_size=9)
    largest = dict(source=[[8, 1]], target=[[5, 1]])
    make_batch(**largest, model=model)
    with pytest.raises(ValueError, match=f'{side} contains token id {size}'):
        make_batch(**largest | {side: [[size, 1]]}, model=model)


def test_batch_has_the_special_tokens_of_its_model():
    special_tokens = SpecialTokens(padding=7, bos=7, eos=1)
    model = tiny.model().clone(special_tokens=special_tokens)
    pairs = [[4, 1], [5, 6, 1]], [[6, 5, 1], [4, 1]]
    found = make_batch(*pairs, model=model)
    tiny.assert_equal(found, make_batch(*pairs, bos=7, padding=7))
    np.testing.assert_array_equal(found['inputs'], [[7, 6, 5], [7, 4, 7]])
    np.testing.assert_array_equal(found['source'], [[4, 1, 7], [5, 6, 1]])
