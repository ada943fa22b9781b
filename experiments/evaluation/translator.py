"""Translation in batches of similar length."""

import functools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.config.decoding import check_processors
from experiments.data import packing
from experiments.data.collate import collate_side
from experiments.data.corpus import RaggedArray
from experiments.data.tokenizers.base import (
    Progress,
    Tokenizer,
    encode_lines,
    on_one_line,
)
from experiments.errors import UserError, check_texts
from experiments.runtime import mesh
from experiments.runtime.compilation import Program, ProgramCache
from experiments.runtime.mesh import DeviceMesh
from flaxformer_lite.decoding import DecodeResult
from flaxformer_lite.ensembling import EnsembleModel
from flaxformer_lite.generation import DecodingOptions, decode_rows, forced_prefix
from flaxformer_lite.interventions import Interventions
from flaxformer_lite.models.base import Model

WINDOW = 4096  # sentences to read ahead and sort by length
# Maximum tokens of a line in commands. Attention memory is quadratic in it.
LONGEST = 8192
_MAX_THREADS = 4  # decoding in parallel


class Hypothesis(NamedTuple):
    text: str
    score: float  # log-probability in nats; beam search divides it by a penalty


class Translator:
    """Translates text; memory does not grow with the text.

    Args:
      batch_tokens: Maximum number of tokens per device, over all hypotheses.
      n_best: Number of hypotheses that a search must finish, or of samples.
      longest: Maximum number of tokens of a text, because attention memory is quadratic
        in it. None disables the limit.
      program_cache: Shares compiled programs with other translators.
    """

    def __init__(
        self,
        model: Model | EnsembleModel,
        tokenizer: Tokenizer,
        options: DecodingOptions,
        batch_tokens: int = 8192,
        seed: int = 0,
        n_best: int = 1,
        devices: DeviceMesh | None = None,
        longest: int | None = None,
        program_cache: ProgramCache | None = None,
    ):
        self._model = model
        self._longest = longest
        self._tokenizer = tokenizer
        self._batch_tokens = batch_tokens
        self._seed = seed
        self._devices = devices or mesh.make_mesh()
        self._strategy = options.strategy
        self._samples = n_best if self._strategy.draws else 1
        forced = forced_prefix(tokenizer.forced_first)
        processors = (*forced, *options.processors)
        check_processors(processors, model, options.extra_length)
        # Equal texts are merged and the next one moves up, so all must be final.
        if n_best > 1 and not self._strategy.draws:
            options = options._replace(n_best=self._strategy.hypotheses)
        self._options = options
        program_cache = program_cache or ProgramCache()
        self._search = program_cache.get(_search, model, options, self._devices)

    def __call__(
        self,
        variables: Any,
        texts: Sequence[str],
        first: int = 0,
        on_progress: Progress = lambda done: None,
        interventions: Interventions | None = None,
    ) -> Iterator[list[Hypothesis]]:
        """Yields the hypotheses of each text, best first.

        Args:
          first: Index of the first text. It determines what sampling draws.
          on_progress: Called from time to time with the number of translated texts.
          interventions: As `as_pytree` returns them.

        Raises:
          UserError: A text exceeds the model's positions, after earlier windows, or
            `longest`, after all earlier texts.
        """
        check_texts('texts', texts)
        for start in range(0, len(texts), WINDOW):
            window = list(texts[start : start + WINDOW])
            number = first + start
            side, _ = self._tokenizer.sides
            rows = encode_lines(side.encode, window, number)
            lengths = [len(row) + 1 for row in rows]
            fitting = count_fitting(lengths, self._longest)
            if fitting:
                decode = functools.partial(self._decode, variables, interventions)
                yield from self._translate_window(
                    decode, window[:fitting], rows[:fitting], number, on_progress
                )
            check_longest(lengths, self._longest, number)

    def _translate_window(
        self,
        decode: Callable[..., DecodeResult],
        texts: list[str],
        rows: Any,
        first: int,
        on_progress: Progress,
    ) -> list[list[Hypothesis]]:
        side, _ = self._tokenizer.sides
        dtype = side.dtype if side.reads_vectors else 'uint32'
        sentences = RaggedArray.from_rows(rows, dtype)
        lengths = sentences.lengths() + 1
        check_lengths(self._model, lengths, first)
        tokens = max(1, self._batch_tokens // self._strategy.hypotheses)
        decode = functools.partial(decode, sentences, first)
        first_tokens = self._tokenizer.first_tokens(texts)
        batches = []
        for token in dict.fromkeys(first_tokens):
            chosen = np.array([i for i, x in enumerate(first_tokens) if x == token])
            for shape, index in packing.by_length(
                lengths[chosen], tokens, self._devices.row_shards
            ):
                batches.append((shape, chosen[index], token))
        results = [[Hypothesis('', 0.0)] for _ in texts]
        done = first
        on_progress(done)
        with ThreadPoolExecutor(_count_threads()) as pool:
            decoded = pool.map(decode, batches)
            for (_, index, _), found in zip(batches, decoded, strict=True):
                hypotheses = self._read_hypotheses(found)
                for i, samples in zip(index, hypotheses, strict=True):
                    if lengths[i] > 1:
                        results[i] = self._best_first(samples)
                done += len(index)
                on_progress(done)
        return results

    def _decode(
        self,
        variables: Any,
        interventions: Interventions | None,
        sentences: RaggedArray,
        first: int,
        batch: tuple[packing.Shape, np.ndarray, int | None],
    ) -> DecodeResult:
        """Decodes the rows of a batch, once per sampling key.

        The batch is one of `packing.by_length`, with the first token of its targets.
        """
        shape, index, token = batch
        rows = np.arange(len(index))
        end = self._tokenizer.source_eos
        padding = self._model.special_tokens.padding
        source_BS, segments_BS, _ = collate_side(
            sentences, shape, index, rows, end, padding
        )
        lengths_B = np.count_nonzero(segments_BS, axis=1)
        most_B = lengths_B - 1 + self._options.extra_length
        max_len_B = np.where(lengths_B > 0, most_B, 0).astype(np.int32)
        numbers_B = np.zeros(shape[0], np.int32)
        numbers_B[rows] = first + index
        arrays = mesh.put((source_BS, max_len_B, numbers_B), self._devices.rows())
        first_token = None
        if token is not None:
            first_token = mesh.put(np.int32(token), self._devices.everywhere())
        found = []
        for key in self._keys:
            samples = self._search(variables, key, *arrays, first_token, interventions)
            found.append(jax.device_get(samples))

        def joined(*x_BN):
            return np.concatenate(x_BN, axis=1)[: len(index)]

        return jax.tree.map(joined, *found)

    @functools.cached_property
    def _keys(self) -> list[jax.Array]:
        """One key per sample of a sentence; the first is that of a single sample."""
        key = self._devices.key(self._seed)
        numbers = range(1, self._samples)
        others = [jax.random.fold_in(key, (1 << 32) - i) for i in numbers]
        return [key, *others]

    def _read_hypotheses(self, decoded: DecodeResult) -> Iterator[list[Hypothesis]]:
        tokens_BNL, scores_BN, exists_BN = decoded
        # The tokenizer decodes many texts in one call faster than in several.
        texts = iter(self._tokenizer.decode(tokens_BNL[exists_BN].tolist()))
        for scores_N, exists_N in zip(scores_BN, exists_BN, strict=True):
            # A published vocabulary may have pieces for line ends.
            found = [
                Hypothesis(on_one_line(next(texts)), float(score))
                for score in scores_N[exists_N]
            ]
            # Without hypotheses, because logits were NaN, the line is blank.
            yield found or [Hypothesis('', -math.inf)]

    def _best_first(self, found: list[Hypothesis]) -> list[Hypothesis]:
        """Sorts hypotheses by score; merges equal texts that aren't samples.

        A text with several segmentations gets the best of their scores.
        """
        ordered = sorted(found, key=lambda x: -x.score)
        if self._strategy.draws:
            return ordered
        best: dict[str, Hypothesis] = {}
        for hypothesis in ordered:
            best.setdefault(hypothesis.text, hypothesis)
        return list(best.values())


def _search(
    model: Model | EnsembleModel,
    options: DecodingOptions,
    devices: DeviceMesh,
) -> Program:
    def decode(
        variables, key, source_BS, max_len_B, numbers_B, first_token, interventions=None
    ):
        # Languages differ in the value of the token only, and share a program.
        processors = (*forced_prefix(first_token), *options.processors)
        settings = options._replace(
            processors=processors, float32_cache=jax.default_backend() == 'cpu'
        )
        arrays = (source_BS, max_len_B, numbers_B)
        return decode_rows(model, settings, variables, key, *arrays, interventions)

    jitted = jax.jit(decode, out_shardings=devices.readable_rows())
    return Program(jitted)


def _count_threads() -> int:
    """Returns the number of batches to decode in parallel.

    A decoding step leaves most CPU cores idle, but several devices are already busy.
    """
    if jax.default_backend() == 'cpu' and jax.device_count() == 1:
        return min(os.cpu_count() or 1, _MAX_THREADS)
    return 1


def check_longest(lengths: Sequence[int], most: int | None, first: int = 0) -> None:
    """Raises UserError for the first line with more than `most` tokens.

    `first` is the number of earlier lines.
    """
    fitting = count_fitting(lengths, most)
    if fitting < len(lengths):
        raise UserError(
            f'line {first + fitting + 1:,}: {lengths[fitting]:,} tokens exceed the '
            f'limit of {most:,}. Split it into sentences.'
        )


def count_fitting(lengths: Sequence[int], most: int | None) -> int:
    """Returns the number of lines before the first with more than `most` tokens."""
    if most is None:
        return len(lengths)
    return next((i for i, x in enumerate(lengths) if x > most), len(lengths))


def check_lengths(
    model: Model | EnsembleModel, lengths: Iterable[int], first: int | None = None
) -> None:
    """Raises UserError if a sentence, with EOS, exceeds the model's positions.

    `first` is the number of earlier lines; None if the sentences aren't lines.
    """
    most = model.max_length
    for number, length in enumerate(lengths, 1):
        if most is not None and length > most:
            where = '' if first is None else f'line {first + number:,}: '
            raise UserError(
                f'{where}a sentence has {length} tokens, but the model has learned '
                f'positions for only {most}. Train with learned(max_length=…) for '
                'more, or with other positions.'
            )
