"""Text to text with a model: any number of sentences, in batches of similar length."""

import contextlib
import functools
import math
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.config.schema import EvaluationConfig
from experiments.data.corpus import chunks
from experiments.data.tokenizer import Tokenizer
from experiments.errors import UserError
from experiments.evaluation import batches, translation_files
from experiments.runtime import compilation, mesh, processes
from experiments.runtime.mesh import DeviceMesh
from flaxformer_lite import decoding
from flaxformer_lite.ensembling import Ensemble
from flaxformer_lite.kv_cache import gather_beams
from flaxformer_lite.models.base import Model
from flaxformer_lite.sharding import map_rows

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
      n_best: how many hypotheses of a beam search must be final; of sampling, how many
        are drawn.
      devices: divide the rows of batches; by default all that there are.
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
        self._n_best = n_best
        self._devices = devices or mesh.of()
        self._key = self._devices.key(seed)
        # Flax makes modules hashable, which the checker does not see.
        first = tokenizer.forced_first
        self._search = _search(model, settings, n_best, self._devices, first)  # pyright: ignore[reportArgumentType]

    def __call__(
        self,
        variables: Any,
        texts: Iterable[str],
        first: int = 0,
        on_progress: Callable[[int], None] = lambda done: None,
    ) -> Iterator[list[Hypothesis]]:
        """The hypotheses of each text, best first; a blank text has one blank one.

        Args:
          first: the number of the first text, which decides what sampling draws.
          on_progress: is told from time to time how many texts are translated; what it
            raises ends the translation.

        Raises:
          UserError: a text has more tokens than the model has positions; the texts
            before it are translated.
        """
        for window in chunks(texts, WINDOW):
            sentences = self._tokenizer.encode(window)
            lengths = [len(ids) + 1 for ids in sentences]
            fitting = _count_fitting(self._model, lengths)
            yield from self._window(variables, sentences[:fitting], first, on_progress)
            check_lengths(self._model, lengths)
            first += len(window)

    def _window(
        self,
        variables: Any,
        sentences: list[list[int]],
        first: int,
        on_progress: Callable[[int], None],
    ) -> list[list[Hypothesis]]:
        """The hypotheses of the sentences that are sorted together."""

        def search(entry: tuple[batches.Batch, np.ndarray]) -> decoding.DecodeResult:
            batch, index = entry
            found = self._start(variables, batch['source'], index + first)
            return jax.device_get(found)

        results: list[list[Hypothesis]] = [[] for _ in sentences]
        planned = list(
            batches.source_batches(
                sentences,
                self._batch_tokens(),
                self._devices.row_shards,
                padding=self._model.special_tokens.padding,
                end=self._tokenizer.source_end,
            )
        )
        done = first
        on_progress(done)
        with _mapped(search, planned) as decoded:
            for (_, index), found in zip(planned, decoded, strict=True):
                for row, hypotheses in zip(
                    index, self._read(found, len(index)), strict=True
                ):
                    results[row] = hypotheses
                done += len(index)
                on_progress(done)
        for row, ids in enumerate(sentences):
            if not ids:
                results[row] = [Hypothesis('', 0.0)]
        return results

    def _batch_tokens(self) -> int:
        """Source positions of a device, which the search multiplies by its beams."""
        settings = self._settings
        beams = settings.beams if settings.decode == 'beam' else 1
        return max(1, settings.batch_tokens // beams)

    def _start(
        self, variables: Any, source_BS: np.ndarray, numbers: np.ndarray
    ) -> decoding.DecodeResult:
        """Starts the search for a batch; `numbers` are those of its sentences."""
        padding = self._model.special_tokens.padding
        # Without EOS; −1: the row is empty.
        tokens_B = (source_BS != padding).sum(1) - 1
        max_len_B = np.where(tokens_B < 0, 0, tokens_B + self._settings.extra_length)
        numbers_B = np.pad(numbers, (0, len(source_BS) - len(numbers)))
        arrays = (source_BS, max_len_B.astype(np.int32), numbers_B.astype(np.int32))
        placed = mesh.put(arrays, self._devices.rows())
        return self._search(variables, self._key, *placed)

    def _read(
        self, decoded: decoding.DecodeResult, rows: int
    ) -> Iterator[list[Hypothesis]]:
        """The hypotheses of each of a batch's first rows."""
        tokens_BNL, scores_BN, exists_BN = (x[:rows] for x in decoded)
        # The tokenizer decodes many texts in one call faster than in several.
        decoded_texts = self._tokenizer.decode(tokens_BNL[exists_BN].tolist())
        # A published vocabulary may have pieces for line ends.
        texts = map(translation_files.on_one_line, decoded_texts)
        for scores_N, exists_N in zip(scores_BN, exists_BN, strict=True):
            hypotheses = []
            for score in scores_N[exists_N]:
                hypotheses.append(Hypothesis(next(texts), float(score)))
            if not hypotheses:
                # The model's logits were not numbers; the line is blank all the same.
                hypotheses.append(Hypothesis('', -math.inf))
            yield hypotheses


@functools.lru_cache(maxsize=4)  # the runs of a process may share it
def _search(
    model: Model | Ensemble,
    settings: EvaluationConfig,
    n_best: int,
    devices: DeviceMesh,
    forced_first: int | None,
) -> compilation.Program:
    """The compiled search for the translations of a batch, each device for its rows."""
    decode = functools.partial(_decode, model, settings, n_best, forced_first)

    def search(variables: Any, key: jax.Array, *rows: jax.Array) -> Any:
        return map_rows(decode, (variables, key), rows)

    jitted = jax.jit(search, out_shardings=devices.readable_rows())
    return compilation.Program(jitted)


def _decode(
    model: Model | Ensemble,
    settings: EvaluationConfig,
    n_best: int,
    forced_first: int | None,
    variables: Any,
    key: jax.Array,
    source_BS: jax.Array,
    max_len_B: jax.Array,
    numbers_B: jax.Array,
) -> decoding.DecodeResult:
    """The translations of a device's rows.

    `key` and the sentences' numbers are of sampling.
    """
    state = model.apply(variables, source_BS, method='prefill')
    step = functools.partial(model.apply, variables, method='decode_step')
    length = source_BS.shape[1] - 1 + settings.extra_length
    if model.max_length is not None:
        length = min(length, model.max_length)
    special = model.special_tokens
    tokens = (special.start, special.end, length, special.padding, forced_first)
    inputs = decoding.DecodeInputs(step, state, max_len_B, *tokens)
    if settings.decode == 'greedy':
        return decoding.greedy(inputs)
    if settings.decode == 'sample':
        return _samples(inputs, settings, n_best, key, numbers_B)
    return decoding.beam(inputs, settings.beams, settings.alpha, n_best)


def _samples(
    inputs: decoding.DecodeInputs,
    settings: EvaluationConfig,
    n_best: int,
    key: jax.Array,
    numbers_B: jax.Array,
) -> decoding.DecodeResult:
    """`n_best` samples of each sentence, drawn one after another, best first."""

    def draw(key: jax.Array) -> decoding.DecodeResult:
        keys_B = jax.vmap(jax.random.fold_in, (None, 0))(key, numbers_B)
        return decoding.sample(
            inputs, keys_B, settings.temperature, settings.top_k, settings.top_p
        )

    # The first sample is the one that is drawn where only one is asked for. The others'
    # keys differ from any sentence's: sentences' numbers end before 2³¹.
    keys = [key]
    for i in range(1, n_best):
        keys.append(jax.random.fold_in(key, (1 << 32) - i))
    drawn = jax.lax.map(draw, jnp.stack(keys))
    found = jax.tree.map(lambda x: jnp.swapaxes(x[:, :, 0], 0, 1), drawn)
    order_BN = jnp.argsort(-found.scores_BN, axis=1)
    return jax.tree.map(lambda x: gather_beams(x, order_BN), found)


@contextlib.contextmanager
def _mapped(search: Callable, planned: Iterable) -> Iterator[Iterator]:
    """What a search finds for one batch after another, made ahead by threads.

    Not with several processes: where one stops, all have to have begun the same.
    """
    if processes.count() > 1:
        yield map(search, planned)
        return
    with ThreadPoolExecutor(_threads()) as pool:
        yield pool.map(search, planned)


def _threads() -> int:
    """How many batches to decode at the same time.

    A decoding step is small and leaves most of several cores idle. Several devices keep
    them busy with one batch.
    """
    if jax.default_backend() != 'cpu' or jax.device_count() > 1:
        return 1
    return min(os.cpu_count() or 1, _MOST_THREADS)


def _count_fitting(model: Model | Ensemble, lengths: list[int]) -> int:
    """How many sentences come before the first that the model has no positions for."""
    if model.max_length is not None:
        for i, length in enumerate(lengths):
            if length > model.max_length:
                return i
    return len(lengths)


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
