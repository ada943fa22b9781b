"""Attribution of a metric to source and target tokens by gradients."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from flaxformer_explain.explanations.metrics import Metric
from flaxformer_explain.explanations.passes import activations, logits_with, prepare
from flaxformer_lite.interventions.actions import set_to
from flaxformer_lite.models.base import Model
from flaxformer_lite.training.batch import Batch

_EMBEDDINGS = ['*/embed']


class TokenAttribution(NamedTuple):
    """Attributions of a metric to the embeddings of tokens, float32.

    Attributes:
      source_BS: Source tokens.
      target_BT: Tokens that the decoder reads; the first is the start token.
    """

    source_BS: jax.Array
    target_BT: jax.Array


def gradient_times_input(
    model: Model, variables: Any, batch: Batch, metric: Metric
) -> TokenAttribution:
    """Returns gradient × input: Σ_d x_d ∂f/∂x_d for each embedding x.

    Source: Shrikumar et al. 2017, "Learning Important Features …".

    Args:
      metric: f, a function of the logits BTV that returns B.

    Raises:
      ValueError: As `logit_lens`.
    """
    model, variables = prepare(model, variables)
    inputs = _embeddings(model, variables, batch)
    slopes = _slopes(model, variables, batch, metric, inputs)
    return _by_token(batch, inputs, slopes)


def integrated_gradients(
    model: Model,
    variables: Any,
    batch: Batch,
    metric: Metric,
    steps: int = 50,
    baseline: Batch | None = None,
) -> TokenAttribution:
    """Returns integrated gradients (Sundararajan et al. 2017, equation 1).

    The attribution of an embedding x is Σ_d (x_d − x'_d) times the mean of ∂f/∂x_d(x' +
    α (x − x')) over α from 0 to 1, by the midpoint rule. The attributions of a row sum
    to f(x) − f(x').

    Args:
      steps: Number of gradients.
      baseline: Batch of the same shape whose embeddings are x'. Defaults to zeros.
        Models without absolute positions need a batch, such as one of unknown tokens,
        because norms hide the scale of x.

    Raises:
      ValueError: As `logit_lens`, `steps` is below 1, or `baseline` has another shape.
    """
    if steps < 1:
        raise ValueError(f'steps: {steps} is below 1. Use 20 or more.')
    model, variables = prepare(model, variables)
    inputs = _embeddings(model, variables, batch)
    start = jax.tree.map(jnp.zeros_like, inputs)
    if baseline is not None:
        start = _embeddings(model, variables, baseline)
        _check_shapes(inputs, start)
    change = jax.tree.map(jnp.subtract, inputs, start)

    def add_slopes(total, alpha):
        interpolated = jax.tree.map(lambda x, dx: x + alpha * dx, start, change)
        slopes = _slopes(model, variables, batch, metric, interpolated)
        return jax.tree.map(jnp.add, total, slopes), None

    alphas = (jnp.arange(steps) + 0.5) / steps
    total, _ = jax.lax.scan(add_slopes, jax.tree.map(jnp.zeros_like, inputs), alphas)
    mean = jax.tree.map(lambda x: x / steps, total)
    return _by_token(batch, change, mean)


def _embeddings(model, variables, batch):
    _, found = activations(model, variables, batch, _EMBEDDINGS)
    return {name: x.value for name, x in found.items()}


def _check_shapes(inputs, start):
    for name, x in inputs.items():
        if start[name].shape != x.shape:
            raise ValueError(
                f'baseline: its {name} has the shape {start[name].shape}, not '
                f'{x.shape}. Make both batches with the same `length`.'
            )


def _slopes(model, variables, batch, metric, embeddings):
    def total(embeddings):
        given = {name: set_to(x) for name, x in embeddings.items()}
        return metric(logits_with(model, variables, batch, given)).sum()

    return jax.grad(total)(embeddings)


def _by_token(batch, inputs, slopes) -> TokenAttribution:
    products = jax.tree.map(lambda x, slope: (x * slope).sum(-1), inputs, slopes)
    target_BT = products['decoder/embed']
    if 'encoder/embed' in products:
        return TokenAttribution(products['encoder/embed'], target_BT)
    source_length = batch['source'].shape[1]
    return TokenAttribution(target_BT[:, :source_length], target_BT[:, source_length:])
