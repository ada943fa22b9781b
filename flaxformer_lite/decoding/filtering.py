"""Temperature, top-k and top-p filters for sampling."""

import jax
import jax.numpy as jnp


def filter_logits(
    logits_BV: jax.Array, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0
) -> jax.Array:
    """Returns logits / temperature, with −inf outside of the top k and the nucleus.

    The nucleus is the smallest set of the most likely tokens with probability ≥ p
    (Holtzman et al. 2020), among the top k. Ties go to the lower token id.

    Args:
      logits_BV: float32.
      temperature: Above 0.
      top_k: k, at least 0. 0 disables it.
      top_p: p, above 0 and at most 1, which disables it.

    Examples:
      >>> logits_BV = jnp.log(jnp.array([[0.5, 0.3, 0.15, 0.05]]))

      >>> jnp.isfinite(filter_logits(logits_BV, top_p=0.7)).tolist()
      [[True, True, False, False]]
    """
    logits_BV = logits_BV / temperature
    vocab_size = logits_BV.shape[-1]
    if top_k == 0 and top_p == 1:
        return logits_BV
    order_BV = jnp.argsort(-logits_BV, axis=-1)
    keep_V = jnp.arange(vocab_size) < (top_k or vocab_size)
    keep_BV = jnp.broadcast_to(keep_V[None], logits_BV.shape)
    if top_p < 1:
        sorted_BV = jnp.take_along_axis(logits_BV, order_BV, -1)
        p_BV = jax.nn.softmax(jnp.where(keep_BV, sorted_BV, -jnp.inf), -1)
        # Keep tokens whose preceding mass is below p: always the most likely one.
        mass_before_BV = jnp.cumsum(p_BV, -1) - p_BV
        keep_BV &= mass_before_BV < top_p
    keep_BV = jnp.put_along_axis(keep_BV, order_BV, keep_BV, -1, inplace=False)
    return jnp.where(keep_BV, logits_BV, -jnp.inf)
