"""Metrics: differentiable functions of logits that gradients and patching explain."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from flaxformer_lite.training.batch import Batch

# logits BTV → float32 B.
Metric = Callable[[jax.Array], jax.Array]


def label_log_p(batch: Batch, at_B: ArrayLike | None = None) -> Any:
    """Returns a metric: the log-probability of each row's labels, in nats.

    Args:
      at_B: Index of the only label to count in each row. Defaults to all labels except
        padding.

    Returns:
      A `Metric` that `jax.jit` accepts as an argument.
    """
    counts_BT = batch['target_segments'] > 0
    if at_B is not None:
        index_T = jnp.arange(counts_BT.shape[1])
        counts_BT &= index_T[None] == jnp.asarray(at_B)[:, None]
    return jax.tree_util.Partial(_label_log_p, batch['labels'], counts_BT)


def _label_log_p(labels_BT, counts_BT, logits_BTV):
    log_p_BTV = jax.nn.log_softmax(logits_BTV)
    log_p_BT1 = jnp.take_along_axis(log_p_BTV, labels_BT[..., None], -1)
    return jnp.where(counts_BT, log_p_BT1[..., 0], 0).sum(-1)


def logit_difference(at_B: ArrayLike, token_B: ArrayLike, other_B: ArrayLike) -> Any:
    """Returns a metric: the logit of a token minus that of another.

    Args:
      at_B: Index of the position in each row that predicts the token.
      token_B, other_B: The two tokens.

    Returns:
      A `Metric` that `jax.jit` accepts as an argument.
    """
    arrays = map(jnp.asarray, (at_B, token_B, other_B))
    return jax.tree_util.Partial(_logit_difference, *arrays)


def _logit_difference(at_B, token_B, other_B, logits_BTV):
    row_B = jnp.arange(len(logits_BTV))
    return logits_BTV[row_B, at_B, token_B] - logits_BTV[row_B, at_B, other_B]
