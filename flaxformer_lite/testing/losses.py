"""Contracts of losses."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from flaxformer_lite.models.base import Model
from flaxformer_lite.testing import models, rows
from flaxformer_lite.testing.finding import Finding, from_condition, from_differences
from flaxformer_lite.testing.parts import small_model
from flaxformer_lite.training.batch import Batch
from flaxformer_lite.training.loss import as_loss, loss_and_grads

# The shape of all batches but one; each has a padding row and padding columns.
ROWS, COLUMNS = 4, 13
# Relative tolerance for sums in a different order.
ROUNDING = 1e-5


def loss_findings(
    loss: Any, model: Model | None = None, variables: Any = None
) -> list[Finding]:
    """Tests each contract of a loss and its gradients.

    Args:
      loss: A `teacher` argument receives the model.

    Raises:
      ValueError: The loss is unknown.
    """
    if model is None:
        model = small_model(architecture='decoder_only')
        variables = models.random_variables(model)
    loss_fn = as_loss(loss, teacher=model, teacher_variables=variables)
    run = _compile_loss(loss_fn, model, variables)
    pairs = [[pair] for pair in rows.PAIRS]
    whole = run(_pad_batch(pairs))
    each = [run(_pad_batch([pair])) for pair in pairs]
    together = jax.tree.map(lambda *x: sum(x), *each)
    finite = all((abs(x) < float('inf')).all() for x in jax.tree.leaves(whole))
    _, gradients = whole
    learns = any(x.any() for x in jax.tree.leaves(gradients))
    is_zero = not any(x.any() for x in jax.tree.leaves(run(_pad_batch([]))))
    return [
        from_condition(
            'the loss and its gradients are finite', finite, 'NaN or infinity'
        ),
        from_condition('gradients are not all zero', learns, 'all are 0'),
        from_condition('padding alone has zero loss', is_zero, 'the loss is not 0'),
        _compare('padding has no effect', run(rows.batch_of(pairs)), whole),
        _compare('losses of rows sum to the loss of the batch', together, whole),
        _compare(
            'the order of rows has no effect', run(_pad_batch(pairs[::-1])), whole
        ),
    ]


def _compile_loss(loss: Any, model: Model, variables: Any) -> Callable[[Batch], Any]:

    def learned(batch):
        output, _ = loss_and_grads(model, variables, batch, loss)
        return output.sums.loss, output.gradients

    program = jax.jit(learned, compiler_options=models.UNOPTIMISED)

    def run(batch):
        with models.exact_products():
            return jax.device_get(program(batch))

    return run


def _pad_batch(pairs: list[list[rows.Pair]]) -> Batch:
    batch = rows.batch_of([*pairs, *[[]] * (ROWS - len(pairs))])
    return {
        name: jnp.pad(x, [(0, 0), (0, COLUMNS - x.shape[1])])
        for name, x in batch.items()
    }


def _compare(contract: str, found: Any, expected: Any) -> Finding:
    loss, gradients = found
    expected_loss, expected_gradients = expected
    largest = max(float(abs(x).max()) for x in jax.tree.leaves(expected_gradients))
    changes = jax.tree.map(lambda x, y: abs(x - y).max(), gradients, expected_gradients)
    relative = max(map(float, jax.tree.leaves(changes))) / max(largest, 1.0)
    size = max(float(abs(expected_loss)), 1.0)
    of_loss = float(abs(loss - expected_loss)) / size
    differences = [
        (of_loss, 'the loss has a relative change of {}'),
        (relative, 'gradients change by {} relative to the largest'),
    ]
    return from_differences(contract, ROUNDING, differences)
