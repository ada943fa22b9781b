"""Linear attention (Katharopoulos et al. 2020, "Transformers are RNNs")."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax.typing import DTypeLike

from flaxformer_lite.attention.base import Attention, dot, refuse
from flaxformer_lite.shapes import KV, Path


def feature(x: jax.Array) -> jax.Array:
    """φ(x) = elu(x) + 1, positive (equation 7)."""
    return jax.nn.elu(x.astype(jnp.float32)) + 1


class _Running(struct.PyTreeNode):
    """All that N hypotheses have seen, in a size that does not grow: Σ φ(k) vᵀ and Σ φ(k)."""

    sum_BNHKU: jax.Array
    norm_BNHK: jax.Array

    def insert(self, new: KV, path: Path) -> '_Running':
        """Each hypothesis goes on from its parent's sums."""
        key_BNHK = feature(jnp.moveaxis(new.key_BGKS, -1, 1))
        value_BNHU = jnp.moveaxis(new.value_BGUS, -1, 1).astype(jnp.float32)
        sum_BNHKU, norm_BNHK = (_of_parents(x, path) for x in (self.sum_BNHKU, self.norm_BNHK))
        pairs_BNHKU = key_BNHK[..., :, None] * value_BNHU[..., None, :]
        return _Running(sum_BNHKU + pairs_BNHKU, norm_BNHK + key_BNHK)

    def grow(self, hypotheses: int, tokens: int) -> '_Running':
        """Zeros for each hypothesis at first; later there is nothing to grow."""

        def begin(x: jax.Array) -> jax.Array:
            return x if x.shape[1] else jnp.zeros((x.shape[0], hypotheses, *x.shape[2:]))

        return jax.tree.map(begin, self)


def _of_parents(x_BN: jax.Array, path: Path) -> jax.Array:
    return jax.vmap(lambda x_N, parent_N: x_N[parent_N])(x_BN, path.parent_BN)


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

    def empty(self, batch: int, heads: int, d_k: int, d_v: int, dtype: DTypeLike) -> _Running:
        return _Running(jnp.zeros((batch, 0, heads, d_k, d_v)), jnp.zeros((batch, 0, heads, d_k)))
