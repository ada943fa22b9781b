"""What a batch says of a model: its loss, and what it teaches."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
from flax import traverse_util

from flaxformer_lite.architectures.base import Model, Text
from flaxformer_lite.losses import Sums, smoothed_cross_entropy

Batch = Mapping[str, jax.Array]
# A batch's arrays, int32 (rows, length): tokens, 0 where there is none; inputs are the labels
# shifted right behind a start token; segments count a row's pairs from 1, positions are in each.
ARRAYS = (
    *('source', 'source_segments', 'source_positions'),
    *('inputs', 'labels', 'target_segments', 'target_positions'),
)

# What a model's parts may say while it trains: statistics to be kept for evaluation, additions to
# the loss (for each token), and metrics.
COLLECTED = ('statistics', 'losses', 'metrics')


def texts(batch: Batch) -> tuple[Text, Text]:
    """A batch's source and inputs."""

    def text(tokens: str, side: str) -> Text:
        return Text(batch[tokens], batch[f'{side}_segments'], batch[f'{side}_positions'])

    return text('source', 'source'), text('inputs', 'target')


def loss_sums(model: Model, variables: Any, batch: Batch, **settings: Any) -> Sums:
    """The loss's sums over a batch, with the settings of `forward`."""
    return forward(model, variables, batch, **settings)[0]


def forward(
    model: Model,
    variables: Any,
    batch: Batch,
    label_smoothing: float = 0.0,
    dropout_key: jax.Array | None = None,
    collected: tuple[str, ...] = (),
) -> tuple[Sums, Any]:
    """→ the loss's sums, and the collections of that name."""
    (h_BTD, table_VD), collections = model.apply(
        variables,
        *texts(batch),
        method='outputs',
        rngs=None if dropout_key is None else {'dropout': dropout_key},
        mutable=list(collected),
    )
    labels_BT = batch['labels']
    sums = smoothed_cross_entropy(h_BTD, table_VD, labels_BT, label_smoothing, model.dtype)
    return sums, collections


class Learnt(NamedTuple):
    """What a batch teaches: sums over its tokens.

    Attributes:
      sums: the loss's, without what the model's parts add to it.
      others: as `Metrics`, but sums over the parts of a batch.
      gradient: of the loss and what the model's parts add to it for each token.
    """

    sums: Sums
    others: dict[str, jax.Array]
    gradient: Any


def learn(
    model: Model,
    variables: Any,
    batch: Batch,
    dropout_key: jax.Array | None = None,
    label_smoothing: float = 0.0,
) -> tuple[Learnt, Any]:
    """Forward and backward → what a batch teaches, and the statistics as they are then."""

    def loss(params):
        sums, found = forward(
            model, variables | {'params': params}, batch, label_smoothing, dropout_key, COLLECTED
        )
        total = sums.loss
        for own in jax.tree.leaves(found.get('losses', {})):
            total += sums.tokens * own
        return total, (sums, _means(found.get('metrics', {})), found.get('statistics', {}))

    gradient, (sums, others, statistics) = jax.grad(loss, has_aux=True)(variables['params'])
    return Learnt(sums, others, gradient), statistics


def _means(metrics: Any) -> dict[str, jax.Array]:
    """{…: {name: (value,)}} of the layers that report it → their mean by name."""
    by_name: dict[str, list[jax.Array]] = {}
    for path, (value,) in traverse_util.flatten_dict(metrics).items():
        by_name.setdefault(path[-1], []).append(value)
    return {name: sum(values) / len(values) for name, values in by_name.items()}
