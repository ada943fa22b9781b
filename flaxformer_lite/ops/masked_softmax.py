"""Softmax over the keys that a mask shows (paper §3.2.1, §3.2.3), in float32."""

import jax
import jax.numpy as jnp

from flaxformer_lite.ops.choose import choose


def reference(scores_BHTS: jax.Array, mask_BHTS: jax.Array) -> jax.Array:
    """exp(s) / Σ exp(s) over the keys with mask True; zeros where there is none."""
    scores_BHTS = jnp.where(mask_BHTS, scores_BHTS, -jnp.inf)
    highest_BHT1 = jax.lax.stop_gradient(scores_BHTS.max(-1, keepdims=True))
    # A row without keys has −∞ here; −∞ − −∞ would be NaN.
    highest_BHT1 = jnp.where(jnp.isfinite(highest_BHT1), highest_BHT1, 0.0)
    exp_BHTS = jnp.exp(scores_BHTS - highest_BHT1)
    sum_BHT1 = exp_BHTS.sum(-1, keepdims=True)
    # Such a row sums to 0. Divided by a tiny number, it would have tangents of 0 · ∞.
    return exp_BHTS / jnp.where(sum_BHT1 > 0, sum_BHT1, 1.0)


@jax.custom_vjp
def tuned(scores_BHTS: jax.Array, mask_BHTS: jax.Array) -> jax.Array:
    """The same. Its gradient, w ⊙ (g − Σ w g), needs the weights w alone.

    The backward pass so keeps one array instead of three.
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
