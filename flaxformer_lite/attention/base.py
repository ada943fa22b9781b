"""What attentions have in common: scores, weights over keys, and the values' weighted sum."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.ranges import Checked
from flaxformer_lite.shapes import KV, Cache, Remembered


def dot(q_BTHK: jax.Array, key_BHKS: jax.Array) -> jax.Array:
    """q · k for each pair, float32 BHTS."""
    return jnp.einsum(
        'bthk,bhks->bhts', q_BTHK, key_BHKS, preferred_element_type=jnp.float32
    )


def weighted_sum(w_BHTS: jax.Array, value_BHUS: jax.Array) -> jax.Array:
    """Σ_s w_s v_s, float32 BTHU."""
    w_BHTS = w_BHTS.astype(value_BHUS.dtype)
    return jnp.einsum(
        'bhts,bhus->bthu', w_BHTS, value_BHUS, preferred_element_type=jnp.float32
    )


def with_one(value_BHUS: jax.Array) -> jax.Array:
    """[v, 1], so that one sum Σ w [v, 1] holds what `over_last` divides by."""
    return jnp.pad(value_BHUS, [(0, 0), (0, 0), (0, 1), (0, 0)], constant_values=1)


def over_last(y_BTHU: jax.Array) -> jax.Array:
    """Σ w v / Σ w; zeros where no weight is."""
    return y_BTHU[..., :-1] / jnp.where(y_BTHU[..., -1:] > 0, y_BTHU[..., -1:], 1.0)


@jax.custom_vjp
def masked_softmax(s_BHTS: jax.Array, mask_BHTS: jax.Array) -> jax.Array:
    """Softmax over the keys that the mask shows; zeros where it shows none.

    Its gradient, w · (g − Σ w g), needs the weights alone: a third of what would be kept else.
    """
    s_BHTS = jnp.where(mask_BHTS, s_BHTS, -jnp.inf)
    top = s_BHTS.max(-1, keepdims=True)
    # The finite stand-in keeps -inf − -inf = NaN out of rows that see nothing.
    e_BHTS = jnp.exp(s_BHTS - jnp.where(jnp.isfinite(top), top, 0.0))
    return e_BHTS / jnp.maximum(
        e_BHTS.sum(-1, keepdims=True), jnp.finfo(jnp.float32).tiny
    )


def _softmax_backward(w_BHTS, g_BHTS):
    return w_BHTS * (g_BHTS - (w_BHTS * g_BHTS).sum(-1, keepdims=True)), None


masked_softmax.defvjp(lambda *inputs: (masked_softmax(*inputs),) * 2, _softmax_backward)


def refuse(name: str, *given: Any) -> None:
    """Raises ValueError where positions ask for what an attention without weights cannot do."""
    if any(value is not None for value in given):
        raise ValueError(
            f'{name} attention holds no scores for these positions to act on: choose '
            'positions that act on embeddings, queries and keys, or attention=softmax'
        )


class Attention(Checked, nn.Module):
    """Σ_s w_s v_s with w = softmax(q · k_s / √d_k + bias). A variant overrides what it changes.

    A query that sees no key gets zeros. Where a group of heads shares keys, the group's queries
    come as so many queries of one head, or else, where heads have parameters of their own or mix
    (`per_head`), keys are repeated: heads of queries and of keys are always as many.
    """

    per_head: ClassVar[bool] = False

    def scores(self, q_BTHK: jax.Array, kv: KV) -> jax.Array:
        """How well each key fits each query, float32 BHTS."""
        return dot(q_BTHK * q_BTHK.shape[-1] ** -0.5, kv.key_BGKS)

    def weights(self, s_BHTS: jax.Array, mask_BHTS: jax.Array) -> jax.Array:
        """Of each key, float32 BHTS: 0 where the mask hides it."""
        return masked_softmax(s_BHTS, mask_BHTS)

    def __call__(
        self,
        q_BTHK: jax.Array,
        kv: KV,
        *,
        pos_BT,
        mask_BHTS,
        bias_BHTS=None,
        relative=None,
    ) -> jax.Array:
        """Queries in the compute dtype, which stand at int32 `pos_BT` → float32 BTHU.

        Args:
          mask_BHTS: bool, True = may attend.
          bias_BHTS: what positions add to the scores.
          relative: `Positions` that have a part in the scores and the sum of their own.
        """
        s_BHTS = self.scores(q_BTHK, kv)
        if relative is not None:
            s_BHTS = s_BHTS + relative.scores(q_BTHK, pos_BT, kv.pos_BS)
        if bias_BHTS is not None:
            s_BHTS = s_BHTS + bias_BHTS
        w_BHTS = self.weights(s_BHTS, mask_BHTS)
        self.sow('intermediates', 'weights', w_BHTS)
        y_BTHU = weighted_sum(w_BHTS, kv.value_BGUS)
        if relative is not None:
            y_BTHU = y_BTHU + relative.values(w_BHTS, pos_BT, kv.pos_BS)
        return y_BTHU

    def remember(self, kv: KV, valid_BS: jax.Array) -> Remembered:
        """What decoding begins with, where all hypotheses share these keys and values."""
        return Cache(kv, jax.tree.map(lambda x: x[..., :0], kv))
