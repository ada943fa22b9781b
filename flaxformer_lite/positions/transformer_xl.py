"""Relative sinusoids in attention (Dai et al. 2019, "Transformer-XL", §3.3)."""

import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.positions.base import Positions, check_even, sinusoid_rates


class TransformerXL(Positions):
    """Relative sinusoids: scores + (q + v) · W_R r / √d_k.

    r are the sinusoids of query minus key position. Each attention has a matrix W_R and
    a vector v per head. The query bias of `attention_bias` is the paper's vector u in
    (q + u) · k.

    Source: Dai et al. 2019, §3.3. Use it to test relative positions that depend on the
    query.

    Raises:
      ValueError: d_model is odd.

    Examples:
      >>> import flaxformer_lite as fl
      >>> positions = fl.positions.TransformerXL()
      >>> model = fl.Transformer(vocab_size=100, positions=positions)
    """

    adds_scores = True
    per_head = True

    def __post_init__(self):
        check_even(self.sizes.d_model)
        super().__post_init__()

    def setup(self):
        sizes = self.sizes
        shape = (sizes.d_model, sizes.num_heads, sizes.d_k)
        init = nn.initializers.xavier_uniform(in_axis=0, out_axis=(1, 2))
        self.projection_DHK = self.param('projection', init, shape)
        self.bias_HK = self.param('bias', nn.initializers.zeros, shape[1:])

    def scores(self, q_BTHK, query_positions_BT, key_positions_BS):
        q_BTHK = q_BTHK.astype(jnp.float32) + self.bias_HK[None, None]
        by_feature_BHTD = jnp.einsum('bthk,dhk->bhtd', q_BTHK, self.projection_DHK)
        by_feature_BHTD *= self.sizes.d_k**-0.5
        of_sin, of_cos = jnp.split(by_feature_BHTD, 2, -1)
        sin, cos = self._sinusoids(query_positions_BT)
        sin = sin[:, None]
        cos = cos[:, None]
        sin_of_key, cos_of_key = self._sinusoids(key_positions_BS)
        # The sines and cosines of t − s follow from those of t and of s. This needs no
        # table of distances and sets no limit on them.
        of_sin_of_key = of_cos * sin - of_sin * cos
        by_sin = jnp.einsum('bhti,bsi->bhts', of_sin_of_key, sin_of_key)
        of_cos_of_key = of_sin * sin + of_cos * cos
        by_cos = jnp.einsum('bhti,bsi->bhts', of_cos_of_key, cos_of_key)
        return by_sin + by_cos

    def values(self, weights_BHTS, query_positions_BT, key_positions_BS):
        return 0.0

    def _sinusoids(self, positions_BT):
        rates = sinusoid_rates(self.sizes.d_model)
        positions_BT = positions_BT.astype(jnp.float32)
        angle = positions_BT[:, :, None] * rates[None, None]
        return jnp.sin(angle), jnp.cos(angle)
