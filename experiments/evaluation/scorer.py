"""Scores of given targets, token by token."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.data import collate, corpus, packing
from experiments.data.corpus import Corpus
from experiments.data.sources.base import Pair
from experiments.data.tokenizers.base import Tokenizer
from experiments.errors import UserError, check_list, check_texts
from experiments.evaluation.translator import (
    WINDOW,
    check_lengths,
    check_longest,
    count_fitting,
)
from experiments.runtime import mesh
from experiments.runtime.compilation import Program, ProgramCache
from experiments.runtime.mesh import DeviceMesh
from flaxformer_lite.interventions import Interventions, intervene
from flaxformer_lite.interventions.context import with_separate_layers
from flaxformer_lite.models.base import Model
from flaxformer_lite.scoring import TokenScores, log_probs


def check_pairs(pairs: Sequence[Pair]) -> None:
    """Raises UserError unless each item is a source and its target."""
    check_list('pairs', pairs)
    for i, pair in enumerate(pairs):
        check_list('pairs', pair)
        if not isinstance(pair, Sequence) or len(pair) != 2:
            raise UserError(f'pairs[{i}] must be (source, target), not {pair!r:.60}.')
        check_texts(f'pairs[{i}]', pair)


class ScoredToken(NamedTuple):
    """A target token with scores as in `flaxformer_lite.TokenScores`, in nats.

    A forced first token, such as the target language, has probability 1, as in the
    scores of translations.
    """

    token: str
    log_p: float
    rank: int
    entropy: float


class Scorer:
    """Scores pairs; memory does not grow with their number.

    Args:
      batch_tokens: Tokens per side and device.
      longest: Maximum number of tokens per side; None disables the limit.
    """

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        batch_tokens: int,
        devices: DeviceMesh | None = None,
        longest: int | None = None,
        program_cache: ProgramCache | None = None,
    ):
        self._longest = longest
        self._model = model
        self._tokenizer = tokenizer
        self._batch_tokens = batch_tokens
        self._devices = devices or mesh.make_mesh()
        program_cache = program_cache or ProgramCache()
        self._log_probs = program_cache.get(_log_probs, model, self._devices)

    def batches(self, tokens: Corpus) -> Iterator[tuple[np.ndarray, Any]]:
        """Yields packed batches on the devices, each after the indices of its pairs."""
        lengths = tokens.lengths()
        check_lengths(self._model, lengths.flat)
        # With packing, a single program scores all batches.
        longest = int(lengths.max())
        length = packing.packed_length(longest)
        rows = max(1, self._batch_tokens // length)
        shape = (rows * self._devices.row_shards, length)
        for part, part_rows in packing.pack(lengths, shape):
            batch = collate.pairs_batch(tokens, shape, part, part_rows)
            yield part, mesh.put(batch, self._devices.rows())

    def __call__(
        self,
        variables: Any,
        pairs: Sequence[Pair],
        interventions: Interventions | None = None,
    ) -> Iterator[list[ScoredToken]]:
        """Yields the tokens of each target, including EOS, in the order of the pairs.

        Args:
          interventions: As `as_pytree` returns them.

        Raises:
          UserError: A side exceeds the model's positions, after earlier windows, or
            `longest`, after all earlier pairs.
        """
        check_pairs(pairs)
        for start in range(0, len(pairs), WINDOW):
            window = list(pairs[start : start + WINDOW])
            tokens = corpus.tokenize(window, self._tokenizer, start)
            lengths = tokens.lengths().max(1).tolist()
            fitting = count_fitting(lengths, self._longest)
            chosen = tokens.first(fitting)
            check_lengths(self._model, lengths[:fitting], start)
            found = self._score_window(variables, chosen, interventions)
            first = self._tokenizer.first_tokens([source for source, _ in window])
            for forced, scored in zip(first, found, strict=False):
                yield scored if forced is None else _without_choice(scored)
            check_longest(lengths, self._longest, start)

    def _score_window(
        self,
        variables: Any,
        tokens: Corpus,
        interventions: Interventions | None,
    ) -> list[list[ScoredToken]]:
        results: list[list[ScoredToken]] = [[] for _ in range(len(tokens))]
        if not results:
            return results
        for part, batch in self.batches(tokens):
            scores = self._log_probs(variables, batch, interventions)
            scored = self._scored_tokens(batch, scores)
            for pair, found in zip(part, scored, strict=True):
                results[pair] = found
        return results

    def _scored_tokens(
        self, batch: Any, scores: TokenScores
    ) -> Iterator[list[ScoredToken]]:
        arrays = (batch['target_positions'], batch['labels'], *scores)
        positions_BT, *columns = jax.device_get(arrays)
        labels_BT = columns[0]
        is_token_BT = labels_BT != self._model.special_tokens.padding
        starts = np.flatnonzero(positions_BT[is_token_BT] == 0)
        by_pair = [np.split(x_BT[is_token_BT], starts[1:]) for x_BT in columns]
        for arrays in zip(*by_pair, strict=True):
            ids, *own = [x.tolist() for x in arrays]
            pieces = self._tokenizer.pieces(ids)
            yield list(map(ScoredToken, pieces, *own))


def _without_choice(scored: list[ScoredToken]) -> list[ScoredToken]:
    """Gives the forced first token probability 1; blank targets have no such token."""
    first, *others = scored
    if not others:
        return scored
    return [first._replace(log_p=0.0, rank=1, entropy=0.0), *others]


def _log_probs(model: Model, devices: DeviceMesh) -> Program:
    def scores(variables, batch, interventions=None):
        if interventions is None:
            return log_probs(model, variables, batch)
        separate, variables = with_separate_layers(model, variables)
        with intervene(interventions):
            return log_probs(separate, variables, batch)

    return Program(jax.jit(scores, out_shardings=devices.readable_rows()))
