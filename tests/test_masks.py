import jax.numpy as jnp
import numpy as np

from flaxformer_lite import masks


def matrix(text):
    """Rows of x (may attend) and . (may not)."""
    return np.array([[c == 'x' for c in row] for row in text.split()])


def test_segments_hide_padding_and_other_sentences():
    segments_BT = jnp.array([[1, 1, 2, 2, 0]])
    mask_BHTS = masks.segments(segments_BT, segments_BT)
    assert mask_BHTS.shape == (1, 1, 5, 5) and mask_BHTS.dtype == bool
    np.testing.assert_array_equal(mask_BHTS[0, 0], matrix('xx... xx... ..xx. ..xx. .....'))


def test_segments_across_source_and_target():
    mask_BHTS = masks.segments(
        jnp.array([[1, 2, 2], [1, 1, 0]]), jnp.array([[1, 1, 2, 0], [1, 0, 0, 0]])
    )
    np.testing.assert_array_equal(mask_BHTS[0, 0], matrix('xx.. ..x. ..x.'))
    np.testing.assert_array_equal(mask_BHTS[1, 0], matrix('x... x... ....'))


def test_causal_shows_the_past_and_the_present():
    pos_BT = jnp.array([[0, 1, 2, 3]])
    mask_BHTS = masks.causal(pos_BT, pos_BT)
    assert mask_BHTS.shape == (1, 1, 4, 4) and mask_BHTS.dtype == bool
    np.testing.assert_array_equal(mask_BHTS[0, 0], matrix('x... xx.. xxx. xxxx'))


def test_causal_goes_by_position_not_by_slot():
    mask_BHTS = masks.causal(jnp.array([[1], [5]]), jnp.array([[3, 0, 1, 2], [5, 6, 4, 9]]))
    np.testing.assert_array_equal(mask_BHTS[:, 0, 0], matrix('.xx. x.x.'))


def test_causal_and_segments_of_a_packed_row():
    segments_BT, pos_BT = jnp.array([[1, 1, 2, 2, 2, 0]]), jnp.array([[0, 1, 0, 1, 2, 0]])
    mask_BHTS = masks.segments(segments_BT, segments_BT) & masks.causal(pos_BT, pos_BT)
    expected = matrix('x..... xx.... ..x... ..xx.. ..xxx. ......')
    np.testing.assert_array_equal(mask_BHTS[0, 0], expected)


def test_positions_count_along_the_tokens_of_each_row():
    pos_BT = masks.positions(jnp.array([[7, 7, 0], [7, 0, 0], [7, 8, 9]]))
    assert pos_BT.dtype == jnp.int32
    np.testing.assert_array_equal(pos_BT, [[0, 1, 0], [0, 0, 0], [0, 1, 2]])
