"""What a batch says of a model: its loss, and what it teaches."""

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import traverse_util

from flaxformer_lite.architectures.base import Model
from flaxformer_lite.losses import Sums, smoothed_cross_entropy
from flaxformer_lite.text import Text

Batch = Mapping[str, jax.Array]
# Sentences, a row each: lists of tokens, or an array (rows, length) that is filled up with 0.
Sentences = Sequence[Sequence[int]] | jax.Array
# A batch's arrays, int32 (rows, length): tokens, 0 where there is none; inputs are the labels
# shifted right behind a start token; segments count a row's pairs from 1, positions are in each.
ARRAYS = (
    *('source', 'source_segments', 'source_positions'),
    *('inputs', 'labels', 'target_segments', 'target_positions'),
)
# What a model's parts may say while it trains: statistics to be kept for evaluation, additions to
# the loss (for each token), and metrics.
COLLECTED = ('statistics', 'losses', 'metrics')


def batch(source: Sentences, target: Sentences, bos: int = 2) -> dict[str, jax.Array]:
    """The arrays of `ARRAYS` for pairs of sentences, one pair a row.

    Args:
      source, target: as many rows each, of tokens as the model is to read and to write them, their
        end tokens included; 0 is padding.
      bos: the start token, which stands before each target in `inputs`.

    Returns:
      int32 arrays, the source's (rows, longest source) and the others (rows, longest target).

    Raises:
      ValueError: what is given is no rows of tokens, or not as many sources as targets.
    """
    source_BS, labels_BT = rows(source, 'source'), rows(target, 'target')
    if len(source_BS) != len(labels_BT):
        raise ValueError(
            f'there must be a target for each source: {len(source_BS)} sources and '
            f'{len(labels_BT)} targets were given'
        )
    first_B1 = jnp.full((len(labels_BT), 1), bos, jnp.int32)
    shifted_BT = jnp.concatenate([first_B1, labels_BT[:, :-1]], 1)
    read, written = Text.of(source_BS), Text.of(labels_BT)
    return {
        'source': source_BS,
        'source_segments': read.segments_BT,
        'source_positions': read.pos_BT,
        'inputs': jnp.where(written.valid_BT, shifted_BT, 0),
        'labels': labels_BT,
        'target_segments': written.segments_BT,
        'target_positions': written.pos_BT,
    }


def rows(sentences: Sentences, name: str) -> jax.Array:
    """Sentences as one int32 array, filled up with 0.

    Raises:
      ValueError: what is given is no rows of tokens; `name` is what the message calls it.
    """
    if hasattr(sentences, 'ndim'):
        is_whole = jnp.issubdtype(sentences.dtype, jnp.integer)
        if not (sentences.ndim == 2 and sentences.shape[1] and is_whole):
            raise ValueError(
                f'{name} must be whole numbers (rows, length), not '
                f'{sentences.dtype} {sentences.shape}'
            )
        return jnp.asarray(sentences, jnp.int32)
    try:
        lists = [[operator.index(token) for token in row] for row in sentences]
    except TypeError:
        raise ValueError(f'{name} must be rows of tokens, a list for each') from None
    for i, row in enumerate(lists):
        if row and not 0 < min(row) <= max(row) < 2**31:
            raise ValueError(
                f'{name}, row {i}: tokens must be above 0, which is padding'
            )
    length = max([1, *map(len, lists)])
    padded = [row + [0] * (length - len(row)) for row in lists]
    return jnp.asarray(padded, jnp.int32).reshape(len(lists), length)


def check_variables(variables: Any) -> None:
    """Raises ValueError where parameters alone are given."""
    if not (isinstance(variables, Mapping) and 'params' in variables):
        raise ValueError(
            "variables are wanted, {'params': …}, as model.init and State.variables give them; "
            'parameters alone were given'
        )


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
    """→ the loss's sums over a batch, and the collections of the names in `collected`.

    Raises:
      ValueError: `variables` are parameters alone.
    """
    check_variables(variables)
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
