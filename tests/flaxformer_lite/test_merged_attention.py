"""Tests of merged attention to target and source (T5Gemma 2, 2512.14856).

test_contracts covers cached decoding, test_masks the masks, test_build the errors.
"""

import jax.numpy as jnp
import numpy as np
import tiny

from flaxformer_lite.config import variants
from flaxformer_lite.config.schema import ModelConfig
from flaxformer_lite.masks import AttentionContext, TokenBatch

OF_SELF_ATTENTION = ('query', 'key', 'value', 'out_proj')


def turned(x_BTHK, positions_BT, wavelength=10000.0):
    """Applies RoPE with complex numbers made of features 2i and 2i + 1."""
    d_k = x_BTHK.shape[-1]
    rate = wavelength ** (-np.arange(0, d_k, 2) / d_k)
    turn = np.exp(1j * positions_BT[..., None, None] * rate)
    z = (x_BTHK[..., 0::2] + 1j * x_BTHK[..., 1::2]) * turn
    return np.stack([z.real, z.imag], -1).reshape(x_BTHK.shape)


def reference(p, x_BTD, e_BSD, positions_BT, mask_BTS):
    """Returns softmax(Q [K_source; K_own]ᵀ / √d_k) [V_source; V_own] W_o, in float64.

    Positions act on the decoder's own tokens only.
    """
    q, k, v, out = (p[name]['kernel'] for name in OF_SELF_ATTENTION)
    query = turned(np.einsum('btd,dhk->bthk', x_BTD, q), positions_BT)
    own = turned(np.einsum('btd,dhk->bthk', x_BTD, k), positions_BT)
    keys = np.concatenate([np.einsum('bsd,dhk->bshk', e_BSD, k), own], 1)
    both_BSD = np.concatenate([e_BSD, x_BTD], 1)
    values = np.einsum('bsd,dhu->bshu', both_BSD, v)
    scores = np.einsum('bthk,bshk->bhts', query, keys) / np.sqrt(q.shape[-1])
    weights = np.where(mask_BTS[:, None], np.exp(scores), 0)
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum('bhts,bshu,hud->btd', weights, values, out)


def test_it_is_one_softmax_over_the_keys_of_both():
    model = tiny.model(
        merged_attention=True, positions='rotary', attention='local(window=2)'
    )
    block = model.decoder.block
    p = tiny.parameters(model)['decoder']['layer_0']
    rng = np.random.default_rng(0)
    x_BTD, e_BSD = (rng.normal(size=(2, n, 12)) for n in (3, 4))
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

    # The window is over its own tokens alone, and of the source padding is hidden.
    own = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 1]], bool)
    mask_BTS = np.stack(
        [
            np.concatenate([np.tile(valid, (3, 1)), own], 1)
            for valid in np.array([[1, 1, 1, 1], [1, 1, 0, 0]], bool)
        ]
    )
    of_attention = tiny.float64(p['self_attention'])
    positions_BT = np.tile(np.arange(3), (2, 1))
    expected = reference(of_attention, x_BTD, e_BSD, positions_BT, mask_BTS)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_fields_of_attention_to_the_source_change_nothing():
    base = tiny.model(merged_attention=True)
    others = {
        'cross.attention': 'relu',
        'cross.positions': 'rotary',
        'cross.num_heads': 4,
        'cross.num_kv_heads': 1,
        'cross.d_k': 6,
        'cross.d_v': 5,
    }
    unused = variants.unused_fields(ModelConfig(merged_attention=True))
    assert others.keys() <= unused
    assert {name for name in unused if name.startswith('cross.')} == set(others)
    for field, value in others.items():
        assert tiny.model(merged_attention=True, **{field: value}) == base, field
