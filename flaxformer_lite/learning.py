"""What a batch says of a model: its loss, and what it teaches."""

from collections.abc import Mapping
from typing import Any

import jax
from flax import traverse_util

from flaxformer_lite.architectures.base import Model
from flaxformer_lite.losses import Sums, smoothed_cross_entropy
from flaxformer_lite.text import Text

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

    def text(tokens, side):
        return Text(
            batch[tokens], batch[f'{side}_segments'], batch[f'{side}_positions']
        )

    return text('source', 'source'), text('inputs', 'target')


def loss_sums(model: Model, variables: Any, batch: Batch, **settings: Any) -> Sums:
    """The loss's sums over a batch, with the settings of `forward`."""
    return forward(model, variables, batch, **settings)[0]


def forward(
    model: Model,
    variables: Any,
    batch: Batch,
    label_smoothing=0.0,
    dropout_key=None,
    collected=(),
) -> tuple[Sums, Any]:
    """→ the loss's sums over a batch, and the collections of the names in `collected`."""
    rngs = None if dropout_key is None else {'dropout': dropout_key}
    (h_BTD, table_VD), collections = model.apply(
        variables, *texts(batch), method='outputs', rngs=rngs, mutable=list(collected)
    )
    labels_BT = batch['labels']
    sums = smoothed_cross_entropy(
        h_BTD, table_VD, labels_BT, label_smoothing, model.dense.dtype
    )
    return sums, collections


# What a batch teaches: its sums, the means over layers of what parts report of themselves, by name,
# and the gradient of the sum of its loss and what parts add to it.
Learnt = tuple[Sums, dict[str, jax.Array], Any]


def learn(
    model: Model, variables: Any, batch: Batch, **settings: Any
) -> tuple[Learnt, Any]:
    """With the settings of `forward` → what a batch teaches, and the statistics by then."""

    def loss(params):
        own = variables | {'params': params}
        sums, found = forward(model, own, batch, collected=COLLECTED, **settings)
        total = sums.loss
        for addition in jax.tree.leaves(found.get('losses', {})):
            total += sums.tokens * addition
        return total, (sums, found)

    gradient, (sums, found) = jax.grad(loss, has_aux=True)(variables['params'])
    by_name: dict[str, list[jax.Array]] = {}
    for path, (value,) in traverse_util.flatten_dict(found.get('metrics', {})).items():
        by_name.setdefault(path[-1], []).append(value)
    others = {name: sum(values) / len(values) for name, values in by_name.items()}
    return (sums, others, gradient), found.get('statistics', {})
