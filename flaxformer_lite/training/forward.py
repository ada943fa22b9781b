"""The forward pass of a batch, up to what its logits are made of."""

from typing import Any

import jax

from flaxformer_lite.models.base import Model
from flaxformer_lite.training.batch import Batch, check_variables, source_and_inputs

# What parts of a model may write while it trains: running statistics, which evaluation
# reads; additions to the loss of a token; and metrics.
TRAINING_COLLECTIONS = ('batch_stats', 'losses', 'metrics')


def forward(
    model: Model, variables: Any, batch: Batch, key: jax.Array | None = None
) -> tuple[tuple[jax.Array, jax.Array, jax.Array | None], Any]:
    """Runs a model on a batch → what `Model.logit_factors` gives, and what parts wrote.

    Args:
      model: the model.
      variables: {'params': …} and running statistics.
      batch: the arrays of `training.batch.BATCH_ARRAYS`.
      key: of dropout. Exactly when it is given the model trains: dropout is on, and
        parts write `TRAINING_COLLECTIONS`.

    Raises:
      ValueError: `variables` are parameters alone, or the batch lacks an array.
    """
    check_variables(variables)
    trains = key is not None
    return model.apply(
        variables,
        *source_and_inputs(batch),
        method='logit_factors',
        rngs={'dropout': key} if trains else {},
        mutable=list(TRAINING_COLLECTIONS) if trains else [],
    )
