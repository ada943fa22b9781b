"""Tests of masks."""

import jax.numpy as jnp
import numpy as np

from flaxformer_lite.masks import (
    AttentionContext,
    TokenBatch,
    padding_known,
    padding_mask,
)


def matrix(pattern):
    """Returns rows of x (may attend) and . (may not)."""
    return np.array([[c == 'x' for c in row] for row in pattern.split()])


def batch(segments, positions=None):
    segments_BT = jnp.array(segments)
    index_1T = jnp.arange(segments_BT.shape[1])[None]
    positions_BT = jnp.broadcast_to(index_1T, segments_BT.shape)
    if positions is not None:
        positions_BT = jnp.array(positions)
    return TokenBatch(jnp.ones_like(segments_BT), segments_BT, positions_BT)


def test_tokens_attend_to_their_own_sentence_without_padding():
    rows = batch([[1, 1, 2, 2, 0]])
    mask_BHTS = rows.segment_mask(rows)
    assert mask_BHTS.shape == (1, 1, 5, 5) and mask_BHTS.dtype == bool
    np.testing.assert_array_equal(
        mask_BHTS[0, 0], matrix('xx... xx... ..xx. ..xx. .....')
    )


def test_targets_attend_to_the_source_of_their_sentence():
    target = batch([[1, 2, 2], [1, 1, 0]])
    source = batch([[1, 1, 2, 0], [1, 0, 0, 0]])
    mask_BHTS = target.segment_mask(source)
    np.testing.assert_array_equal(mask_BHTS[0, 0], matrix('xx.. ..x. ..x.'))
    np.testing.assert_array_equal(mask_BHTS[1, 0], matrix('x... x... ....'))


def test_causal_mask_includes_past_and_present():
    mask_BHTS = batch([[1, 1, 1, 1]]).causal_mask()
    assert mask_BHTS.shape == (1, 1, 4, 4) and mask_BHTS.dtype == bool
    np.testing.assert_array_equal(mask_BHTS[0, 0], matrix('x... xx.. xxx. xxxx'))


def test_causal_mask_depends_on_positions_rather_than_columns():
    mask_BHTS = batch([[1] * 4, [1] * 4], [[1, 3, 0, 2], [5, 6, 4, 9]]).causal_mask()
    np.testing.assert_array_equal(mask_BHTS[0, 0], matrix('x.x. xxxx ..x. x.xx'))
    np.testing.assert_array_equal(mask_BHTS[1, 0], matrix('x.x. xxx. ..x. xxxx'))


def test_following_positions_continue_those_of_the_source():
    source = batch([[1, 1, 1, 2, 0], [1, 1, 0, 0, 0]])
    target = batch([[1, 1, 2, 2], [1, 0, 0, 0]], [[0, 1, 0, 1], [0, 0, 0, 0]])
    found = target.following(source).positions_BT
    np.testing.assert_array_equal(found, [[3, 4, 1, 2], [2, 0, 0, 0]])


def test_merged_mask_covers_keys_of_source_and_target():
    source, target = batch([[1, 1, 0]]), batch([[1, 1]])
    context = AttentionContext(
        positions_BT=target.positions_BT,
        mask_BHTS=target.causal_mask(),
        # In decoding, one mask serves all queries.
        cross_mask_BHTS=source.valid_BT[:, None, None],
        bias_BHTS=jnp.full((1, 2, 2, 2), 7.0),
    )
    merged = context.merged
    np.testing.assert_array_equal(merged.mask_BHTS[0, 0], matrix('xx.x. xx.xx'))
    expected = np.broadcast_to([0, 0, 0, 7, 7], (1, 2, 2, 5))
    np.testing.assert_array_equal(merged.bias_BHTS, expected)


def test_each_row_of_tokens_is_a_sentence_with_positions_from_zero():
    rows = TokenBatch.from_tokens(jnp.array([[7, 7, 0], [7, 0, 0], [7, 8, 9]]))
    assert rows.positions_BT.dtype == rows.segments_BT.dtype == jnp.int32
    np.testing.assert_array_equal(rows.positions_BT, [[0, 1, 0], [0, 0, 0], [0, 1, 2]])
    np.testing.assert_array_equal(rows.segments_BT, [[1, 1, 0], [1, 0, 0], [1, 1, 1]])
    assert TokenBatch.from_tokens(rows) is rows


def test_first_input_is_a_token_even_with_the_id_of_padding():
    tokens = jnp.array([[0, 7, 8, 0], [2, 7, 0, 0], [0, 0, 0, 0]])
    rows = TokenBatch.from_inputs(tokens)
    np.testing.assert_array_equal(
        rows.segments_BT, [[1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 0]]
    )
    np.testing.assert_array_equal(
        rows.positions_BT, [[0, 1, 2, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
    )
    np.testing.assert_array_equal(rows.tokens_BT, tokens)
    assert TokenBatch.from_inputs(rows) is rows


def test_padding_is_known_only_within_its_context():
    valid_BT = jnp.array([[True, False]])
    other_BT = jnp.array([[False, True]])
    with padding_known(valid_BT):
        np.testing.assert_array_equal(padding_mask((1, 2)), valid_BT)
        with padding_known(other_BT):
            np.testing.assert_array_equal(padding_mask((1, 2)), other_BT)
        np.testing.assert_array_equal(padding_mask((1, 2)), valid_BT)
        with padding_known(None):
            np.testing.assert_array_equal(padding_mask((1, 2)), [[True, True]])
    np.testing.assert_array_equal(padding_mask((2, 1)), [[True], [True]])
