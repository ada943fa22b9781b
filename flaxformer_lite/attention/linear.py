"""Linear attention (Katharopoulos et al. 2020, "Transformers are RNNs")."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from flaxformer_lite.attention.base import Attention, dot, refuse
from flaxformer_lite.shapes import KV, Path, for_each


def feature(x: jax.Array) -> jax.Array:
    """φ(x) = elu(x) + 1, positive (equation 7)."""
    return jax.nn.elu(x.astype(jnp.float32)) + 1


class _Running(struct.PyTreeNode):
    """All that N hypotheses have seen, in a size that does not grow: Σ φ(k) vᵀ and Σ φ(k)."""

    sum_BNHKU: jax.Array
    norm_BNHK: jax.Array

    def insert(self, new: KV, path: Path) -> tuple['_Running', '_Running']:
        """Each hypothesis goes on from its parent's sums."""
        key_BNHK = feature(jnp.moveaxis(new.key_BGKS, -1, 1))
        value_BNHU = jnp.moveaxis(new.value_BGUS, -1, 1).astype(jnp.float32)
        now = _Running(key_BNHK[..., None] * value_BNHU[..., None, :], key_BNHK)
        running = jax.tree.map(lambda old, x: path.of_parents(old) + x, self, now)
        return running, running

    def grow(self, hypotheses: int, tokens: int) -> '_Running':
        return for_each(hypotheses, self)


class Linear(Attention):
    """φ(q) · Σ φ(k) vᵀ / φ(q) · Σ φ(k) over the keys that the mask shows.

    While decoding, the sums are carried from token to token; in training, where packing hides keys
    at will, it is computed pair by pair.
    """

    def scores(self, q_BTHK: jax.Array, kv: KV) -> jax.Array:
        return dot(feature(q_BTHK), feature(kv.key_BGKS))

    def weights(self, s_BHTS: jax.Array, mask_BHTS: jax.Array) -> jax.Array:
        s_BHTS = jnp.where(mask_BHTS, s_BHTS, 0.0)
        return s_BHTS / jnp.maximum(s_BHTS.sum(-1, keepdims=True), jnp.finfo(jnp.float32).tiny)

    def __call__(
        self, q_BTHK: jax.Array, kv: KV | _Running, *, bias_BHTS=None, relative=None, **others: Any
    ) -> jax.Array:
        refuse('linear', bias=bias_BHTS, relative=relative)
        if isinstance(kv, KV):
            return super().__call__(q_BTHK, kv, **others)
        b, n, h, k = kv.norm_BNHK.shape
        q_BNRHK = feature(q_BTHK).reshape(b, n, -1, h, k)
        y_BNRHU = jnp.einsum('bnrhk,bnhku->bnrhu', q_BNRHK, kv.sum_BNHKU)
        y_BNRHU = y_BNRHU / jnp.einsum('bnrhk,bnhk->bnrh', q_BNRHK, kv.norm_BNHK)[..., None]
        return y_BNRHU.reshape(b, -1, *y_BNRHU.shape[3:])

    def remember(self, kv: KV, valid_BS: jax.Array) -> _Running:
        key_BHKS = jnp.where(valid_BS[:, None, None], feature(kv.key_BGKS), 0.0)
        value_BHUS = kv.value_BGUS.astype(jnp.float32)
        sum_BHKU = jnp.einsum('bhks,bhus->bhku', key_BHKS, value_BHUS)
        return _Running(sum_BHKU[:, None], key_BHKS.sum(-1)[:, None])
