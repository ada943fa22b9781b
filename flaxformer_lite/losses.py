"""Label-smoothed cross-entropy (paper §5.4; Szegedy et al. 2016), in float32."""

import functools

import jax
import jax.numpy as jnp
from flax import struct
from jax.typing import DTypeLike

from flaxformer_lite.dense import product, sum_of_rows
from flaxformer_lite.shapes import blocks

# Rows of logits held at a time: enough to keep the matrix units busy, few enough for the caches.
CHUNK = 512


class Sums(struct.PyTreeNode):
    """Sums over the tokens that count, float32 scalars.

    Attributes:
      loss: −Σ_v q(v) log p(v), in nats, q = (1 − ε) · label + ε / V over the whole vocabulary.
      nll: −log p(label), in nats; its mean's exponential is the perplexity.
      correct: 1 where no token is likelier than the label.
      tokens: 1.
    """

    loss: jax.Array
    nll: jax.Array
    correct: jax.Array
    tokens: jax.Array


def _chunk(h_ND, table_VD, labels_N, smoothing):
    """Logits' statistics for some rows, and the gradient of each row's loss by its logits."""
    logits_NV = jnp.einsum('nd,vd->nv', h_ND, table_VD, preferred_element_type=jnp.float32)
    top_N = logits_NV.max(-1)
    e_NV = jnp.exp(logits_NV - top_N[:, None])
    z_N = e_NV.sum(-1)
    log_z_N = top_N + jnp.log(z_N)
    is_label_NV = jnp.arange(logits_NV.shape[-1], dtype=jnp.int32)[None] == labels_N[:, None]
    label_N = jnp.sum(jnp.where(is_label_NV, logits_NV, 0.0), -1)
    loss_N = log_z_N - (1 - smoothing) * label_N - smoothing * logits_NV.mean(-1)
    q_NV = jnp.where(is_label_NV, 1 - smoothing, 0.0) + smoothing / logits_NV.shape[-1]
    return loss_N, log_z_N - label_N, label_N >= top_N, e_NV / z_N[:, None] - q_NV


def _sums(h_BTD, table_VD, labels_BT, smoothing, dtype, with_gradients):
    table_VD = table_VD.astype(dtype)

    def body(carry, chunk):
        sums, dtable_VD = carry
        h, labels = chunk
        h_ND, labels_N = h.reshape(-1, h.shape[-1]).astype(dtype), labels.reshape(-1)
        w_N = (labels_N != 0).astype(jnp.float32)
        loss_N, nll_N, correct_N, g_NV = _chunk(h_ND, table_VD, labels_N, smoothing)
        new = Sums(w_N @ loss_N, w_N @ nll_N, w_N @ correct_N.astype(jnp.float32), w_N.sum())
        sums = jax.tree.map(jnp.add, sums, new)
        if not with_gradients:
            return (sums, dtable_VD), None
        g_NV = (g_NV * w_N[:, None]).astype(dtype)
        dtable_VD += sum_of_rows(g_NV, h_ND)
        return (sums, dtable_VD), product(g_NV, table_VD).reshape(h.shape)

    zero = jnp.zeros((), jnp.float32)
    dtable_VD = jnp.zeros(table_VD.shape if with_gradients else (), jnp.float32)
    # Along T, so that a batch sharded over devices stays so.
    b, t, d = h_BTD.shape
    chunks = (blocks(x, 1, max(CHUNK // b, 1)) for x in (h_BTD, labels_BT))
    start = Sums(zero, zero, zero, zero), dtable_VD
    (sums, dtable_VD), dh_CBTD = jax.lax.scan(body, start, tuple(chunks))
    if not with_gradients:
        return sums, None
    return sums, (jnp.moveaxis(dh_CBTD, 0, 1).reshape(b, -1, d)[:, :t], dtable_VD)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def smoothed_cross_entropy(
    h_BTD: jax.Array,
    table_VD: jax.Array,
    labels_BT: jax.Array,
    smoothing: float = 0.0,
    dtype: DTypeLike = jnp.float32,
) -> Sums:
    """Sums of the loss of logits = h tableᵀ over the labels that are not 0 (padding).

    The logits are made a chunk of rows at a time and never stored: where a gradient is asked for,
    it is computed along with the loss. Only `loss` has one; the other sums are metrics.

    Args:
      h_BTD: the decoder's output, float32.
      table_VD: the output matrix, float32.
      labels_BT: int32, 0 = does not count.
      smoothing: ε, in [0, 1).
      dtype: of the products' operands; logits and all that follows are float32.
    """
    return _sums(h_BTD, table_VD, labels_BT, smoothing, dtype, with_gradients=False)[0]


def _forward(h_BTD, table_VD, labels_BT, smoothing, dtype):
    return _sums(h_BTD, table_VD, labels_BT, smoothing, dtype, with_gradients=True)


def _backward(smoothing, dtype, gradients, cotangents):
    dh_BTD, dtable_VD = gradients
    return dh_BTD * cotangents.loss, dtable_VD * cotangents.loss, None


smoothed_cross_entropy.defvjp(_forward, _backward)
