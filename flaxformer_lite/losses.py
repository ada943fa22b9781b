"""Label-smoothed cross-entropy (paper §5.4; Szegedy et al. 2016), in float32."""

import functools

import jax
import jax.numpy as jnp
from flax import struct

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


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def smoothed_cross_entropy(
    h_BTD, table_VD, labels_BT, smoothing=0.0, dtype=jnp.float32
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
    # Nothing reads the gradients, and so the compiler leaves them out.
    return _forward(h_BTD, table_VD, labels_BT, smoothing, dtype)[0]


def _forward(h_BTD, table_VD, labels_BT, smoothing, dtype):
    table_VD = table_VD.astype(dtype)

    def add(carry, chunk):
        sums, dtable_VD = carry
        h, labels = chunk
        h_ND, labels_N = h.reshape(-1, h.shape[-1]).astype(dtype), labels.reshape(-1)
        logits_NV = jnp.einsum(
            'nd,vd->nv', h_ND, table_VD, preferred_element_type=jnp.float32
        )
        top_N = logits_NV.max(-1)
        e_NV = jnp.exp(logits_NV - top_N[:, None])
        z_N = e_NV.sum(-1)
        log_z_N = top_N + jnp.log(z_N)
        is_label_NV = (
            jnp.arange(len(table_VD), dtype=jnp.int32)[None] == labels_N[:, None]
        )
        label_N = jnp.sum(jnp.where(is_label_NV, logits_NV, 0.0), -1)
        loss_N = log_z_N - (1 - smoothing) * label_N - smoothing * logits_NV.mean(-1)
        w_N = (labels_N != 0).astype(jnp.float32)
        correct_N = (label_N >= top_N).astype(jnp.float32)
        new = Sums(w_N @ loss_N, w_N @ (log_z_N - label_N), w_N @ correct_N, w_N.sum())
        # The gradient of each row's loss by its logits.
        q_NV = jnp.where(is_label_NV, 1 - smoothing, 0.0) + smoothing / len(table_VD)
        g_NV = ((e_NV / z_N[:, None] - q_NV) * w_N[:, None]).astype(dtype)
        carry = jax.tree.map(jnp.add, sums, new), dtable_VD + sum_of_rows(g_NV, h_ND)
        return carry, product(g_NV, table_VD).reshape(h.shape)

    # Along T, so that a batch sharded over devices stays so.
    b, t, d = h_BTD.shape
    chunks = tuple(blocks(x, 1, max(CHUNK // b, 1)) for x in (h_BTD, labels_BT))
    start = Sums(*jnp.zeros(4)), jnp.zeros(table_VD.shape, jnp.float32)
    (sums, dtable_VD), dh_CBTD = jax.lax.scan(add, start, chunks)
    return sums, (jnp.moveaxis(dh_CBTD, 0, 1).reshape(b, -1, d)[:, :t], dtable_VD)


def _backward(smoothing, dtype, gradients, cotangents):
    return *(x * cotangents.loss for x in gradients), None


smoothed_cross_entropy.defvjp(_forward, _backward)
