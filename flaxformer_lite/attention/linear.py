"""Linear attention (Katharopoulos et al. 2020, "Transformers are RNNs")."""

import jax
import jax.numpy as jnp
from flax import struct

from flaxformer_lite.attention.base import Attention, dot, over_last, refuse, with_one
from flaxformer_lite.shapes import KV, Path, for_each, take

# Scaled features whose product is less have nothing in common: its inverse is still a number.
_LEAST = 1e-30
# The logarithm of a scale that no feature has.
_LOWEST = -1e30


def feature(x: jax.Array, axis: int) -> tuple[jax.Array, jax.Array]:
    """φ(x) = elu(x) + 1, positive (equation 7), as exp(m) φ' → φ', m; φ' is at most 1 where m < 0.

    Far below 0 all of φ(x) = exp(x) would be rounded to 0. With the largest along `axis` taken out,
    the others keep their ratios to it. To gradients m is a constant: a scale cancels.
    """
    x = x.astype(jnp.float32)
    m = jax.lax.stop_gradient(jnp.minimum(x.max(axis, keepdims=True), 0.0))
    return jnp.where(x > 0, x + 1, jnp.exp(jnp.minimum(x, 0.0) - m)), m


class _Running(struct.PyTreeNode):
    """All that N hypotheses have seen, in a size that does not grow: exp(−m) Σ φ(k) [v, 1]ᵀ.

    Attributes:
      sum_BNHKU: the sums, scaled.
      m_BNH: the largest m of all keys.
    """

    sum_BNHKU: jax.Array
    m_BNH: jax.Array

    def insert(self, new: KV, path: Path) -> tuple['_Running', '_Running']:
        """Each hypothesis goes on from its parent's sum."""
        key_BHKN, m_BH1N = feature(new.key_BGKS, axis=2)
        before_BNH = take(self.m_BNH, path.parent_BN)
        own_BNH = jnp.moveaxis(m_BH1N[:, :, 0], 2, 1)
        m_BNH = jnp.maximum(before_BNH, own_BNH)
        old_BNHKU = take(self.sum_BNHKU, path.parent_BN)
        new_BNHKU = jnp.einsum('bhkn,bhun->bnhku', key_BHKN, with_one(new.value_BGUS))
        old_BNHKU *= jnp.exp(before_BNH - m_BNH)[..., None, None]
        new_BNHKU *= jnp.exp(own_BNH - m_BNH)[..., None, None]
        return (_Running(old_BNHKU + new_BNHKU, m_BNH),) * 2

    def grow(self, hypotheses: int, tokens: int) -> '_Running':
        return for_each(hypotheses, self)


class Linear(Attention):
    """φ(q) · Σ φ(k) vᵀ / φ(q) · Σ φ(k) over the keys that the mask shows.

    While decoding, the sums are carried from token to token; in training, where packing hides keys
    at will, it is computed pair by pair: softmax(log φ(q) · φ(k)), which is the same.
    """

    def scores(self, q_BTHK, kv):
        q_BTHK, _ = feature(q_BTHK, axis=3)  # its scale is the same for all keys
        key_BHKS, m_BH1S = feature(kv.key_BGKS, axis=2)
        product_BHTS = dot(q_BTHK, key_BHKS)
        is_seen_BHTS = product_BHTS > _LEAST
        log_BHTS = jnp.log(jnp.where(is_seen_BHTS, product_BHTS, 1.0)) + m_BH1S
        return jnp.where(is_seen_BHTS, log_BHTS, -jnp.inf)

    def __call__(self, q_BTHK, kv, *, bias_BHTS=None, relative=None, **others):
        refuse('linear', bias_BHTS, relative)
        if isinstance(kv, KV):
            return super().__call__(q_BTHK, kv, **others)
        b, n, h, k, u = kv.sum_BNHKU.shape
        q_BTHK, _ = feature(q_BTHK, axis=3)
        q_BNRHK = q_BTHK.reshape(b, n, -1, h, k)
        y_BNRHU = jnp.einsum('bnrhk,bnhku->bnrhu', q_BNRHK, kv.sum_BNHKU)
        return over_last(y_BNRHU.reshape(b, -1, h, u))

    def remember(self, kv, valid_BS):
        key_BHKS, m_BH1S = feature(kv.key_BGKS, axis=2)
        m_BH1S = jnp.where(valid_BS[:, None, None], m_BH1S, _LOWEST)
        m_BH11 = m_BH1S.max(3, keepdims=True, initial=_LOWEST)
        key_BHKS *= jnp.where(valid_BS[:, None, None], jnp.exp(m_BH1S - m_BH11), 0.0)
        sum_BHKU = jnp.einsum('bhks,bhus->bhku', key_BHKS, with_one(kv.value_BGUS))
        return _Running(sum_BHKU[:, None], m_BH11[:, None, :, 0, 0])
