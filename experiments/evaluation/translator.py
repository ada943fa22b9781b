"""Text to text with a model: any number of sentences, in batches of like length, in order."""

import functools
import math
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.command_line.errors import UserError
from experiments.config.schema import EvaluationConfig
from experiments.data import batches as batching
from experiments.data.corpus import chunks
from experiments.data.tokenizer import BOS, EOS, Tokenizer
from experiments.runtime import devices
from flaxformer_lite import decoding
from flaxformer_lite.ensembling import Ensemble
from flaxformer_lite.kv_cache import gather_beams
from flaxformer_lite.models.base import Model

WINDOW = 4096  # sentences read ahead, to be put in order of length


class Hypothesis(NamedTuple):
    text: str
    score: float  # log-probability in nats; of a beam search over the length penalty


class Translator:
    """Translates text in memory that does not grow with it.

    Args:
      model: the Transformer, or an `Ensemble`.
      tokenizer: of both languages.
      settings: how to decode, and in batches of how many tokens.
      seed: of sampling.
      best: how many hypotheses of a beam search must be final; of sampling, how many are drawn.
    """

    def __init__(
        self,
        model: Model | Ensemble,
        tokenizer: Tokenizer,
        settings: EvaluationConfig,
        seed: int = 0,
        best: int = 1,
    ):
        self._model, self._tokenizer, self._settings = model, tokenizer, settings
        self._key, self._best = jax.random.key(seed), best
        self._search = jax.jit(self._decode, out_shardings=devices.everywhere())

    def __call__(
        self,
        variables: Any,
        texts: Iterable[str],
        first: int = 0,
        tell: Callable[[int], None] = lambda done: None,
    ) -> Iterator[list[Hypothesis]]:
        """The hypotheses of each text, best first; a blank text has one, which is blank.

        Args:
          first: the number of the first text, by which sampling draws.
          tell: is told how many texts are translated, now and then; what it raises ends it.

        Raises:
          UserError: a text has more tokens than the model has positions; those before it are
            translated.
        """
        for window in chunks(texts, WINDOW):
            sentences = self._tokenizer.encode(window)
            lengths = [len(s) + 1 for s in sentences]
            fitting = _fitting(self._model, lengths)
            yield from self._window(variables, sentences[:fitting], first, tell)
            check_lengths(self._model, lengths)
            first += len(window)

    def _window(
        self,
        variables: Any,
        sentences: list[list[int]],
        first: int,
        tell: Callable[[int], None],
    ) -> list[list[Hypothesis]]:
        settings = self._settings
        hypotheses = settings.beams if settings.decode == 'beam' else 1
        results: list[list[Hypothesis]] = [[] for _ in sentences]
        batches = batching.source_batches(
            sentences, max(1, settings.batch_tokens // hypotheses), jax.device_count()
        )

        def decoded(
            entry: tuple[dict[str, np.ndarray], np.ndarray],
        ) -> decoding.DecodeResult:
            batch, index = entry
            return jax.device_get(
                self._start(variables, batch['source'], index + first)
            )

        batches = list(batches)
        done = first
        tell(done)
        with ThreadPoolExecutor(self._at_once()) as pool:
            for (_, index), found in zip(
                batches, pool.map(decoded, batches), strict=True
            ):
                self._read(found, index, results)
                done += len(index)
                tell(done)
        blank = [Hypothesis('', 0.0)]
        return [r if s else blank for s, r in zip(sentences, results, strict=True)]

    def _at_once(self) -> int:
        """How many batches to decode beside each other.

        A step is small, and leaves most of several cores idle. Devices that have to wait for each
        other must all be given the same one next.
        """
        cores = os.cpu_count() or 1
        return (
            min(cores, 4)
            if jax.default_backend() == 'cpu' and jax.device_count() == 1
            else 1
        )

    def _start(
        self, variables: Any, source_BS: np.ndarray, numbers: np.ndarray
    ) -> decoding.DecodeResult:
        tokens_B = (source_BS != 0).sum(1) - 1  # without EOS; −1: the row is empty
        max_len_B = np.where(tokens_B < 0, 0, tokens_B + self._settings.extra_length)
        numbers_B = np.pad(numbers, (0, len(source_BS) - len(numbers)))
        arrays = source_BS, max_len_B.astype(np.int32), numbers_B.astype(np.int32)
        return self._search(variables, *jax.device_put(arrays, devices.rows()))

    def _decode(
        self, variables, source_BS, max_len_B, numbers_B
    ) -> decoding.DecodeResult:
        settings = self._settings
        state = self._model.apply(variables, source_BS, method='prefill')
        step = functools.partial(self._model.apply, variables, method='decode_step')

        length = source_BS.shape[1] - 1 + settings.extra_length
        length = min(length, self._model.max_length or length)
        inputs = decoding.DecodeInputs(step, state, max_len_B, BOS, EOS, length)
        if settings.decode == 'greedy':
            return decoding.greedy(inputs)
        if settings.decode == 'sample':
            return self._samples(inputs, numbers_B)
        return decoding.beam(inputs, settings.beams, settings.alpha, self._best)

    def _samples(
        self, inputs: decoding.DecodeInputs, numbers_B: jax.Array
    ) -> decoding.DecodeResult:
        """As many translations of each sentence as are asked for, drawn one after another."""
        settings = self._settings

        def draw(key):
            keys_B = jax.vmap(jax.random.fold_in, (None, 0))(key, numbers_B)
            return decoding.sample(
                inputs, keys_B, settings.temperature, settings.top_k, settings.top_p
            )

        # The first is what is drawn where one is asked for; sentences' numbers end before 2³¹.
        others = [
            jax.random.fold_in(self._key, (1 << 32) - i) for i in range(1, self._best)
        ]
        drawn = jax.lax.map(draw, jnp.stack([self._key, *others]))
        found = jax.tree.map(lambda x: jnp.swapaxes(x[:, :, 0], 0, 1), drawn)
        order_BN = jnp.argsort(-found.scores_BN, axis=1)
        return jax.tree.map(lambda x: gather_beams(x, order_BN), found)

    def _read(
        self, decoded: decoding.DecodeResult, index: np.ndarray, results: list
    ) -> None:
        tokens_BNL, scores_BN, found_BN = (x[: len(index)] for x in decoded)
        texts = iter(
            self._tokenizer.decode(tokens_BNL[found_BN].tolist())
        )  # all in one call
        for row, scores_N in zip(
            index, map(np.extract, found_BN, scores_BN), strict=True
        ):
            # A model whose logits are not numbers finds nothing; its line is blank all the same.
            results[row] = [Hypothesis(next(texts), float(s)) for s in scores_N] or [
                Hypothesis('', -math.inf)
            ]


def _fitting(model: Model | Ensemble, lengths: list[int]) -> int:
    """How many sentences come before the first that the model has no positions for."""
    if model.max_length is None:
        return len(lengths)
    most = model.max_length
    return next((i for i, x in enumerate(lengths) if x > most), len(lengths))


def check_lengths(model: Model | Ensemble, lengths: Iterable[int]) -> None:
    """Refuses sentences, by their tokens with EOS, that the model has no positions for.

    Raises:
      UserError: the longest has more tokens than there are positions.
    """
    most, longest = model.max_length, max(lengths, default=0)
    if most is not None and longest > most:
        raise UserError(
            f'a sentence has {longest} tokens, and the learned positions of the model have places '
            f'for {most}: train with learned(max_length=…) for more, or with other positions'
        )
