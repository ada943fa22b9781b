"""What was written, compared with the model: the same scores, or it is refused."""

# CTranslate2 is of an extra, which need not be installed.
# pyright: reportMissingImports=false

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.conversion.trained import Trained
from experiments.data.tokenizer import BOS, EOS, PAD
from experiments.errors import UserError
from flaxformer_lite.config import build

# Tokens of the sides of a few pairs: one is padded with the other's length.
_LENGTHS = ((15, 6), (4, 15), (9, 11))
# By how much the log-probability of a token may differ.
_TOLERANCE = 1e-3


def check(folder: Path, trained: Trained) -> None:
    """Refuses a written model that scores drawn sentences otherwise than ours does.

    Raises:
      UserError: it does, by more than rounding: this version of CTranslate2 computes
        something else.
    """
    source, target = _drawn(trained)
    ours = _log_probabilities(trained, source, target)
    theirs = _of_ctranslate2(folder, trained, source, target)
    difference = max(
        float(abs(row[: len(found)] - found).max())
        for row, found in zip(ours, theirs, strict=True)
    )
    if not difference <= _TOLERANCE:
        import ctranslate2

        raise UserError(
            f'--to=ctranslate2: log-probabilities of CTranslate2 '
            f'{ctranslate2.__version__} differ from those of this model by '
            f'{difference:.1g}: use 4.8.5, or another version'
        )


def log_probabilities(logits_BTV: jax.Array, labels_BT: jax.Array) -> jax.Array:
    """Of each label, among the tokens that a translation may have: float32 BT."""
    never = jnp.array([PAD, BOS])
    logits_BTV = jax.nn.log_softmax(logits_BTV.at[..., never].set(-jnp.inf))
    return jnp.take_along_axis(logits_BTV, labels_BT[..., None], -1)[..., 0]


def _drawn(trained: Trained) -> list[list[list[int]]]:
    """Sources and targets, without start and end."""
    draw = np.random.default_rng(0).integers
    vocab_size = trained.model.vocab_size
    lowest = min(max(PAD, BOS, EOS) + 1, vocab_size - 1)
    most = (trained.model.max_length or vocab_size) - 1
    return [
        [draw(lowest, vocab_size, min(length, most)).tolist() for length in side]
        for side in zip(*_LENGTHS, strict=True)
    ]


def _log_probabilities(trained: Trained, source: Any, target: Any) -> np.ndarray:
    config = dataclasses.replace(trained.config.model, dtype='float32')
    model = build.model(config, trained.model.vocab_size, trained.model.special_tokens)
    inputs = _padded([[BOS, *row] for row in target])
    source = _padded([[*row, EOS] for row in source])
    labels = _padded([[*row, EOS] for row in target])

    def score(variables, source, inputs, labels):
        logits_BTV: Any = model.apply(variables, source, inputs)
        return log_probabilities(logits_BTV, labels)

    return np.asarray(jax.jit(score)(trained.variables, source, inputs, labels))


def _padded(rows: list[list[int]]) -> np.ndarray:
    length = max(map(len, rows))
    return np.array([row + [PAD] * (length - len(row)) for row in rows], np.int32)


def _of_ctranslate2(
    folder: Path, trained: Trained, source: Any, target: Any
) -> list[np.ndarray]:
    import ctranslate2

    pieces = trained.tokenizer.pieces
    translator = ctranslate2.Translator(str(folder), device='cpu', intra_threads=1)
    scored = translator.score_batch(
        [pieces(row) for row in source], [pieces(row) for row in target]
    )
    return [np.array(result.log_probs, np.float32) for result in scored]
