"""Linear attention (Katharopoulos et al. 2020, "Transformers are RNNs")."""

import jax
import jax.numpy as jnp
from flax import struct

from flaxformer_lite.attention.base import (
    Attention,
    append_one,
    check_no_positions,
    divide_by_last,
    dot_products,
)
from flaxformer_lite.kv_cache import BeamState, KeyValues, gather_beams, tile_beams

# Smaller products of scaled features count as 0. The inverse is finite in float32.
SMALLEST_PRODUCT = 1e-30
# A log scale below that of any feature.
MASK_VALUE = -1e30


def scaled_feature(x: jax.Array, axis: int) -> tuple[jax.Array, jax.Array]:
    """Computes φ(x) = elu(x) + 1 (equation 7) as exp(m) φ' and returns (φ', m).

    Factoring out the largest value along `axis` avoids underflow far below 0. Gradients
    treat m as a constant, because it cancels in the attention.
    """
    x = x.astype(jnp.float32)
    largest = jnp.minimum(x.max(axis, keepdims=True), 0.0)
    log_scale = jax.lax.stop_gradient(largest)
    above = x + 1
    below = jnp.exp(jnp.minimum(x, 0.0) - log_scale)
    return jnp.where(x > 0, above, below), log_scale


class _RunningSums(struct.PyTreeNode):
    """Decoding state of N hypotheses.

    Attributes:
      sum_BNHKU: exp(−m) Σ φ(k) [v, 1]ᵀ.
      log_scale_BNH: m, the largest over all keys.
    """

    sum_BNHKU: jax.Array
    log_scale_BNH: jax.Array

    def append(
        self, new: KeyValues, beam: BeamState
    ) -> tuple['_RunningSums', '_RunningSums']:
        key_BHKN, log_scale_BH1N = scaled_feature(new.key_BGKS, axis=2)
        new_log_scale_BNH = jnp.moveaxis(log_scale_BH1N[:, :, 0], 2, 1)
        old_log_scale_BNH = gather_beams(self.log_scale_BNH, beam.parent_BN)
        log_scale_BNH = jnp.maximum(old_log_scale_BNH, new_log_scale_BNH)

        old_scale_BNH = jnp.exp(old_log_scale_BNH - log_scale_BNH)
        old_BNHKU = gather_beams(self.sum_BNHKU, beam.parent_BN)
        old_BNHKU *= old_scale_BNH[..., None, None]

        new_scale_BNH = jnp.exp(new_log_scale_BNH - log_scale_BNH)
        value_BHUN = append_one(new.value_BGUS)
        new_BNHKU = jnp.einsum('bhkn,bhun->bnhku', key_BHKN, value_BHUN)
        new_BNHKU *= new_scale_BNH[..., None, None]
        sums = _RunningSums(old_BNHKU + new_BNHKU, log_scale_BNH)
        return sums, sums

    def allocate(self, hypotheses: int, tokens: int) -> '_RunningSums':
        return tile_beams(hypotheses, self)


class Linear(Attention):
    """Linear attention: φ(q) · Σ φ(k) vᵀ / φ(q) · Σ φ(k) over the visible keys.

    Decoding carries the sums from token to token. Training computes the equivalent
    softmax(log φ(q) · φ(k)) for all pairs.

    Source: Katharopoulos et al. 2020, equations 5 and 7. Use it if a decoding step must
    take the same time and memory for any length.

    Examples:
      >>> import flaxformer_lite as fl
      >>> model = fl.DecoderOnly(vocab_size=100, attention=fl.attention.Linear())
    """

    def scores(self, q_BTHK, kv):
        # The scale of a query is the same for all keys and cancels.
        q_BTHK, _ = scaled_feature(q_BTHK, axis=3)
        key_BHKS, log_scale_BH1S = scaled_feature(kv.key_BGKS, axis=2)
        product_BHTS = dot_products(q_BTHK, key_BHKS)
        is_positive_BHTS = product_BHTS > SMALLEST_PRODUCT
        product_BHTS = jnp.where(is_positive_BHTS, product_BHTS, 1.0)
        log_BHTS = jnp.log(product_BHTS) + log_scale_BH1S
        return jnp.where(is_positive_BHTS, log_BHTS, -jnp.inf)

    def __call__(
        self, q_BTHK, kv, *, bias_BHTS=None, relative_positions=None, **others
    ):
        check_no_positions(self, bias_BHTS, relative_positions)
        if isinstance(kv, KeyValues):
            return super().__call__(q_BTHK, kv, **others)
        batch, beams, num_heads, d_k, width = kv.sum_BNHKU.shape
        q_BTHK, _ = scaled_feature(q_BTHK, axis=3)
        # Grouped-query attention has several queries per hypothesis.
        q_BNRHK = q_BTHK.reshape(batch, beams, -1, num_heads, d_k)
        y_BNRHU = jnp.einsum('bnrhk,bnhku->bnrhu', q_BNRHK, kv.sum_BNHKU)
        y_BTHU = y_BNRHU.reshape(batch, -1, num_heads, width)
        return divide_by_last(y_BTHU)

    def init_cache(self, prefix, valid_BS):
        key_BHKS, log_scale_BH1S = scaled_feature(prefix.key_BGKS, axis=2)
        is_valid_B11S = valid_BS[:, None, None]
        log_scale_BH1S = jnp.where(is_valid_B11S, log_scale_BH1S, MASK_VALUE)
        largest_BH11 = log_scale_BH1S.max(3, keepdims=True, initial=MASK_VALUE)
        scale_BH1S = jnp.exp(log_scale_BH1S - largest_BH11)
        key_BHKS *= jnp.where(is_valid_B11S, scale_BH1S, 0.0)
        value_BHUS = append_one(prefix.value_BGUS)
        sum_BHKU = jnp.einsum('bhks,bhus->bhku', key_BHKS, value_BHUS)
        largest_BH = largest_BH11[:, :, 0, 0]
        # Decoding starts with one hypothesis per sentence.
        return _RunningSums(sum_BHKU[:, None], largest_BH[:, None])
