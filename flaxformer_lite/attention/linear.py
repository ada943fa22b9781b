"""Linear attention (Katharopoulos et al. 2020, "Transformers are RNNs")."""

import jax
import jax.numpy as jnp
from flax import struct

from flaxformer_lite.attention.base import Attention, dot, over_last, refuse, with_one
from flaxformer_lite.shapes import KV, Path, for_each, take


def feature(x: jax.Array) -> jax.Array:
    """φ(x) = elu(x) + 1, positive (equation 7)."""
    return jax.nn.elu(x.astype(jnp.float32)) + 1


class _Running(struct.PyTreeNode):
    """All that N hypotheses have seen, in a size that does not grow: Σ φ(k) [v, 1]ᵀ."""

    sum_BNHKU: jax.Array

    def insert(self, new: KV, path: Path) -> tuple['_Running', '_Running']:
        """Each hypothesis goes on from its parent's sum."""
        key_BHKN, value_BHUN = feature(new.key_BGKS), with_one(new.value_BGUS)
        now_BNHKU = jnp.einsum('bhkn,bhun->bnhku', key_BHKN, value_BHUN)
        return (_Running(take(self.sum_BNHKU, path.parent_BN) + now_BNHKU),) * 2

    def grow(self, hypotheses: int, tokens: int) -> '_Running':
        return for_each(hypotheses, self)


class Linear(Attention):
    """φ(q) · Σ φ(k) vᵀ / φ(q) · Σ φ(k) over the keys that the mask shows.

    While decoding, the sums are carried from token to token; in training, where packing hides keys
    at will, it is computed pair by pair.
    """

    def scores(self, q_BTHK, kv):
        return dot(feature(q_BTHK), feature(kv.key_BGKS))

    def weights(self, s_BHTS, mask_BHTS):
        s_BHTS = jnp.where(mask_BHTS, s_BHTS, 0.0)
        return s_BHTS / jnp.maximum(
            s_BHTS.sum(-1, keepdims=True), jnp.finfo(jnp.float32).tiny
        )

    def __call__(self, q_BTHK, kv, *, bias_BHTS=None, relative=None, **others):
        refuse('linear', bias_BHTS, relative)
        if isinstance(kv, KV):
            return super().__call__(q_BTHK, kv, **others)
        b, n, h, k, u = kv.sum_BNHKU.shape
        q_BNRHK = feature(q_BTHK).reshape(b, n, -1, h, k)
        y_BNRHU = jnp.einsum('bnrhk,bnhku->bnrhu', q_BNRHK, kv.sum_BNHKU)
        return over_last(y_BNRHU.reshape(b, -1, h, u))

    def remember(self, kv, valid_BS):
        key_BHKS = jnp.where(valid_BS[:, None, None], feature(kv.key_BGKS), 0.0)
        return _Running(
            jnp.einsum('bhks,bhus->bhku', key_BHKS, with_one(kv.value_BGUS))[:, None]
        )
