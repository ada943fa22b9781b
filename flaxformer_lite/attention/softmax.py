"""Scaled dot-product attention (paper §3.2.1, equation 1)."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.shapes import KV


@jax.custom_vjp
def masked_softmax(s_BHTS: jax.Array, mask_BHTS: jax.Array) -> jax.Array:
    """Softmax over the keys that the mask shows; zeros where it shows none.

    Its gradient, w · (g − Σ w g), needs the weights alone: a third of what would be kept for it.
    """
    s_BHTS = jnp.where(mask_BHTS, s_BHTS, -jnp.inf)
    top = s_BHTS.max(-1, keepdims=True)
    # The finite stand-in keeps -inf − -inf = NaN out of rows that see nothing.
    e_BHTS = jnp.exp(s_BHTS - jnp.where(jnp.isfinite(top), top, 0.0))
    return e_BHTS / jnp.maximum(e_BHTS.sum(-1, keepdims=True), jnp.finfo(jnp.float32).tiny)


def _softmax_forward(s_BHTS, mask_BHTS):
    w_BHTS = masked_softmax(s_BHTS, mask_BHTS)
    return w_BHTS, w_BHTS


def _softmax_backward(w_BHTS, g_BHTS):
    return w_BHTS * (g_BHTS - (w_BHTS * g_BHTS).sum(-1, keepdims=True)), None


masked_softmax.defvjp(_softmax_forward, _softmax_backward)


class Softmax(nn.Module):
    """softmax(Q Kᵀ / √d_k) V, the softmax over keys and in float32.

    A query whose keys are all masked gets zeros.
    """

    def __call__(
        self,
        q_BTHK: jax.Array,
        kv: KV,
        *,
        pos_BT: jax.Array,
        mask_BHTS: jax.Array,
        bias_BHTS: jax.Array | None = None,
    ) -> jax.Array:
        q_BTHK = q_BTHK * q_BTHK.shape[-1] ** -0.5
        s_BHTS = jnp.einsum(
            'bthk,bhks->bhts', q_BTHK, kv.key_BGKS, preferred_element_type=jnp.float32
        )
        if bias_BHTS is not None:
            s_BHTS = s_BHTS + bias_BHTS
        w_BHTS = masked_softmax(s_BHTS, mask_BHTS).astype(kv.value_BGUS.dtype)
        return jnp.einsum(
            'bhts,bhus->bthu', w_BHTS, kv.value_BGUS, preferred_element_type=jnp.float32
        )
