"""What the heads of a trained run attend to, in sentences that it reads and writes.

This imports JAX; the rest of a report does not.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.data.tokenizer import Tokenizer
from experiments.runtime import compilation, mesh
from flaxformer_lite import introspection
from flaxformer_lite.models.base import Model
from flaxformer_lite.training.batch import Batch, make_batch


class Attended(NamedTuple):
    """The weights of all heads for one sentence.

    Attributes:
      source, output: the texts.
      queries, keys: the pieces on the axes, by attention.
      weights: by attention, layer and head, rows of queries. An attention that does not
        hold its weights is left out.
    """

    source: str
    output: str
    queries: dict[str, list[str]]
    keys: dict[str, list[str]]
    weights: dict[str, list[list[list[list[float]]]]]


def attend(
    model: Model,
    variables: Any,
    tokenizer: Tokenizer,
    outputs: Sequence[tuple[str, str]],
) -> list[Attended]:
    """The weights for each sentence, without padding.

    Args:
      model, variables: as `introspection.record`.
      tokenizer: of the run.
      outputs: each sentence with what the decoder writes.
    """
    if not outputs:
        return []
    batch = pairs_batch(tokenizer, outputs)

    def attention_weights(variables: Any, batch: Batch) -> Any:
        return introspection.record(model, variables, batch, missing_ok=True).weights

    weights = run_once(attention_weights, variables, batch)
    found = []
    for i, (source, output) in enumerate(outputs):
        read = _pieces(tokenizer, batch['source'][i], batch['source_segments'][i])
        written = _pieces(tokenizer, batch['inputs'][i], batch['target_segments'][i])
        attended = Attended(source, output, {}, {}, {})
        for kind, layers in weights.items():
            _add(attended, kind, [layer[i] for layer in layers], read, written)
        found.append(attended)
    return found


def without_weights(model: Model, variables: Any, batch: Batch) -> list[str]:
    """The attentions that do not hold their weights, by shapes alone."""

    def record(variables: Any, batch: Batch) -> Any:
        return introspection.record(model, variables, batch, missing_ok=True)

    found = jax.eval_shape(record, variables, batch)
    return [kind for kind in found.heads if kind not in found.weights]


def pairs_batch(tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]]) -> Batch:
    """Sources and targets as one batch, a pair a row."""
    sources = tokenizer.encode([source for source, _ in pairs])
    targets = tokenizer.encode_target([target for _, target in pairs])
    special = tokenizer.special_tokens
    last = [] if tokenizer.source_end is None else [tokenizer.source_end]
    batch = make_batch(
        [ids + last for ids in sources],
        [[*ids, special.end] for ids in targets],
        special.start,
        special.padding,
    )
    return jax.device_put(batch, mesh.of().everywhere())


def run_once(function: Any, *arguments: Any) -> Any:
    """The result of a function on the host, by a program that is soon compiled."""
    program = compilation.compiled(jax.jit(function), *arguments, once=True)
    return jax.device_get(program(*arguments))


def _pieces(tokenizer: Tokenizer, ids: jax.Array, segments: jax.Array) -> list[str]:
    """How the tokens of a row are written; padding as nothing."""
    # The start token may be that of padding.
    pieces = tokenizer.pieces(np.asarray(ids).tolist())
    return np.where(np.asarray(segments) > 0, pieces, '').tolist()


def _add(
    attended: Attended,
    kind: str,
    layers: Sequence[np.ndarray],
    read: list[str],
    written: list[str],
) -> None:
    """Adds one attention's weights, by layer HTS, to those of a sentence."""
    own = read if kind == 'encoder' else written
    if layers[0].shape[1] == len(read) + len(written):
        own = read + written  # one stack reads both
    keys = read if kind.endswith('cross') else own
    rows = [i for i, piece in enumerate(own) if piece]
    columns = [i for i, piece in enumerate(keys) if piece]
    attended.queries[kind] = [own[i] for i in rows]
    attended.keys[kind] = [keys[i] for i in columns]
    attended.weights[kind] = [
        np.asarray(layer[:, rows][:, :, columns], np.float64).tolist()
        for layer in layers
    ]
