"""Per-token scores of given targets under a model."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import entr

from flaxformer_lite.ensembling import EnsembleModel, log_mean
from flaxformer_lite.models.base import Model
from flaxformer_lite.ops.loss_of_logits import logits_of
from flaxformer_lite.training.batch import Batch, check_variables
from flaxformer_lite.training.forward import forward

_ROWS = 1024  # rows of logits in memory at once


class TokenScores(NamedTuple):
    """Scores of each label of a batch, BT; 0 for padding.

    Attributes:
      log_p: float32, log p(label | source, previous labels), in nats.
      rank: int32, 1 + the number of tokens more likely than the label.
      entropy: float32, entropy of the predicted distribution, in nats.
    """

    log_p: jax.Array
    rank: jax.Array
    entropy: jax.Array


def log_probs(
    model: Model | EnsembleModel, variables: Any, batch: Batch
) -> TokenScores:
    """Computes each label's log-probability, rank and entropy, without dropout.

    It uses teacher forcing, so −`log_p` sums to `loss_sums(…).nll`. This includes a
    first token that `generate` forces, to which `generate` gives probability 1. The
    full logits are never materialized.

    Args:
      variables: {'params': …}.
      batch: Rows may be packed.

    Raises:
      ValueError: `variables` lacks the 'params' level, or the batch lacks an array.

    Examples:
      >>> import flaxformer_lite, functools
      >>> model = flaxformer_lite.config.build({'num_layers': 1}, vocab_size=10)

      >>> batch = flaxformer_lite.make_batch([[5, 1]], [[8, 1]], model=model, length=4)

      >>> pair = batch['source'], batch['inputs']
      >>> shapes = jax.eval_shape(model.init, jax.random.key(0), *pair)
      >>> scores = jax.eval_shape(functools.partial(log_probs, model), shapes, batch)

      >>> scores.log_p.shape, scores.rank.dtype
      ((1, 4), dtype('int32'))
    """
    check_variables(variables)
    is_ensemble = isinstance(model, EnsembleModel)
    members = model.members(variables) if is_ensemble else [(model, variables)]
    hidden, outputs = [], []
    for member, own in members:
        (hidden_BTD, table_VD, bias_V), _ = forward(member, own, batch)
        hidden.append(jnp.swapaxes(hidden_BTD, 0, 1))
        outputs.append((table_VD, bias_V))
    padding = model.special_tokens.padding

    def logits_at(hidden: Sequence[jax.Array]) -> jax.Array:
        logits_MBV = [
            logits_of(
                hidden_BD, output, member.dense.dtype, member.embeddings.logit_cap
            )
            for hidden_BD, output, (member, _) in zip(
                hidden, outputs, members, strict=True
            )
        ]
        return log_mean(logits_MBV) if is_ensemble else logits_MBV[0]

    def of_position(arrays: tuple[Sequence[jax.Array], jax.Array]) -> TokenScores:
        hidden, labels_B = arrays
        logits_BV = logits_at(hidden)
        label_B1 = labels_B[:, None]
        logit_B1 = jnp.take_along_axis(logits_BV, label_B1, 1)
        log_p_BV = jax.nn.log_softmax(logits_BV)
        log_p_B1 = jnp.take_along_axis(log_p_BV, label_B1, 1)
        is_likelier_BV = logits_BV > logit_B1
        found = TokenScores(
            log_p=log_p_B1[:, 0],
            rank=1 + is_likelier_BV.sum(1, dtype=jnp.int32),
            entropy=entr(jax.nn.softmax(logits_BV)).sum(1),
        )
        counts_B = labels_B != padding

        def zero_if_empty(x_B):
            return jnp.where(counts_B, x_B, 0)

        return jax.tree.map(zero_if_empty, found)

    # Map over T, so that the batch axis stays sharded.
    by_position = hidden, batch['labels'].T
    size = max(1, _ROWS // len(batch['labels']))
    scores = jax.lax.map(of_position, by_position, batch_size=size)
    return jax.tree.map(jnp.transpose, scores)
