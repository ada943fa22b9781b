"""Attributions of a run's target words to source and earlier target words."""

import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.data.packing import power_of_two
from experiments.data.sources.base import Pair
from experiments.data.tokenizers.base import UNK, Tokenizer
from experiments.errors import UserError
from experiments.evaluation.opened_run import OpenedRun
from flaxformer_explain import explanations
from flaxformer_explain.gold_scores import Maps, pool
from flaxformer_lite import introspection
from flaxformer_lite.training.batch import Batch

_MIN_LENGTH = 16  # minimum padded length, in tokens
_MIN_ROWS = 8  # minimum number of rows: words scored at once
_STEPS = 20  # steps of integrated gradients
_EMBEDDINGS = ['*/embed']

# Attention-based methods, then methods that attribute log-probabilities to tokens.
METHODS = {
    'attention': 'Weights of the step that writes a word, averaged over the heads.',
    'rollout': 'Attention rollout (Abnar and Zuidema 2020).',
    'gradient × input': 'Shrikumar et al. 2017.',
    'integrated gradients': f'Sundararajan et al. 2017, {_STEPS} steps from zeros.',
    'occlusion': 'Activation patching of an embedding by that of the unknown token.',
    'attribution patching': 'The first-order estimate of occlusion (Nanda 2023).',
}


class Attributor:
    """Explains each word of given targets by all methods.

    Attention is that of each layer, and the mean over layers. The other maps but
    rollout explain the log-probability of a word, given the words before it, by
    absolute values.

    The run must be an encoder-decoder that reads text and stores attention weights.
    """

    def __init__(self, run: OpenedRun):
        if run.tokenizer.reads_vectors or 'encoder' not in run.model.stacks():
            raise UserError(
                f'{run.path}: not an encoder-decoder that reads text. Choose another '
                'run.'
            )
        self._run = run
        self._attend = jax.jit(_attended, static_argnames='model')
        self._attribute = jax.jit(_attributed, static_argnames='model')

    def __call__(self, pair: Pair) -> dict[str, Maps]:
        """Returns the maps of a pair between its words, by method.

        Words are those of `word_of_piece`.
        """
        run = self._run
        batch = run.batch([pair])
        length = power_of_two(max(_MIN_LENGTH, *(x.shape[1] for x in batch.values())))
        batch = run.batch([pair], length=length)
        of_source, of_target = run.tokenizer.sides
        columns = word_of_piece(of_source, batch['source'][0].tolist())
        rows = word_of_piece(of_target, batch['labels'][0].tolist())
        inputs = [-1, *rows[:-1]]
        found = {}
        attended = self._attend(run.model, run.variables, batch)
        if not attended:
            raise UserError(
                f'{run.path}: its attention does not store weights. Choose another run.'
            )
        for name, (source_TS, target_TT) in jax.device_get(attended).items():
            source = pool(source_TS, rows, columns)
            found[name] = Maps(source, pool(target_TT, rows, inputs))
        words = max(rows) + 1
        count = max(_MIN_ROWS, power_of_two(words))
        is_counted_WT = np.equal.outer(np.arange(count), rows)
        own = self._attribute(run.model, run.variables, batch, is_counted_WT)
        each = list(range(words))
        for name, (source_WS, target_WT) in jax.device_get(own).items():
            source = pool(source_WS[:words], each, columns)
            target = pool(target_WT[:words], each, inputs)
            found[name] = Maps(np.abs(source), np.abs(target))
        return found


def word_of_piece(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    """Returns the word of each piece, split at spaces; -1 without letters or digits.

    A byte belongs to the word of its letter.
    """
    ids = list(ids)
    (whole,) = tokenizer.decode([ids])
    prefixes = tokenizer.decode([ids[:end] for end in range(1, len(ids) + 1)])
    words = [-1] * len(ids)
    first, start = 0, 0  # the first piece since the last letter, and its place in text
    for last, text in enumerate(prefixes):
        # Within a letter of several bytes, the text ends otherwise, or doesn't grow.
        if len(text) <= start or not whole.startswith(text):
            continue
        if any(_is_word_character(whole, i) for i in range(start, len(text))):
            for piece in range(first, last + 1):
                without = ids[first:piece] + ids[piece + 1 : last + 1]
                if tokenizer.decode([ids[:first] + without]) != [text]:
                    words[piece] = len(text.split()) - 1
        first, start = last + 1, len(text)
    return words


def _is_word_character(text: str, i: int) -> bool:
    """Returns whether a character is a letter, a digit or a mark on one."""
    while i and unicodedata.category(text[i]).startswith('M'):
        i -= 1
    return text[i].isalnum()


def _attended(model, variables, batch: Batch) -> dict[str, Any]:
    weights = introspection.record(
        model, variables, batch, missing_ok=True, names=()
    ).weights
    kinds = ('decoder cross', 'decoder')
    if not set(kinds) <= set(weights):
        return {}
    layers = [[x_BHTS[0].mean(0) for x_BHTS in weights[kind]] for kind in kinds]
    found = {'attention, mean of layers': tuple(sum(x) / len(x) for x in layers)}
    for i, maps in enumerate(zip(*layers, strict=True)):
        found[f'attention, layer {i}'] = maps
    rollout = explanations.attention_rollout(model, variables, batch)
    return {**found, 'rollout': tuple(rollout[kind][-1, 0] for kind in kinds)}


def _attributed(model, variables, batch: Batch, is_counted_WT) -> dict[str, Any]:
    words = len(is_counted_WT)
    rows = jax.tree.map(lambda x_1T: x_1T.repeat(words, 0), batch)
    metric = explanations.label_log_p({**rows, 'target_segments': is_counted_WT})
    given = model, variables, rows, metric
    padding = model.special_tokens.padding
    replaced = {
        name: jnp.where(rows[name] == padding, padding, UNK)
        for name in ('source', 'inputs')
    }
    unknown = {**rows, **replaced}

    def patch(method: Callable[..., dict[str, jax.Array]]):
        by_name = method(model, variables, unknown, rows, metric, _EMBEDDINGS, 'T')
        return by_name['encoder/embed'], by_name['decoder/embed']

    return {
        'gradient × input': tuple(explanations.gradient_times_input(*given)),
        'integrated gradients': tuple(
            explanations.integrated_gradients(*given, steps=_STEPS)
        ),
        'occlusion': patch(explanations.activation_patching),
        'attribution patching': patch(explanations.attribution_patching),
    }
