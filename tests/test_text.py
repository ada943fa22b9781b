import jax.numpy as jnp
import numpy as np
from flaxformer_lite.text import Text


def matrix(text):
    """Rows of x (may attend) and . (may not)."""
    return np.array([[c == 'x' for c in row] for row in text.split()])


def text(segments, pos=None):
    """Tokens of these segments, by default one after the other."""
    segments_BT = jnp.array(segments)
    pos_BT = jnp.broadcast_to(jnp.arange(segments_BT.shape[1])[None], segments_BT.shape)
    return Text(
        jnp.ones_like(segments_BT),
        segments_BT,
        pos_BT if pos is None else jnp.array(pos),
    )


def test_a_token_sees_its_own_sentence_and_no_padding():
    rows = text([[1, 1, 2, 2, 0]])
    mask_BHTS = rows.sees(rows)
    assert mask_BHTS.shape == (1, 1, 5, 5) and mask_BHTS.dtype == bool
    np.testing.assert_array_equal(
        mask_BHTS[0, 0], matrix('xx... xx... ..xx. ..xx. .....')
    )


def test_a_target_sees_the_source_of_its_own_sentence():
    mask_BHTS = text([[1, 2, 2], [1, 1, 0]]).sees(text([[1, 1, 2, 0], [1, 0, 0, 0]]))
    np.testing.assert_array_equal(mask_BHTS[0, 0], matrix('xx.. ..x. ..x.'))
    np.testing.assert_array_equal(mask_BHTS[1, 0], matrix('x... x... ....'))


def test_what_is_before_is_the_past_and_the_present():
    mask_BHTS = text([[1, 1, 1, 1]]).sees_before()
    assert mask_BHTS.shape == (1, 1, 4, 4) and mask_BHTS.dtype == bool
    np.testing.assert_array_equal(mask_BHTS[0, 0], matrix('x... xx.. xxx. xxxx'))


def test_what_is_before_goes_by_position_not_by_slot():
    mask_BHTS = text([[1] * 4, [1] * 4], [[1, 3, 0, 2], [5, 6, 4, 9]]).sees_before()
    np.testing.assert_array_equal(mask_BHTS[0, 0], matrix('x.x. xxxx ..x. x.xx'))
    np.testing.assert_array_equal(mask_BHTS[1, 0], matrix('x.x. xxx. ..x. xxxx'))


def test_what_is_before_in_a_packed_row():
    mask_BHTS = text([[1, 1, 2, 2, 2, 0]], [[0, 1, 0, 1, 2, 0]]).sees_before()
    expected = matrix('x..... xx.... ..x... ..xx.. ..xxx. ......')
    np.testing.assert_array_equal(mask_BHTS[0, 0], expected)


def test_rows_of_tokens_are_one_sentence_each_with_positions_counted_along_it():
    rows = Text.of(jnp.array([[7, 7, 0], [7, 0, 0], [7, 8, 9]]))
    assert rows.pos_BT.dtype == rows.segments_BT.dtype == jnp.int32
    np.testing.assert_array_equal(rows.pos_BT, [[0, 1, 0], [0, 0, 0], [0, 1, 2]])
    np.testing.assert_array_equal(rows.segments_BT, [[1, 1, 0], [1, 0, 0], [1, 1, 1]])
    assert Text.of(rows) is rows


def test_inputs_begin_with_a_start_token_whatever_its_number():
    tokens = jnp.array([[0, 7, 8, 0], [2, 7, 0, 0], [0, 0, 0, 0]])
    rows = Text.of_inputs(tokens)
    np.testing.assert_array_equal(
        rows.segments_BT, [[1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 0]]
    )
    np.testing.assert_array_equal(
        rows.pos_BT, [[0, 1, 2, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
    )
    np.testing.assert_array_equal(rows.tokens_BT, tokens)
    assert Text.of_inputs(rows) is rows
