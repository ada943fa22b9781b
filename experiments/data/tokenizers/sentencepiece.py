"""SentencePiece (Kudo and Richardson 2018): BPE (Sennrich et al. 2016) and unigrams.

Kudo, Subword Regularization, 2018; Provilkov et al., BPE-Dropout, 2020.
"""

import dataclasses
import functools
import io
import itertools
import math
import random
import re
from collections.abc import Collection, Mapping
from typing import Annotated, Any

import numpy as np
import sentencepiece

from experiments.data.tokenizers._counted import SPECIAL
from experiments.data.tokenizers.base import (
    BOS,
    EOS,
    PAD,
    UNK,
    UNKNOWN,
    Tokenizer,
    normalize,
    text_ids,
)
from experiments.errors import UserError, check_list, reason
from flaxformer_lite import validation
from flaxformer_lite.validation import Choices, Range

# Text is normalized here, so SentencePiece must not change it. Then decode inverts
# encode. The number of threads is part of the model's bytes.
_SETTINGS: dict[str, Any] = dict(
    pad_id=PAD,
    eos_id=EOS,
    bos_id=BOS,
    unk_id=UNK,
    unk_surface=UNKNOWN,
    normalization_rule_name='identity',
    remove_extra_whitespaces=False,
    max_sentence_length=1 << 20,
    hard_vocab_limit=False,
    num_threads=1,
    minloglevel=2,
)
# SentencePiece removes the names of special pieces and bytes from training text, and
# skips texts with U+2585. It treats a tab, which `normalize` removes from texts, as a
# boundary that no piece spans.
_RESERVED = re.compile('<(?=(?:unk|pad|/?s|0x[0-9A-F]{2})>)')
_SKIPPED = '\N{LOWER FIVE EIGHTHS BLOCK}'
_BOUNDARY = '\t'
_BYTES = 256
_SPACE = '▁'  # how SentencePiece writes a space
Scores = Mapping[str, float]  # piece → score in SentencePiece's model


@dataclasses.dataclass(frozen=True)
class SentencePiece(Tokenizer):
    """Subword pieces learned from a run's own text; words begin with ▁.

    Attributes:
      vocab_size: Number of ids, including four special ones. A short text may give
        fewer.
      model_type: `'bpe'` repeatedly merges the most frequent pair of pieces.
        `'unigram'` removes the pieces that contribute least to the likelihood.
      character_coverage: Share of the text whose characters are pieces.
      byte_fallback: Uses 256 of the ids as bytes, to write unknown characters.
      user_defined_symbols: Words of one piece each, such as `['<2de>', '<2fr>']`.
      sentinels: Number of symbols `<extra_id_0>`, … for the objective span_corruption.
      alpha: Samples new ids for each pair in each epoch. 0 disables sampling. For
        `'bpe'` it is the share of skipped merges (0.1 in Provilkov et al. 2020). For
        `'unigram'`, a segmentation has the probability p^alpha / Σ p^alpha (0.1 to 0.5
        in Kudo 2018).
    """

    vocab_size: Annotated[int, Range(at_least=5)] = 37_000
    model_type: Annotated[str, Choices('bpe', 'unigram')] = 'bpe'
    # SentencePiece rejects lower values.
    character_coverage: Annotated[float, Range(at_least=0.98, at_most=1)] = 1.0
    byte_fallback: bool = False
    split_digits: bool = False
    user_defined_symbols: list | tuple = ()
    sentinels: Annotated[int, Range(at_least=0, at_most=10_000)] = 0
    # Affects neither training nor `encode`, so it is not in the digest.
    alpha: Annotated[float, Range(at_least=0, at_most=1)] = dataclasses.field(
        default=0.0, repr=False
    )
    model: bytes = dataclasses.field(default=b'', repr=False)

    def __post_init__(self):
        super().__post_init__()
        used_symbols: set[str] = {*SPECIAL}
        if self.byte_fallback:
            used_symbols.update(f'<0x{i:02X}>' for i in range(_BYTES))
        for symbol in self.symbols:
            _check_symbol(symbol, used_symbols)
            used_symbols.add(symbol)

    def train(self, texts):
        """Trains a model; equal texts and arguments give equal bytes."""
        # SentencePiece writes explicit settings to the model, even default values.
        options = {
            'byte_fallback': self.byte_fallback,
            'split_digits': self.split_digits,
            'user_defined_symbols': self.symbols,
        }
        model = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=filter(None, map(_learnable, texts)),
                model_writer=model,
                model_type=self.model_type,
                character_coverage=self.character_coverage,
                vocab_size=self.vocab_size,
                **_SETTINGS,
                **{name: value for name, value in options.items() if value},
            )
        except RuntimeError as error:
            raise self._training_error(str(error)) from None
        return model.getvalue()

    @property
    def symbols(self) -> list[str]:
        """All user-defined symbols, with the sentinels."""
        sentinels = [f'<extra_id_{i}>' for i in range(self.sentinels)]
        return [*self.user_defined_symbols, *sentinels]

    def _training_error(self, message: str) -> UserError:
        required = re.search(r'required_chars\. \d+ vs (\d+)', message)
        if required:
            special = 4 + _BYTES * self.byte_fallback + len(self.symbols)
            return UserError(
                f'tokenizer: vocab_size={self.vocab_size} is smaller than the '
                f'{int(required[1]) - special:,} characters of the training text and '
                f'{special} special ids. Give at least {required[1]}.'
            )
        if 'sentences_.empty()' in message:
            return UserError('data: the training text is blank. Check the files.')
        return UserError(f'tokenizer: SentencePiece cannot learn: {reason(message)}')

    def opened(self, model):
        found = dataclasses.replace(self, model=model)
        return dataclasses.replace(found, vocab_size=found._processor.vocab_size())

    @functools.cached_property
    def _processor(self) -> sentencepiece.SentencePieceProcessor:
        return sentencepiece.SentencePieceProcessor(model_proto=self.model)

    def encode(self, texts):
        check_list('texts', texts)
        return self._processor.encode([_escaped(text) for text in texts])

    @property
    def samples(self):
        return self.alpha > 0

    def sample(self, row, seed):
        """Resamples words; words with UNK, bytes or symbols are unchanged."""
        generator = random.Random(seed)
        draw = bpe_dropout if self.model_type == 'bpe' else unigram_sample
        sampled = []
        for word in self._words(row):
            pieces = [self._pieces[i] for i in word]
            if all(piece in self._scores for piece in pieces):
                pieces = draw(pieces, self._scores, self.alpha, generator)
                word = [self._ids[piece] for piece in pieces]
            sampled += word
        return sampled

    def _words(self, row: list[int]) -> list[list[int]]:
        words: list[list[int]] = []
        for i in row:
            if not words or self._pieces[i].startswith(_SPACE):
                words.append([])
            words[-1].append(i)
        return words

    @functools.cached_property
    def _pieces(self) -> list[str]:
        return self.pieces(list(range(self.vocab_size)))

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        return {piece: i for i, piece in enumerate(self._pieces)}

    @functools.cached_property
    def _scores(self) -> dict[str, float]:
        processor = self._processor
        learnt = {}
        for i, piece in enumerate(self._pieces):
            is_special = processor.is_control(i) or processor.is_unknown(i)
            if not (is_special or processor.is_byte(i) or piece in self.symbols):
                learnt[piece] = processor.get_score(i)
        return learnt

    def decode(self, ids):
        return self._processor.decode([text_ids(row) for row in ids])

    def pieces(self, ids):
        return [self._processor.id_to_piece(int(i)) for i in ids]


def _check_symbol(symbol: Any, used_symbols: Collection[str]) -> None:
    problem = ''
    if not isinstance(symbol, str) or not symbol:
        problem = 'is not text. Give a string of at least one character.'
    elif symbol in used_symbols:
        problem = 'is a piece already. Leave it out or choose another.'
    elif symbol != _escaped(symbol) or ' ' in symbol:
        problem = 'never occurs in normalized text. Use NFC, without spaces and ▁.'
    if problem:
        raise ValueError(f'user_defined_symbols: {validation.quote(symbol)} {problem}')


def _escaped(text: str) -> str:
    return normalize(text).replace(_SPACE, '_')


def _learnable(text: str) -> str:
    text = _escaped(text).replace(_SKIPPED, _BOUNDARY)
    return _RESERVED.sub(f'<{_BOUNDARY}', text)


# Sampled segmentation of words, reproducible from the seed. SentencePiece also samples,
# but with a generator whose state differs between processes.


def bpe_dropout(
    pieces: list[str], scores: Scores, rate: float, generator: random.Random
) -> list[str]:
    """Segments a word by BPE, skipping each possible merge at random in each step.

    Provilkov et al. 2020, algorithm 1: each step applies the remaining merge that was
    learned first.

    Args:
      pieces: The pieces of the word without sampling.
      scores: Score of each piece, higher for earlier merges.
      rate: Probability of skipping a merge, in (0, 1].
    """
    word = ''.join(pieces)
    num_merges = _merges_before_dropout(rate, generator)
    if num_merges >= len(word) - len(pieces):
        return pieces
    pieces = list(word)
    while True:
        unions = [left + right for left, right in itertools.pairwise(pieces)]
        merges = [i for i, union in enumerate(unions) if union in scores]
        for i in sorted(merges, key=lambda i: -scores[unions[i]]):
            if num_merges:
                num_merges -= 1
                pieces[i : i + 2] = [unions[i]]
                break
            num_merges = _merges_before_dropout(rate, generator)
        else:
            return pieces


def _merges_before_dropout(rate: float, generator: random.Random) -> int:
    if rate == 1:
        return 0
    return int(math.log(1 - generator.random()) / math.log1p(-rate))


def unigram_sample(
    pieces: list[str], scores: Scores, alpha: float, generator: random.Random
) -> list[str]:
    """Draws a segmentation x of a word with probability P(x)^α / Σ P^α.

    Kudo 2018, equation 7: sums forward over all segmentations, then draws pieces
    backward.

    Args:
      scores: Log-probability of each piece.
    """
    word = ''.join(pieces)
    totals = [0.0]  # log Σ P^α over all segmentations of the prefix
    last_pieces: list[dict[str, float]] = [{}]  # piece → log of its share of the total
    for end in range(1, len(word) + 1):
        found = {}
        for start in range(end):
            piece = word[start:end]
            if piece in scores and totals[start] > -math.inf:
                found[piece] = totals[start] + alpha * scores[piece]
        totals.append(np.logaddexp.reduce(list(found.values())))
        last_pieces.append(found)
    pieces = []
    end = len(word)
    while end:
        found = last_pieces[end]
        shares = [math.exp(weight - totals[end]) for weight in found.values()]
        (piece,) = generator.choices(list(found), shares)
        pieces.append(piece)
        end -= len(piece)
    return pieces[::-1]
