"""Forgetting attention (Lin et al. 2025, "Forgetting Transformer")."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.attention.base import ScaledDotProduct


class Forgetting(ScaledDotProduct):
    """Softmax attention whose scores decay with forget gates: score_ij + Σ_l log f_l.

    The sum runs over the tokens l after key j, up to query i. Each token has one gate
    per head, f_l = σ(x_l · w + b), with b initialized to 0. The paper's models use no
    positions besides the gates.

    Source: Lin et al. 2025. Use it in a decoder instead of positions.

    Examples:
      >>> import flaxformer_lite as fl
      >>> gates = fl.attention.Forgetting()
      >>> model = fl.DecoderOnly(vocab_size=100, attention=gates)
    """

    per_head = True
    causal_only = True

    @nn.compact
    def key_features(self, x_BSD, sizes, dense):
        features = (sizes.num_heads,)
        gate = dense.copy(
            features=features, input_axes=1, bias=True, name='forget_gate'
        )
        log_f_BSH = jax.nn.log_sigmoid(gate(x_BSD))
        return jnp.moveaxis(log_f_BSH, 1, 2)

    def __call__(self, q_BTHK, kv, *, mask_BHTS, bias_BHTS=None, **others):
        decay_BHTS = _sums_after(kv.features_BHS, mask_BHTS)
        if bias_BHTS is not None:
            decay_BHTS += bias_BHTS
        return super().__call__(
            q_BTHK, kv, mask_BHTS=mask_BHTS, bias_BHTS=decay_BHTS, **others
        )


def _sums_after(x_BHS, mask_BHTS):
    """Returns Σ x_l over the keys l > s that the mask shows to query t, BHTS."""
    shown_BHTS = jnp.where(mask_BHTS, x_BHS[:, :, None], 0.0)
    suffix_sums_BHTS = jax.lax.cumsum(shown_BHTS, axis=3, reverse=True)
    return suffix_sums_BHTS - shown_BHTS
