"""The forward pass of a batch, up to the factors of the logits."""

from typing import Any

import jax

from flaxformer_lite.models.base import Model
from flaxformer_lite.training.batch import Batch, check_variables, source_and_inputs

# Collections that modules write during training: running statistics for evaluation,
# auxiliary losses per token, and metrics.
TRAINING_COLLECTIONS = ('batch_stats', 'losses', 'metrics')


def forward(
    model: Model,
    variables: Any,
    batch: Batch,
    key: jax.Array | None = None,
    method: str = 'logit_factors',
) -> tuple[Any, Any]:
    """Returns a method's results for a batch, and the collections written.

    Args:
      variables: {'params': …} and running statistics.
      key: PRNG key for dropout. It selects training mode, in which modules write
        `TRAINING_COLLECTIONS`.
      method: 'logit_factors' or 'factors_of_heads' of `Model`.

    Raises:
      ValueError: `variables` lacks the 'params' level, or the batch lacks an array.
    """
    check_variables(variables)
    trains = key is not None
    return model.apply(
        variables,
        *source_and_inputs(batch),
        method=method,
        rngs={'dropout': key} if trains else {},
        mutable=list(TRAINING_COLLECTIONS) if trains else [],
    )
