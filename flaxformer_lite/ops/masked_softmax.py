"""Softmax over the keys that a mask shows (paper §3.2.1, §3.2.3), in float32."""

import jax
import jax.numpy as jnp

from flaxformer_lite.ops.choose import choose


def reference(scores_BHTS: jax.Array, mask_BHTS: jax.Array) -> jax.Array:
    """Returns exp(s) / Σ exp(s) over keys with mask True; zeros if a row has no key.

    Examples:
      >>> print(reference(jnp.zeros(4), jnp.array([True, True, False, False])))
      [0.5 0.5 0.  0. ]
    """
    scores_BHTS = jnp.where(mask_BHTS, scores_BHTS, -jnp.inf)
    highest_BHT1 = jax.lax.stop_gradient(scores_BHTS.max(-1, keepdims=True))
    # Rows without keys have −∞ here; −∞ − −∞ would be NaN.
    highest_BHT1 = jnp.where(jnp.isfinite(highest_BHT1), highest_BHT1, 0.0)
    exp_BHTS = jnp.exp(scores_BHTS - highest_BHT1)
    sum_BHT1 = exp_BHTS.sum(-1, keepdims=True)
    # Such rows sum to 0; dividing by a tiny number would give tangents of 0 · ∞.
    return exp_BHTS / jnp.where(sum_BHT1 > 0, sum_BHT1, 1.0)


@jax.custom_vjp
def tuned(scores_BHTS: jax.Array, mask_BHTS: jax.Array) -> jax.Array:
    """Stores one array for the backward pass instead of three.

    The gradient needs only the weights w: w ⊙ (g − Σ w g).
    """
    return reference(scores_BHTS, mask_BHTS)


def _forward(scores_BHTS, mask_BHTS):
    weights_BHTS = tuned(scores_BHTS, mask_BHTS)
    return weights_BHTS, weights_BHTS


def _backward(weights_BHTS, g_BHTS):
    mean_BHT1 = (weights_BHTS * g_BHTS).sum(-1, keepdims=True)
    return weights_BHTS * (g_BHTS - mean_BHT1), None


tuned.defvjp(_forward, _backward)

masked_softmax = choose(reference, tuned)
