"""Tests of multi-head attention against its formula, head by head."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import linen as nn
from tiny import apply, float64, normal, sigmoid, slow, variables

from flaxformer_lite.attention.blockwise import Blockwise
from flaxformer_lite.attention.differential import Differential
from flaxformer_lite.attention.differential_v2 import DifferentialV2
from flaxformer_lite.attention.forgetting import Forgetting
from flaxformer_lite.attention.gated import Gated
from flaxformer_lite.attention.softmax import Softmax
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
FOUR_HEADS = Sizes(d_model=D, num_heads=4, num_kv_heads=4, d_k=K, d_v=U)
X, Y = normal(2, 4, D), normal(2, 6, D, seed=1)
MASK = np.random.default_rng(2).random((2, 1, 4, 6)) < 0.6
MASK[..., 0] = True


class ScaledByPosition(Positions):
    """A stub of rotary positions that does not commute with a gain per feature."""

    def rotate(self, x_BTHK, positions_BT):
        return jnp.roll(x_BTHK, 1, -1) * (1.0 + positions_BT[:, :, None, None])


def scaled_by_position(x_THK):
    factors = 1.0 + np.arange(len(x_THK))
    return np.roll(x_THK, 1, -1) * factors.reshape(-1, *[1] * (x_THK.ndim - 1))


class Attention(nn.Module):
    heads: MultiHeadAttention

    def __call__(self, x, y, positions_x, positions_y, mask, bias=None):
        kv = self.heads.project_kv(y, positions_y)
        context = AttentionContext(positions_x, mask, bias_BHTS=bias)
        return self.heads(x, kv, context)


def arguments_of(x, y, mask):
    def positions_of(x_BTD):
        return jnp.broadcast_to(jnp.arange(x_BTD.shape[1])[None], x_BTD.shape[:2])

    inputs = jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)
    return *inputs, positions_of(x), positions_of(y), jnp.asarray(mask)


ARGUMENTS = arguments_of(X, Y, MASK)


def multi_head(sizes=SIZES, **parts):
    defaults = dict(core_attention=Softmax(), positions=NoPositions())
    return MultiHeadAttention(sizes=sizes, **defaults | parts)


def run(heads, arguments=ARGUMENTS):
    """Returns the weights of the core attention, all others, and the results."""
    p = variables(Attention(heads), *arguments)
    found = apply(Attention(heads), p, *arguments)
    weights = float64(p.get('params', {}).get('heads', {}))
    core = weights.pop('core_attention', {})
    return core, {k: x['kernel'] for k, x in weights.items()}, found


def attention_weights(q, key, mask):
    e = np.exp(q @ key.T / np.sqrt(q.shape[-1])) * mask
    return e / e.sum(-1, keepdims=True)


def sum_of_heads(p, rotate=lambda x: x, gate_DHU=None):
    """Returns Σ_i g_i ⊙ softmax(x W_i^Q (y W_i^K)ᵀ / √d_k) y W_i^V W_i^O over heads i.

    The gate g_i is σ(x W_i^G), or 1.
    """
    out = np.zeros_like(X)
    for b, i in np.ndindex(len(X), p['query'].shape[1]):
        q, k = rotate(X[b] @ p['query'][:, i]), rotate(Y[b] @ p['key'][:, i])
        head = attention_weights(q, k, MASK[b, 0]) @ (Y[b] @ p['value'][:, i])
        if gate_DHU is not None:
            head = head * sigmoid(X[b] @ gate_DHU[:, i])
        out[b] += head @ p['out_proj'][i]
    return out


def test_output_sums_the_projected_heads():
    _, p, out = run(multi_head())
    np.testing.assert_allclose(out, sum_of_heads(p), atol=1e-5)


def test_positions_rotate_queries_and_keys_but_not_values():
    _, p, out = run(multi_head(positions=ScaledByPosition()))
    expected = sum_of_heads(p, scaled_by_position)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize('offset', [0.0, 0.75])
def test_queries_and_keys_are_normalized_before_positions_rotate_them(offset):
    attention = Softmax(query_key_norm=True, query_key_offset=offset)
    heads = multi_head(core_attention=attention, positions=ScaledByPosition())
    norms, p, out = run(heads)

    def rotated(name):
        def rotate(x):
            x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
            return scaled_by_position(x * (offset + norms[f'{name}_norm']['scale']))

        return rotate

    expected = np.zeros_like(X)
    for b, i in np.ndindex(2, H):
        q = rotated('query')(X[b] @ p['query'][:, i])
        k = rotated('key')(Y[b] @ p['key'][:, i])
        head = attention_weights(q, k, MASK[b, 0]) @ (Y[b] @ p['value'][:, i])
        expected[b] += head @ p['out_proj'][i]
    np.testing.assert_allclose(out, expected, atol=1e-5)


@pytest.mark.ci
@pytest.mark.parametrize('start_at_one', [False, True])
@pytest.mark.parametrize(('gates', 'per_head'), [('elements', U), ('heads', 1)])
def test_gates_of_the_input_scale_each_head(gates, per_head, start_at_one):
    attention = Gated(gates=gates, start_at_one=start_at_one)
    heads = multi_head(core_attention=attention)
    core, p, out = run(heads)
    gate_DHU = core['head_gate']['kernel']
    assert gate_DHU.shape == (D, H, per_head)
    expected = (1 + start_at_one) * sum_of_heads(p, gate_DHU=gate_DHU)
    np.testing.assert_allclose(out, expected, atol=1e-5)
    if start_at_one:
        first = jax.jit(Attention(heads).init)(jax.random.key(0), *ARGUMENTS)
        core = first['params']['heads']['core_attention']
        assert not core['head_gate']['kernel'].any()


def test_class_derived_from_two_attentions_gates_the_second():
    class GatedBlockwise(Gated, Blockwise):
        pass

    core, p, out = run(multi_head(core_attention=GatedBlockwise(block=2)))
    expected = sum_of_heads(p, gate_DHU=core['head_gate']['kernel'])
    np.testing.assert_allclose(out, expected, atol=1e-5)


@pytest.mark.ci
@pytest.mark.parametrize('layer', [1, 4])
def test_differential_heads_subtract_the_second_map_of_a_pair(layer):
    """Equations 1 to 3 of Ye et al. (2024), whose layers are numbered from 1."""
    with running_layer(LayerScope(index=layer - 1)):
        attention = Attention(multi_head(FOUR_HEADS, core_attention=Differential()))
        weights = variables(attention, *ARGUMENTS)
        out = attention.apply(weights, *ARGUMENTS)
    p = float64(weights['params']['heads'])
    own = p.pop('core_attention')
    p = {name: x['kernel'] for name, x in p.items()}
    (q1, q2), (k1, k2) = own['lambda_query'], own['lambda_key']
    initial = 0.8 - 0.6 * np.exp(-0.3 * (layer - 1))
    factor = np.exp(q1 @ k1) - np.exp(q2 @ k2) + initial
    expected = np.zeros_like(X)
    for b, i in np.ndindex(2, 2):
        first, second = (
            attention_weights(
                X[b] @ p['query'][:, j], Y[b] @ p['key'][:, j], MASK[b, 0]
            )
            for j in (i, i + 2)
        )
        value = np.concatenate([Y[b] @ p['value'][:, j] for j in (i, i + 2)], -1)
        head = (first - factor * second) @ value
        head /= np.sqrt((head**2).mean(-1, keepdims=True) + 1e-5)
        head *= (1 - initial) * own['pair_norm']['scale']
        expected[b] += head @ np.concatenate([p['out_proj'][j] for j in (i, i + 2)])
    np.testing.assert_allclose(out, expected, atol=1e-5)


def test_lambda_rate_scales_the_vectors_of_lambda():
    """Adam moves every parameter equally, so λ moves in proportion to the rate."""
    plain, scaled = (
        Attention(multi_head(FOUR_HEADS, core_attention=Differential(**settings)))
        for settings in ({}, {'lambda_rate': 0.25})
    )
    p = variables(plain, *ARGUMENTS)
    heads = p['params']['heads']
    core = {
        name: x / 0.25 if name.startswith('lambda') else x
        for name, x in heads['core_attention'].items()
    }
    other = {'params': {'heads': heads | {'core_attention': core}}}
    expected = apply(plain, p, *ARGUMENTS)
    np.testing.assert_allclose(apply(scaled, other, *ARGUMENTS), expected, atol=1e-6)


def test_differential_v2_subtracts_the_second_head_that_shares_a_key():
    """The authors' code of 2026: heads 2i and 2i + 1 read key head i."""
    sizes = Sizes(d_model=D, num_heads=2 * H, num_kv_heads=H, d_k=K, d_v=U)
    core, p, out = run(multi_head(sizes, core_attention=DifferentialV2()))
    assert p['out_proj'].shape == (H, U, D)
    expected = np.zeros_like(X)
    for b, i in np.ndindex(2, H):
        key, value = (Y[b] @ p[name][:, i] for name in ('key', 'value'))
        first, second = (
            attention_weights(X[b] @ p['query'][:, j], key, MASK[b, 0]) @ value
            for j in (2 * i, 2 * i + 1)
        )
        share = sigmoid(X[b] @ core['lambda']['kernel'][:, i])
        expected[b] += (first - share[:, None] * second) @ p['out_proj'][i]
    np.testing.assert_allclose(out, expected, atol=1e-5)


def test_differential_attention_rejects_odd_heads_and_missing_projections():
    for kind in (Differential, DifferentialV2):
        with pytest.raises(ValueError, match='num_heads=3 must be even'):
            run(multi_head(core_attention=kind()))
    fields = dict(d_k=None, d_v=None, projections=False)
    with pytest.raises(ValueError, match='model.projections=False'):
        tiny.model(attention='differential_v2', **fields)


def test_forgetting_multiplies_weights_by_the_gates_after_the_key():
    """The gates are those of Lin et al. (2025), in two sentences of one row."""
    segment = np.array([1, 1, 1, 2, 2, 0])
    mask = np.tri(6, dtype=bool) & (segment[:, None] == segment) & (segment > 0)
    arguments = arguments_of(Y, Y, np.broadcast_to(mask, (2, 1, 6, 6)))
    heads = multi_head(core_attention=Forgetting())
    core, p, out = run(heads, arguments)
    gate = core['forget_gate']
    expected = np.zeros_like(Y)
    for b, h, i in np.ndindex(2, H, 5):
        q = Y[b, i] @ p['query'][:, h]
        keys = np.flatnonzero(mask[i])
        f = sigmoid(Y[b] @ gate['kernel'][:, h] + gate['bias'][h])
        e = [
            np.exp(q @ (Y[b, j] @ p['key'][:, h]) / np.sqrt(K))
            * np.prod(f[j + 1 : i + 1])
            for j in keys
        ]
        values = Y[b, keys] @ p['value'][:, h]
        expected[b, i] += np.array(e) / np.sum(e) @ values @ p['out_proj'][h]
    np.testing.assert_allclose(out, expected, atol=1e-5)


def groups_of_heads():
    """Yields each attention with one and two key heads for four query heads."""
    for name in tiny.here('attention'):
        is_fast = name in ('softmax', 'differential', 'talking_heads', 'linear')
        yield (name, 2) if is_fast else slow(name, 2)
        yield slow(name, 1)


@pytest.mark.ci
@pytest.mark.parametrize(('name', 'groups'), list(groups_of_heads()))
def test_heads_that_share_keys_equal_heads_with_copies_of_them(name, groups):
    rng = np.random.default_rng(4)
    mask = rng.random((2, 4, 4, 6)) < 0.7
    mask[..., 0] = True
    bias = None if name == 'linear' else tiny.normal32(1, 4, 4, 6, seed=4)
    arguments = *arguments_of(X, Y, mask), bias

    def attention(num_kv_heads):
        sizes = Sizes(d_model=D, num_heads=4, num_kv_heads=num_kv_heads, d_k=5, d_v=2)
        parts = dict(core_attention=variants.make('attention', name))
        return Attention(multi_head(sizes, positions=ScaledByPosition(), **parts))

    p = variables(attention(groups), *arguments)
    y = apply(attention(groups), p, *arguments)
    heads = dict(p['params']['heads'])
    assert heads['key']['kernel'].shape == (D, groups, 5)
    assert heads['value']['kernel'].shape == (D, groups, 2)
    for shared in ('key', 'value'):
        heads[shared] = {'kernel': jnp.repeat(heads[shared]['kernel'], 4 // groups, 1)}
    expected = apply(attention(4), {'params': {'heads': heads}}, *arguments)
    np.testing.assert_allclose(y, expected, atol=1e-5)


def test_heads_without_projections_are_slices_of_the_input():
    sizes = Sizes(d_model=D, num_heads=3, num_kv_heads=3, d_k=4, d_v=4)
    _, p, y = run(multi_head(sizes, projections=False))
    assert p == {}
    for b, i in np.ndindex(2, 3):
        own = slice(4 * i, 4 * i + 4)
        weights = attention_weights(X[b][:, own], Y[b][:, own], MASK[b, 0])
        np.testing.assert_allclose(y[b][:, own], weights @ Y[b][:, own], atol=1e-5)


@pytest.mark.parametrize('bias', [False, True])
def test_softmax_attention_equals_that_of_flax(bias):
    sizes = Sizes(d_model=D, num_heads=4, num_kv_heads=4, d_k=3, d_v=3)
    attention = Attention(multi_head(sizes, bias=bias))
    p = variables(attention, *ARGUMENTS)
    out = apply(attention, p, *ARGUMENTS)
    flax_attention = nn.MultiHeadDotProductAttention(num_heads=4, use_bias=bias)
    p = {k.removesuffix('_proj'): x for k, x in p['params']['heads'].items()}
    assert set(p) == {'query', 'key', 'value', 'out'}
    assert all(('bias' in layer) == bias for layer in p.values())
    x, y, *_, mask = ARGUMENTS
    expected = apply(flax_attention, {'params': p}, x, y, mask=mask)
    np.testing.assert_allclose(out, expected, atol=1e-5)
