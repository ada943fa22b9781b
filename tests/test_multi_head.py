import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import linen as nn
from flaxformer_lite.dense import Dense
from flaxformer_lite.multi_head import MultiHead
from tiny import apply, float64, variables

from flaxformer_lite import spec
from flaxformer_lite.attention.softmax import Softmax
from flaxformer_lite.positions.base import Positions
from flaxformer_lite.positions.none import NoPositions
from flaxformer_lite.shapes import Places

# d_k, d_v and d_model / h differ from each other.
D, H, K, U = 12, 3, 5, 2
X = np.random.default_rng(0).normal(size=(2, 4, D))
Y = np.random.default_rng(1).normal(size=(2, 6, D))
MASK = np.random.default_rng(2).random((2, 1, 4, 6)) < 0.6
MASK[..., 0] = True


class Louder(Positions):
    """Stands for rotary positions: shows what was rotated, and by which positions."""

    def rotate(self, x_BTHK, pos_BT):
        return x_BTHK * (1.0 + pos_BT[:, :, None, None])


class Attention(nn.Module):
    """Queries of one row of tokens, keys and values of another."""

    heads: MultiHead

    def __call__(self, x, y, pos_x, pos_y, mask):
        kv = self.heads.keys_values(y, pos_y)
        return self.heads(x, kv, Places(pos_x, None, mask))


def run(x, y, mask, *, positions=None, **sizes):
    sizes = dict(d_model=D, num_heads=H, d_k=K, d_v=U) | sizes
    attention = Attention(
        MultiHead(**sizes, attend=Softmax(), positions=positions or NoPositions())
    )
    pos_x, pos_y = (
        jnp.broadcast_to(jnp.arange(z.shape[1])[None], z.shape[:2]) for z in (x, y)
    )
    arguments = (
        jnp.asarray(x, jnp.float32),
        jnp.asarray(y, jnp.float32),
        pos_x,
        pos_y,
        jnp.asarray(mask),
    )
    p = variables(attention, *arguments)
    return p['params']['heads'], apply(attention, p, *arguments)


def by_hand(p, x, y, mask, rotate=lambda z: z):
    """Σ over heads of softmax(x W_i^Q (y W_i^K)ᵀ / √d_k) y W_i^V W_i^O, one sentence at a time."""
    p = {name: float64(layer['kernel']) for name, layer in p.items()}
    out = np.zeros_like(x)
    for b in range(len(x)):
        for i in range(p['query'].shape[1]):
            q = rotate(x[b] @ p['query'][:, i])
            k = rotate(y[b] @ p['key'][:, i])
            e = np.exp(q @ k.T / np.sqrt(q.shape[-1])) * mask[b, 0]
            out[b] += (
                e / e.sum(-1, keepdims=True) @ (y[b] @ p['value'][:, i]) @ p['merge'][i]
            )
    return out


def test_is_the_concatenation_of_its_heads():
    p, out = run(X, Y, MASK)
    np.testing.assert_allclose(out, by_hand(p, X, Y, MASK), atol=1e-5)


def test_has_the_papers_matrices_without_biases():
    p, _ = run(X, Y, MASK)
    shapes = {name: {k: v.shape for k, v in layer.items()} for name, layer in p.items()}
    assert shapes == {
        'query': {'kernel': (D, H, K)},
        'key': {'kernel': (D, H, K)},
        'value': {'kernel': (D, H, U)},
        'merge': {'kernel': (H, U, D)},
    }


def test_equals_linen():
    sizes = dict(num_heads=4, d_k=3, d_v=3)
    p, out = run(X, Y, MASK, **sizes)
    linen = nn.MultiHeadDotProductAttention(num_heads=4, use_bias=False)
    p = {'query': p['query'], 'key': p['key'], 'value': p['value'], 'out': p['merge']}
    x, y, mask = (
        jnp.asarray(X, jnp.float32),
        jnp.asarray(Y, jnp.float32),
        jnp.asarray(MASK),
    )
    expected = apply(linen, {'params': p}, x, y, mask=mask)
    np.testing.assert_allclose(out, expected, atol=1e-5)


@pytest.mark.parametrize('token', range(4))
def test_a_head_is_a_slice_of_features_and_not_of_tokens(token):
    # Split by a reshape without a transpose, "head 0" would be all of the first tokens.
    only_own = np.eye(4, 6, dtype=bool)[None, None]
    changed = Y.copy()
    changed[:, token] += 1.0
    _, out = run(X, Y, only_own)
    _, out_changed = run(X, changed, only_own)
    differs = np.abs(out - out_changed).max((0, 2)) > 1e-3
    np.testing.assert_array_equal(differs, np.arange(4) == token)


def test_positions_turn_queries_and_keys_and_leave_values():
    p, out = run(X, Y, MASK, positions=Louder())

    def rotate(z):
        return z * (1.0 + np.arange(len(z))[:, None])

    np.testing.assert_allclose(
        out, by_hand(p, X, Y, MASK, rotate), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16])
def test_keys_and_values_are_in_the_compute_dtype_and_the_output_is_float32(dtype):
    parts = dict(
        attend=Softmax(), positions=NoPositions(), dense=Dense((), dtype=dtype)
    )
    heads = MultiHead(D, H, K, U, **parts)
    x, pos = jnp.asarray(X, jnp.float32), jnp.broadcast_to(jnp.arange(4)[None], (2, 4))
    p = variables(heads, x, pos, method='keys_values')
    kv = apply(heads, p, x, pos, method='keys_values')
    assert kv.key_BGKS.shape == (2, H, K, 4) and kv.key_BGKS.dtype == dtype
    assert kv.value_BGUS.shape == (2, H, U, 4) and kv.value_BGUS.dtype == dtype
    mask = jnp.ones((1, 1, 4, 4), bool)
    p = variables(heads, x, kv, Places(pos, None, mask))
    assert apply(heads, p, x, kv, Places(pos, None, mask)).dtype == jnp.float32


class Biased(Attention):
    def __call__(self, x, y, pos_x, pos_y, mask, bias):
        kv = self.heads.keys_values(y, pos_y)
        return self.heads(x, kv, Places(pos_x, None, mask, bias_BHTS=bias))


@pytest.mark.parametrize('groups', [1, 2])
@pytest.mark.parametrize('name', tiny.here('attention'))
def test_heads_that_share_keys_are_heads_with_equal_ones(name, groups):
    """Grouped-query attention is multi-head attention whose groups repeat their keys' weights."""
    rng = np.random.default_rng(4)
    mask = rng.random((2, 4, 4, 6)) < 0.7
    mask[..., 0] = True
    bias = (
        None
        if name == 'linear'
        else jnp.asarray(rng.normal(size=(1, 4, 4, 6)), jnp.float32)
    )
    pos_x, pos_y = (
        jnp.broadcast_to(jnp.arange(z.shape[1])[None], z.shape[:2]) for z in (X, Y)
    )
    rows = [jnp.asarray(z, jnp.float32) for z in (X, Y)]
    arguments = *rows, pos_x, pos_y, jnp.asarray(mask), bias

    def made(**groups):
        attend = spec.make('flaxformer_lite.attention', name)
        return Biased(
            MultiHead(D, 4, 5, 2, attend=attend, positions=Louder(), **groups)
        )

    p = variables(made(num_kv_heads=groups), *arguments)
    y = apply(made(num_kv_heads=groups), p, *arguments)
    heads = dict(p['params']['heads'])
    assert heads['key']['kernel'].shape == (D, groups, 5)
    assert heads['value']['kernel'].shape == (D, groups, 2)
    for shared in ('key', 'value'):
        heads[shared] = {'kernel': jnp.repeat(heads[shared]['kernel'], 4 // groups, 1)}
    expected = apply(made(), {'params': {'heads': heads}}, *arguments)
    np.testing.assert_allclose(y, expected, atol=1e-5)


def test_without_projections_heads_are_slices():
    heads = MultiHead(
        D, 3, 4, 4, attend=Softmax(), positions=NoPositions(), project=False
    )
    pos_x, pos_y = (
        jnp.broadcast_to(jnp.arange(z.shape[1])[None], z.shape[:2]) for z in (X, Y)
    )
    rows = (jnp.asarray(z, jnp.float32) for z in (X, Y))
    y = apply(Attention(heads), {}, *rows, pos_x, pos_y, jnp.asarray(MASK))
    for b, i in np.ndindex(2, 3):
        own = slice(4 * i, 4 * i + 4)
        e = np.exp(X[b][:, own] @ Y[b][:, own].T / 2) * MASK[b, 0]
        expected = e / e.sum(-1, keepdims=True) @ Y[b][:, own]
        np.testing.assert_allclose(y[b][:, own], expected, atol=1e-5)


def test_the_outputs_width_is_free_of_the_inputs():
    p, y = run(X, Y, MASK, d_model=7)
    assert p['merge']['kernel'].shape == (H, U, 7) and y.shape == (2, 4, 7)
