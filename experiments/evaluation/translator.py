"""Text to text with a model: any number of sentences, in batches of similar length."""

import functools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.config import search
from experiments.config.schema import EvaluationConfig
from experiments.data import packing
from experiments.data.tokenizers.base import Tokenizer, on_one_line
from experiments.errors import UserError
from experiments.evaluation import minimum_risk
from experiments.runtime import compilation, mesh
from experiments.runtime.mesh import DeviceMesh
from flaxformer_lite.decoding import DecodeResult
from flaxformer_lite.ensembling import Ensemble
from flaxformer_lite.generation import Settings, decode_rows, forced_prefix
from flaxformer_lite.models.base import Model

WINDOW = 4096  # sentences that are read ahead, to be sorted by length
_MOST_THREADS = 4  # that decode at the same time


class Hypothesis(NamedTuple):
    text: str
    score: float  # log-probability in nats; of a beam search over the length penalty


class Translator:
    """Translates text in memory that does not grow with the text.

    Args:
      model: the Transformer, or an `Ensemble`.
      tokenizer: of both languages.
      settings: how to decode, and in batches of how many tokens for each device.
      seed: of sampling.
      n_best: how many hypotheses of a search must be final; of one that draws, how
        many are drawn, unless it says that itself.
      devices: divide the rows of batches; by default all that there are.

    Raises:
      UserError: as `search.make`; or what a utility needs is not installed.
    """

    def __init__(
        self,
        model: Model | Ensemble,
        tokenizer: Tokenizer,
        settings: EvaluationConfig,
        seed: int = 0,
        n_best: int = 1,
        devices: DeviceMesh | None = None,
    ):
        self._model = model
        self._tokenizer = tokenizer
        self._settings = settings
        self._seed = seed
        self._devices = devices or mesh.of()
        self._strategy, processors = search.make(settings)
        self._samples = self._strategy.drawn(n_best)
        self._utility = search.utility(self._strategy)
        if self._utility:
            self._utility.check_installed()
        choice = search.Search(
            self._strategy, (*forced_prefix(tokenizer.forced_first), *processors)
        )
        final = 1 if self._strategy.draws else n_best
        extra = settings.extra_length
        # Flax makes modules hashable, which the checker does not see.
        self._search = _search(model, choice, extra, final, self._devices)  # pyright: ignore[reportArgumentType]

    def __call__(
        self,
        variables: Any,
        texts: Sequence[str],
        first: int = 0,
        on_progress: Callable[[int], None] = lambda done: None,
    ) -> Iterator[list[Hypothesis]]:
        """The hypotheses of each text, best first; a blank text has one blank one.

        Args:
          first: the number of the first text, which decides what sampling draws.
          on_progress: is told from time to time how many texts are translated.

        Raises:
          UserError: a text has more tokens than the model has positions; those of the
            windows before it are translated.
        """
        for start in range(0, len(texts), WINDOW):
            window = list(texts[start : start + WINDOW])
            sentences = self._tokenizer.encode(window)
            check_lengths(self._model, [len(ids) + 1 for ids in sentences])
            number = first + start
            yield from self._window(variables, window, sentences, number, on_progress)

    def _window(
        self,
        variables: Any,
        texts: list[str],
        sentences: list[list[int]],
        first: int,
        on_progress: Callable[[int], None],
    ) -> list[list[Hypothesis]]:
        """The hypotheses of the sentences that are sorted together."""

        def decode(entry: tuple[np.ndarray, np.ndarray]) -> list[DecodeResult]:
            source_BS, index = entry
            return self._decode(variables, source_BS, first + index)

        batches = self._batches(sentences)
        results: list[list[Hypothesis]] = [[] for _ in sentences]
        done = first
        on_progress(done)
        with ThreadPoolExecutor(_count_threads()) as pool:
            decoded = pool.map(decode, batches)
            for (_, index), drawn in zip(batches, decoded, strict=True):
                samples = [self._hypotheses(sample, len(index)) for sample in drawn]
                for row, *several in zip(index, *samples, strict=True):
                    if len(sentences[row]):
                        found = self._best_first(sum(several, []), texts[row])
                    else:
                        found = [Hypothesis('', 0.0)]
                    results[row] = found
                done += len(index)
                on_progress(done)
        return results

    def _best_first(self, found: list[Hypothesis], source: str) -> list[Hypothesis]:
        """Sorted by score; or the different ones among them by utility."""
        if self._utility is None:
            return sorted(found, key=lambda x: -x.score)
        first_of = {x.text: x for x in reversed(found)}
        if len(first_of) == 1:
            return found[:1]
        texts = [x.text for x in found]
        means = minimum_risk.mean_utilities(texts, source, self._utility)
        return [first_of[text] for text in sorted(means, key=lambda x: -means[x])]

    def _batches(
        self, sentences: list[list[int]]
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Batches BS of sentences of similar length, and which sentences they are."""
        settings = self._settings
        tokens = max(1, settings.batch_tokens // self._strategy.hypotheses)
        shards = self._devices.row_shards
        # Of vectors zeros are padding, whatever it is of tokens.
        features = np.shape(sentences[0])[1:] if self._tokenizer.reads_vectors else ()
        dtype = np.float32 if features else np.int32
        padding = 0 if features else self._model.special_tokens.padding
        lengths = np.array([len(ids) + 1 for ids in sentences])
        batches = []
        for shape, index in packing.by_length(lengths, tokens, shards):
            source_BS = np.full((*shape, *features), padding, dtype)
            for row, i in enumerate(index):
                ids = self._tokenizer.with_end(sentences[i])
                source_BS[row, : len(ids)] = ids
            batches.append((source_BS, index))
        return batches

    def _decode(
        self, variables: Any, source_BS: np.ndarray, numbers: np.ndarray
    ) -> list[DecodeResult]:
        """What each key finds for a batch; `numbers` are those of its sentences."""
        padding = self._model.special_tokens.padding
        is_token = (source_BS != padding) if source_BS.ndim == 2 else source_BS.any(2)
        tokens_B = is_token.sum(1) - 1  # without EOS; −1: an empty row
        longest_B = tokens_B + self._settings.extra_length
        max_len_B = np.where(tokens_B < 0, 0, longest_B)
        numbers_B = np.pad(numbers, (0, len(source_BS) - len(numbers)))
        arrays = (source_BS, max_len_B.astype(np.int32), numbers_B.astype(np.int32))
        placed = mesh.put(arrays, self._devices.rows())
        found = []
        for key in self._keys:
            decoded = self._search(variables, key, *placed)
            found.append(jax.device_get(decoded))
        return found

    @functools.cached_property
    def _keys(self) -> list[jax.Array]:
        """One for each sample of a sentence, drawn one after another.

        The first sample is the one that is drawn where only one is asked for. The
        others' keys differ from any sentence's: sentences' numbers end before 2³¹.
        """
        key = self._devices.key(self._seed)
        numbers = range(1, self._samples)
        others = [jax.random.fold_in(key, (1 << 32) - i) for i in numbers]
        return [key, *others]

    def _hypotheses(
        self, decoded: DecodeResult, rows: int
    ) -> Iterator[list[Hypothesis]]:
        """The hypotheses of each of a batch's first rows."""
        tokens_BNL, scores_BN, exists_BN = (x[:rows] for x in decoded)
        # The tokenizer decodes many texts in one call faster than in several.
        decoded_texts = self._tokenizer.decode(tokens_BNL[exists_BN].tolist())
        # A published vocabulary may have pieces for line ends.
        texts = map(on_one_line, decoded_texts)
        for scores_N, exists_N in zip(scores_BN, exists_BN, strict=True):
            found = [Hypothesis(next(texts), float(x)) for x in scores_N[exists_N]]
            # None where the model's logits were not numbers: the line is blank.
            yield found or [Hypothesis('', -math.inf)]


@functools.lru_cache(maxsize=4)  # the runs of a process may share it
def _search(
    model: Model | Ensemble,
    choice: search.Search,
    extra_length: int,
    n_best: int,
    devices: DeviceMesh,
) -> compilation.Program:
    """The compiled search for the translations of a batch, each device for its rows."""

    def decode(
        variables: Any,
        key: jax.Array,
        source_BS: jax.Array,
        max_len_B: jax.Array,
        numbers_B: jax.Array,
    ) -> DecodeResult:
        length = source_BS.shape[1] - 1 + extra_length
        settings = Settings(*choice, length, model.special_tokens, n_best)
        arrays = (source_BS, max_len_B, numbers_B)
        return decode_rows(model, settings, variables, key, *arrays)

    jitted = jax.jit(decode, out_shardings=devices.readable_rows())
    return compilation.Program(jitted)


def _count_threads() -> int:
    """Batches to decode at the same time.

    A decoding step is small and leaves most of several cores idle; several devices keep
    them busy with one batch.
    """
    if jax.default_backend() == 'cpu' and jax.device_count() == 1:
        return min(os.cpu_count() or 1, _MOST_THREADS)
    return 1


def check_lengths(model: Model | Ensemble, lengths: Iterable[int]) -> None:
    """Refuses sentences, by their tokens with EOS, that the model has no positions for.

    Raises:
      UserError: the longest has more tokens than there are positions.
    """
    most = model.max_length
    longest = max(lengths, default=0)
    if most is not None and longest > most:
        raise UserError(
            f'a sentence has {longest} tokens, and the learned positions of the model '
            f'have places for {most}: train with learned(max_length=…) for more, or '
            'with other positions'
        )
