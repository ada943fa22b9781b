"""Text to text with a model: any number of sentences, in batches of similar length."""

import collections
import functools
import itertools
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from experiments.config import search
from experiments.config.schema import EvaluationConfig
from experiments.data import packing
from experiments.data.collate import collate_side
from experiments.data.corpus import RaggedArray
from experiments.data.tokenizers.base import Progress, Tokenizer, on_one_line
from experiments.errors import UserError, check_list
from experiments.runtime import compilation, mesh
from experiments.runtime.mesh import DeviceMesh
from flaxformer_lite import kv_cache
from flaxformer_lite.decoding import DecodeResult
from flaxformer_lite.ensembling import Ensemble
from flaxformer_lite.generation import Settings, decode_rows
from flaxformer_lite.models.base import Model

if TYPE_CHECKING:
    from experiments.metrics.base import Metric

WINDOW = 4096  # sentences that are read ahead, to be sorted by length
# Tokens of a line that commands read: attention takes memory with the square of them.
LONGEST = 8192
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
      longest: how many tokens a text may have; None: any number.

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
        longest: int | None = None,
    ):
        self._model = model
        self._longest = longest
        self._tokenizer = tokenizer
        self._settings = settings
        self._seed = seed
        self._devices = devices or mesh.of()
        choice = search.make(settings, tokenizer.forced_first)
        search.check_processors(choice.processors, model, settings.extra_length)
        self._strategy = choice.strategy
        self._samples = self._strategy.drawn(n_best)
        self._utility = search.utility(self._strategy)
        if self._utility:
            self._utility.check_installed()
        # Where two results are one text, the next one moves up, so all are final.
        final = self._strategy.hypotheses if n_best > 1 else 1
        if self._strategy.draws:
            final = 1
        extra = settings.extra_length
        # Flax makes modules hashable, which the checker does not see.
        self._search = _search(model, choice, extra, final, self._devices)  # pyright: ignore[reportArgumentType]

    def __call__(
        self,
        variables: Any,
        texts: Sequence[str],
        first: int = 0,
        on_progress: Progress = lambda done: None,
    ) -> Iterator[list[Hypothesis]]:
        """The hypotheses of each text, best first; a blank text has one blank one.

        Args:
          first: the number of the first text, which decides what sampling draws.
          on_progress: is told from time to time how many texts are translated.

        Raises:
          UserError: `texts` is one text; or a text has more tokens than the model has
            positions, and those of the windows before it are translated; or more than
            `longest`, and those before it are translated.
        """
        check_list('texts', texts)
        for start in range(0, len(texts), WINDOW):
            window = list(texts[start : start + WINDOW])
            number = first + start
            side, _ = self._tokenizer.sides
            rows = side.encode(window)
            lengths = [len(row) + 1 for row in rows]
            fitting = count_fitting(lengths, self._longest)
            if fitting:
                yield from self._translate_window(
                    variables, window[:fitting], rows[:fitting], number, on_progress
                )
            check_longest(lengths, self._longest, number)

    def _translate_window(
        self,
        variables: Any,
        texts: list[str],
        rows: Any,
        first: int,
        on_progress: Progress,
    ) -> list[list[Hypothesis]]:
        """The hypotheses of texts, given with their ids, sorted by length together."""
        side, _ = self._tokenizer.sides
        dtype = side.dtype if side.reads_vectors else 'uint32'
        sentences = RaggedArray.from_rows(rows, dtype)
        lengths = sentences.lengths() + 1
        check_lengths(self._model, lengths)
        tokens = max(1, self._settings.batch_tokens // self._strategy.hypotheses)
        batches = list(packing.by_length(lengths, tokens, self._devices.row_shards))
        decode = functools.partial(self._decode, variables, sentences, first)
        results = [[Hypothesis('', 0.0)] for _ in texts]
        done = first
        on_progress(done)
        with ThreadPoolExecutor(_count_threads()) as pool:
            decoded = pool.map(decode, batches)
            for (_, index), found in zip(batches, decoded, strict=True):
                hypotheses = self._hypotheses(found)
                for i, drawn in zip(index, hypotheses, strict=True):
                    if lengths[i] > 1:
                        results[i] = self._best_first(drawn, texts[i])
                done += len(index)
                on_progress(done)
        return results

    def _decode(
        self,
        variables: Any,
        sentences: RaggedArray,
        first: int,
        batch: tuple[packing.Shape, np.ndarray],
    ) -> DecodeResult:
        """What the search finds for the rows of a batch, by all keys.

        Args:
          first: the number of the first sentence; by a sentence's own sampling draws.
          batch: as `packing.by_length` has it.
        """
        shape, index = batch
        rows = np.arange(len(index))
        end = self._tokenizer.source_end
        padding = self._model.special_tokens.padding
        source_BS, segments_BS, _ = collate_side(
            sentences, shape, index, rows, end, padding
        )
        lengths_B = np.count_nonzero(segments_BS, axis=1)
        most_B = lengths_B - 1 + self._settings.extra_length
        max_len_B = np.where(lengths_B > 0, most_B, 0).astype(np.int32)
        numbers_B = np.zeros(shape[0], np.int32)
        numbers_B[rows] = first + index
        arrays = mesh.put((source_BS, max_len_B, numbers_B), self._devices.rows())
        found = []
        for key in self._keys:
            samples = self._search(variables, key, *arrays)
            found.append(jax.device_get(samples))

        def joined(*x_BN):
            return np.concatenate(x_BN, axis=1)[: len(index)]

        return jax.tree.map(joined, *found)

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

    def _hypotheses(self, decoded: DecodeResult) -> Iterator[list[Hypothesis]]:
        """The hypotheses of each row of a batch, as they were found."""
        tokens_BNL, scores_BN, exists_BN = decoded
        # The tokenizer decodes many texts in one call faster than in several.
        texts = iter(self._tokenizer.decode(tokens_BNL[exists_BN].tolist()))
        for scores_N, exists_N in zip(scores_BN, exists_BN, strict=True):
            # A published vocabulary may have pieces for line ends.
            found = [
                Hypothesis(on_one_line(next(texts)), float(score))
                for score in scores_N[exists_N]
            ]
            # None where the model's logits were not numbers: the line is blank.
            yield found or [Hypothesis('', -math.inf)]

    def _best_first(self, found: list[Hypothesis], source: str) -> list[Hypothesis]:
        """Returns samples by score, other hypotheses with each text once.

        Several segmentations can be one text. Its score is that of the best one. A
        utility, if there is one, orders the texts.
        """
        if self._utility is None:
            ordered = sorted(found, key=lambda x: -x.score)
            if self._strategy.draws:
                return ordered
            best: dict[str, Hypothesis] = {}
            for hypothesis in ordered:
                best.setdefault(hypothesis.text, hypothesis)
            return list(best.values())
        first_of = {x.text: x for x in reversed(found)}
        if len(first_of) == 1:
            return found[:1]
        means = mean_utilities([x.text for x in found], source, self._utility)
        texts = sorted(means, key=lambda text: -means[text])
        return [first_of[text] for text in texts]


def mean_utilities(
    texts: Sequence[str], source: str, utility: 'Metric'
) -> dict[str, float]:
    """1/S Σ u(y, y_s) of each different text y, in their order; higher is better.

    Minimum Bayes risk takes the highest (Eikema and Aziz 2020, §5).

    Args:
      texts: S samples of a sentence, each of which is a reference, too, unless it is
        blank.
      source: the sentence.
      utility: u, the score of a sentence.
    """
    counts = collections.Counter(texts)
    references = [text for text in counts if text.strip()]
    pairs = list(itertools.product(counts, references))
    scores = utility.sentence_scores(
        [text for text, _ in pairs],
        [(reference,) for _, reference in pairs],
        [source] * len(pairs),
    )
    means = dict.fromkeys(counts, 0.0)
    for (text, reference), score in zip(pairs, scores, strict=True):
        means[text] += utility.rank(score) * counts[reference] / len(texts)
    return means


@functools.lru_cache(maxsize=4)  # the runs of a process may share it
def _search(
    model: Model | Ensemble,
    choice: search.Search,
    extra_length: int,
    n_best: int,
    devices: DeviceMesh,
) -> compilation.Program:
    """The compiled search for the translations of a batch, each device for its rows."""

    def decode(variables, key, source_BS, max_len_B, numbers_B):
        length = source_BS.shape[1] - 1 + extra_length
        settings = Settings(*choice, length, model.special_tokens, n_best)
        arrays = (source_BS, max_len_B, numbers_B)
        with kv_cache.float32_slots(jax.default_backend() == 'cpu'):
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


def check_longest(lengths: Sequence[int], most: int | None, first: int = 0) -> None:
    """Refuses lines of text with too many tokens for memory.

    Args:
      lengths: The tokens of each line, with EOS.
      most: The limit; None disables it.
      first: How many lines came before these.

    Raises:
      UserError: A line has more tokens than the limit; names the first.
    """
    fitting = count_fitting(lengths, most)
    if fitting < len(lengths):
        raise UserError(
            f'line {first + fitting + 1:,} has {lengths[fitting]:,} tokens, more than '
            f'{most:,}: split it into sentences'
        )


def count_fitting(lengths: Sequence[int], most: int | None) -> int:
    """Returns how many lines come before the first of more than `most` tokens."""
    if most is None:
        return len(lengths)
    return next((i for i, x in enumerate(lengths) if x > most), len(lengths))


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
