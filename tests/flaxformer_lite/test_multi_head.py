"""Tests of multi-head attention against its formula, head by head."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import linen as nn
from tiny import apply, float64, variables

from flaxformer_lite.attention.blockwise import BlockwiseAttention
from flaxformer_lite.attention.differential import DifferentialAttention
from flaxformer_lite.attention.differential_v2 import DifferentialV2Attention
from flaxformer_lite.attention.forgetting import ForgettingAttention
from flaxformer_lite.attention.gated import GatedAttention
from flaxformer_lite.attention.softmax import SoftmaxAttention
from flaxformer_lite.config import variants
from flaxformer_lite.layer_scope import LayerScope, running_layer
from flaxformer_lite.layers.multi_head_attention import MultiHeadAttention
from flaxformer_lite.masks import AttentionContext
from flaxformer_lite.positions.base import Positions
from flaxformer_lite.positions.none import NoPositions
from flaxformer_lite.sizes import Sizes

# d_k, d_v and d_model / h differ from each other.
D, H, K, U = 12, 3, 5, 2
SIZES = Sizes(d_model=D, num_heads=H, num_kv_heads=H, d_k=K, d_v=U)
X = np.random.default_rng(0).normal(size=(2, 4, D))
Y = np.random.default_rng(1).normal(size=(2, 6, D))
MASK = np.random.default_rng(2).random((2, 1, 4, 6)) < 0.6
MASK[..., 0] = True


class Louder(Positions):
    """A stub of rotary positions that shows what was rotated, and by how much."""

    def rotate(self, x_BTHK, positions_BT):
        return x_BTHK * (1.0 + positions_BT[:, :, None, None])


class Attention(nn.Module):
    heads: MultiHeadAttention

    def __call__(self, x, y, positions_x, positions_y, mask, bias=None):
        kv = self.heads.project_kv(y, positions_y)
        context = AttentionContext(positions_x, mask, bias_BHTS=bias)
        return self.heads(x, kv, context)


def positions_of(x_BTD):
    return jnp.broadcast_to(jnp.arange(x_BTD.shape[1])[None], x_BTD.shape[:2])


def multi_head(sizes=SIZES, **parts):
    defaults = dict(core_attention=SoftmaxAttention(), positions=NoPositions())
    return MultiHeadAttention(sizes=sizes, **defaults | parts)


def run(x, y, mask, heads=None):
    attention = Attention(multi_head() if heads is None else heads)
    arguments = (
        jnp.asarray(x, jnp.float32),
        jnp.asarray(y, jnp.float32),
        positions_of(x),
        positions_of(y),
        jnp.asarray(mask),
    )
    p = variables(attention, *arguments)
    heads = p.get('params', {}).get('heads', {})
    return heads, apply(attention, p, *arguments)


def by_hand(p, x, y, mask, rotate=lambda z: z, gate_DHU=None):
    """Returns Σ_i g_i ⊙ softmax(x W_i^Q (y W_i^K)ᵀ / √d_k) y W_i^V W_i^O over heads i.

    The gate g_i is σ(x W_i^G), or 1.
    """
    p = {name: float64(layer['kernel']) for name, layer in p.items()}
    out = np.zeros_like(x)
    for b in range(len(x)):
        for i in range(p['query'].shape[1]):
            q = rotate(x[b] @ p['query'][:, i])
            k = rotate(y[b] @ p['key'][:, i])
            e = np.exp(q @ k.T / np.sqrt(q.shape[-1])) * mask[b, 0]
            weights = e / e.sum(-1, keepdims=True)
            head = weights @ (y[b] @ p['value'][:, i])
            if gate_DHU is not None:
                head = head / (1 + np.exp(-x[b] @ gate_DHU[:, i]))
            out[b] += head @ p['out_proj'][i]
    return out


def test_is_the_concatenation_of_its_heads():
    p, out = run(X, Y, MASK)
    np.testing.assert_allclose(out, by_hand(p, X, Y, MASK), atol=1e-5)


@pytest.mark.parametrize('offset', [0.0, 0.75])
def test_queries_and_keys_are_normed_before_positions_turn_them(offset):
    attention = SoftmaxAttention(query_key_norm=True, query_key_offset=offset)
    heads = multi_head(core_attention=attention, positions=Rolled())
    p, out = run(X, Y, MASK, heads)
    norms = {k: float64(x['scale']) for k, x in p.pop('core_attention').items()}
    norms = {k: offset + w for k, w in norms.items()}
    weights = {name: float64(layer['kernel']) for name, layer in p.items()}

    def normed(x, name):
        h = np.einsum('btd,dhk->bthk', x, weights[name])
        h /= np.sqrt((h**2).mean(-1, keepdims=True) + 1e-6)
        return turned(h * norms[f'{name}_norm'])

    q, k = normed(X, 'query'), normed(Y, 'key')
    scores = np.einsum('bthk,bshk->bhts', q, k) / np.sqrt(K)
    e = np.exp(scores) * MASK
    w = e / e.sum(-1, keepdims=True)
    v = np.einsum('bsd,dhu->bshu', Y, weights['value'])
    y = np.einsum('bhts,bshu->bthu', w, v)
    expected = np.einsum('bthu,hud->btd', y, weights['out_proj'])
    np.testing.assert_allclose(out, expected, atol=1e-5)


@pytest.mark.parametrize(('gates', 'per_head'), [('elements', U), ('heads', 1)])
def test_gates_of_the_input_scale_each_head_before_the_output(gates, per_head):
    heads = multi_head(core_attention=GatedAttention(gates=gates))
    p, out = run(X, Y, MASK, heads)
    gate_DHU = float64(p.pop('core_attention')['head_gate']['kernel'])
    assert gate_DHU.shape == (D, H, per_head)
    expected = by_hand(p, X, Y, MASK, gate_DHU=gate_DHU)
    np.testing.assert_allclose(out, expected, atol=1e-5)


@pytest.mark.parametrize(('gates', 'per_head'), [('elements', U), ('heads', 1)])
def test_gates_that_start_at_one_are_twice_the_sigmoid(gates, per_head):
    attention = GatedAttention(gates=gates, start_at_one=True)
    heads = multi_head(core_attention=attention)
    p, out = run(X, Y, MASK, heads)
    gate_DHU = float64(p.pop('core_attention')['head_gate']['kernel'])
    assert gate_DHU.shape == (D, H, per_head)
    expected = 2 * by_hand(p, X, Y, MASK, gate_DHU=gate_DHU)
    np.testing.assert_allclose(out, expected, atol=1e-5)

    arguments = jnp.float32(X), jnp.float32(Y), positions_of(X), positions_of(Y)
    initial = Attention(heads).init(jax.random.key(0), *arguments, jnp.asarray(MASK))
    core = initial['params']['heads']['core_attention']
    assert not core['head_gate']['kernel'].any()


def test_a_class_of_two_attentions_gates_the_second():
    class Gated(GatedAttention, BlockwiseAttention):
        pass

    p, out = run(X, Y, MASK, multi_head(core_attention=Gated(block=2)))
    gate_DHU = float64(p.pop('core_attention')['head_gate']['kernel'])
    expected = by_hand(p, X, Y, MASK, gate_DHU=gate_DHU)
    np.testing.assert_allclose(out, expected, atol=1e-5)


@pytest.mark.parametrize('layer', [1, 4])
def test_pairs_of_heads_are_the_differential_heads_of_a_layer(layer):
    """Equations 1 to 3 of Ye et al. (2024), whose layers are numbered from 1."""
    sizes = Sizes(d_model=D, num_heads=4, num_kv_heads=4, d_k=K, d_v=U)
    attention = Attention(multi_head(sizes, core_attention=DifferentialAttention()))
    x, y = (jnp.asarray(z, jnp.float32) for z in (X, Y))
    arguments = x, y, positions_of(X), positions_of(Y), jnp.asarray(MASK)
    p = variables(attention, *arguments)
    with running_layer(LayerScope(index=layer - 1)):
        out = attention.apply(p, *arguments)

    p = float64(p['params']['heads'])
    own = p.pop('core_attention')
    p = {name: x['kernel'] for name, x in p.items()}
    (q1, q2), (k1, k2) = own['lambda_query'], own['lambda_key']
    initial = 0.8 - 0.6 * np.exp(-0.3 * (layer - 1))
    factor = np.exp(q1 @ k1) - np.exp(q2 @ k2) + initial
    expected = np.zeros_like(X)
    for b, i in np.ndindex(2, 2):
        pair = [i, i + 2]

        def attention_map(head, b=b):
            q, k = X[b] @ p['query'][:, head], Y[b] @ p['key'][:, head]
            e = np.exp(q @ k.T / np.sqrt(K)) * MASK[b, 0]
            return e / e.sum(-1, keepdims=True)

        value = np.concatenate([Y[b] @ p['value'][:, head] for head in pair], -1)
        head = (attention_map(i) - factor * attention_map(i + 2)) @ value
        head /= np.sqrt((head**2).mean(-1, keepdims=True) + 1e-5)
        head *= (1 - initial) * own['pair_norm']['scale']
        expected[b] += head @ np.concatenate([p['out_proj'][j] for j in pair])
    np.testing.assert_allclose(out, expected, atol=1e-5)


def test_rate_of_lambda_scales_its_vectors():
    """Adam moves every parameter equally, so λ moves in proportion to the rate."""
    sizes = Sizes(d_model=D, num_heads=4, num_kv_heads=4, d_k=K, d_v=U)
    plain = multi_head(sizes, core_attention=DifferentialAttention())
    p, expected = run(X, Y, MASK, plain)
    slow = multi_head(sizes, core_attention=DifferentialAttention(lambda_rate=0.25))
    core = dict(p['core_attention'])
    for name in ('lambda_query', 'lambda_key'):
        core[name] = core[name] / 0.25
    params = {'params': {'heads': p | {'core_attention': core}}}
    arguments = (jnp.float32(X), jnp.float32(Y), positions_of(X), positions_of(Y))
    out = Attention(slow).apply(params, *arguments, jnp.asarray(MASK))
    np.testing.assert_allclose(out, expected, atol=1e-6)


def test_v2_subtracts_the_second_head_of_each_pair_that_shares_keys():
    """As the authors' code of 2026: heads 2i and 2i + 1 read key head i."""
    sizes = Sizes(d_model=D, num_heads=2 * H, num_kv_heads=H, d_k=K, d_v=U)
    heads = multi_head(sizes, core_attention=DifferentialV2Attention())
    p, out = run(X, Y, MASK, heads)
    lambda_DH = float64(p.pop('core_attention')['lambda']['kernel'])
    p = {name: float64(layer['kernel']) for name, layer in p.items()}
    assert p['out_proj'].shape == (H, U, D)
    expected = np.zeros_like(X)
    for b, i in np.ndindex(2, H):
        key, value = (Y[b] @ p[name][:, i] for name in ('key', 'value'))

        def attend(head, b=b, key=key, value=value):
            e = np.exp(X[b] @ p['query'][:, head] @ key.T / np.sqrt(K)) * MASK[b, 0]
            return e / e.sum(-1, keepdims=True) @ value

        share = 1 / (1 + np.exp(-X[b] @ lambda_DH[:, i]))
        head = attend(2 * i) - share[:, None] * attend(2 * i + 1)
        expected[b] += head @ p['out_proj'][i]
    np.testing.assert_allclose(out, expected, atol=1e-5)


@pytest.mark.parametrize('kind', [DifferentialAttention, DifferentialV2Attention])
def test_odd_number_of_differential_heads_is_rejected(kind):
    with pytest.raises(ValueError, match='must be even, not 3'):
        run(X, Y, MASK, multi_head(core_attention=kind()))


def test_combined_query_heads_need_projections():
    sizes = Sizes(d_model=D, num_heads=4, num_kv_heads=4, d_k=3, d_v=3)
    attention = DifferentialV2Attention()
    heads = multi_head(sizes, core_attention=attention, projections=False)
    with pytest.raises(ValueError, match='model.projections=False'):
        run(X, Y, MASK, heads)


def test_scores_decay_by_the_forget_gates_after_the_key():
    """The gates are those of Lin et al. (2025), in two sentences of one row."""
    segment = np.array([1, 1, 1, 2, 2, 0])
    mask = np.tri(6, dtype=bool) & (segment[:, None] == segment) & (segment > 0)
    masks = np.broadcast_to(mask, (2, 1, 6, 6))
    p, out = run(Y, Y, masks, multi_head(core_attention=ForgettingAttention()))
    gate = float64(p.pop('core_attention')['forget_gate'])
    p = {name: float64(layer['kernel']) for name, layer in p.items()}
    expected = np.zeros_like(Y)
    for b, h, i in np.ndindex(2, H, 5):
        q = Y[b, i] @ p['query'][:, h]
        keys = np.flatnonzero(mask[i])
        f = 1 / (1 + np.exp(-Y[b] @ gate['kernel'][:, h] - gate['bias'][h]))
        e = [
            np.exp(q @ (Y[b, j] @ p['key'][:, h]) / np.sqrt(K))
            * np.prod(f[j + 1 : i + 1])
            for j in keys
        ]
        values = Y[b, keys] @ p['value'][:, h]
        expected[b, i] += np.array(e) / np.sum(e) @ values @ p['out_proj'][h]
    np.testing.assert_allclose(out, expected, atol=1e-5)


class Rolled(Positions):
    """A stub of rotary positions that does not commute with a gain per feature."""

    def rotate(self, x_BTHK, positions_BT):
        return jnp.roll(x_BTHK, 1, -1) * (1.0 + positions_BT[:, :, None, None])


def turned(x_BTHK):
    return np.roll(x_BTHK, 1, -1) * (1.0 + np.arange(x_BTHK.shape[1]))[:, None, None]


def test_positions_turn_queries_and_keys_and_leave_values():
    p, out = run(X, Y, MASK, multi_head(positions=Louder()))

    def rotate(z):
        return z * (1.0 + np.arange(len(z))[:, None])

    np.testing.assert_allclose(
        out, by_hand(p, X, Y, MASK, rotate), rtol=1e-4, atol=1e-4
    )


def every_attention_of_groups():
    for name in tiny.here('attention'):
        yield name, 2
        marks = [] if name == 'softmax' else pytest.mark.slow
        yield pytest.param(name, 1, marks=marks)


@pytest.mark.parametrize(('name', 'groups'), list(every_attention_of_groups()))
def test_heads_that_share_keys_are_heads_with_equal_ones(name, groups):
    rng = np.random.default_rng(4)
    mask = rng.random((2, 4, 4, 6)) < 0.7
    mask[..., 0] = True
    bias = jnp.asarray(rng.normal(size=(1, 4, 4, 6)), jnp.float32)
    if name == 'linear':
        bias = None
    rows = [jnp.asarray(z, jnp.float32) for z in (X, Y)]
    arguments = *rows, positions_of(X), positions_of(Y), jnp.asarray(mask), bias

    def made(num_kv_heads):
        sizes = Sizes(d_model=D, num_heads=4, num_kv_heads=num_kv_heads, d_k=5, d_v=2)
        core_attention = variants.make('attention', name)
        return Attention(
            multi_head(sizes, core_attention=core_attention, positions=Louder())
        )

    p = variables(made(groups), *arguments)
    y = apply(made(groups), p, *arguments)
    heads = dict(p['params']['heads'])
    assert heads['key']['kernel'].shape == (D, groups, 5)
    assert heads['value']['kernel'].shape == (D, groups, 2)
    for shared in ('key', 'value'):
        heads[shared] = {'kernel': jnp.repeat(heads[shared]['kernel'], 4 // groups, 1)}
    expected = apply(made(4), {'params': {'heads': heads}}, *arguments)
    np.testing.assert_allclose(y, expected, atol=1e-5)


def test_without_projections_heads_are_slices():
    sizes = Sizes(d_model=D, num_heads=3, num_kv_heads=3, d_k=4, d_v=4)
    p, y = run(X, Y, MASK, multi_head(sizes, projections=False))
    assert p == {}
    for b, i in np.ndindex(2, 3):
        own = slice(4 * i, 4 * i + 4)
        e = np.exp(X[b][:, own] @ Y[b][:, own].T / 2) * MASK[b, 0]
        expected = e / e.sum(-1, keepdims=True) @ Y[b][:, own]
        np.testing.assert_allclose(y[b][:, own], expected, atol=1e-5)


@pytest.mark.parametrize('bias', [False, True])
def test_equals_linen(bias):
    sizes = Sizes(d_model=D, num_heads=4, num_kv_heads=4, d_k=3, d_v=3)
    p, out = run(X, Y, MASK, multi_head(sizes, bias=bias))
    linen = nn.MultiHeadDotProductAttention(num_heads=4, use_bias=bias)
    p = {('out' if name == 'out_proj' else name): layer for name, layer in p.items()}
    assert set(p) == {'query', 'key', 'value', 'out'}
    assert all(('bias' in layer) == bias for layer in p.values())
    x, y, mask = (
        jnp.asarray(X, jnp.float32),
        jnp.asarray(Y, jnp.float32),
        jnp.asarray(MASK),
    )
    expected = apply(linen, {'params': p}, x, y, mask=mask)
    np.testing.assert_allclose(out, expected, atol=1e-5)
