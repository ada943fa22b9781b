"""SentencePiece: byte-pair encoding (paper §5.1; Sennrich et al. 2016) and unigrams.

Kudo and Richardson, SentencePiece, 2018; unigrams: Kudo, Subword Regularization, 2018;
BPE-dropout: Provilkov et al., 2020.
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
from flaxformer_lite import ranges
from flaxformer_lite.ranges import Choices, Range

# Text is normalised here, so SentencePiece is to leave it alone; then decode gives back
# what encode got. The number of threads is part of the model's bytes.
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
# SentencePiece cuts the names of its special pieces and of bytes out of the text that
# it learns from, and skips a text with U+2585. A tab, which `normalize` leaves nowhere,
# is its sign for a place that no piece spans.
_RESERVED = re.compile('<(?=(?:unk|pad|/?s|0x[0-9A-F]{2})>)')
_SKIPPED = '\N{LOWER FIVE EIGHTHS BLOCK}'
_BOUNDARY = '\t'
_BYTES = 256
_SPACE = '▁'  # SentencePiece's sign for one
Scores = Mapping[str, float]  # piece → what SentencePiece has learnt of it


@dataclasses.dataclass(frozen=True)
class SentencePiece(Tokenizer):
    """Pieces of words, learnt from a run's own text; a word's first begins with ▁.

    Attributes:
      vocab_size: ids, the four special ones included. A short text may give fewer.
      model_type: `'bpe'` merges the most frequent pair of pieces again and again;
        `'unigram'` drops the pieces that a text's likelihood needs least.
      character_coverage: share of the text whose characters are pieces; the rarest
        others are unknown.
      byte_fallback: 256 of the ids are bytes, by which other characters are written;
        without, a character unseen in training is unknown.
      split_digits: each digit is a piece of its own.
      user_defined_symbols: words that are one piece each, such as `['<2de>', '<2fr>']`.
      sentinels: how many further such there are, `<extra_id_0>`, `<extra_id_1>`, …,
        which the objective span_corruption puts in the place of text.
      alpha: in training, how ids are drawn anew for each pair in each epoch; 0: they
        are not. Of `'bpe'` it is the share of merges that are left out (BPE-dropout,
        Provilkov et al. 2020: 0.1); of `'unigram'` a segmentation has the probability
        p^alpha / Σ p^alpha (subword regularisation, Kudo 2018: 0.1 to 0.5).
      model: the serialized SentencePiece model.
    """

    vocab_size: Annotated[int, Range(at_least=5)] = 37_000
    model_type: Annotated[str, Choices('bpe', 'unigram')] = 'bpe'
    # SentencePiece itself refuses less.
    character_coverage: Annotated[float, Range(at_least=0.98, at_most=1)] = 1.0
    byte_fallback: bool = False
    split_digits: bool = False
    user_defined_symbols: list | tuple = ()
    sentinels: Annotated[int, Range(at_least=0, at_most=10_000)] = 0
    # It is not of what is learnt, nor of what `encode` gives.
    alpha: Annotated[float, Range(at_least=0, at_most=1)] = dataclasses.field(
        default=0.0, repr=False
    )
    model: bytes = dataclasses.field(default=b'', repr=False)

    def __post_init__(self):
        super().__post_init__()
        taken: set[str] = {*SPECIAL}
        if self.byte_fallback:
            taken.update(f'<0x{i:02X}>' for i in range(_BYTES))
        for symbol in self.symbols:
            _check_symbol(symbol, taken)
            taken.add(symbol)

    def train(self, texts):
        """The model, of the same bytes for equal texts and arguments.

        Raises:
          UserError: `vocab_size` is less than the text has characters, or the texts are
            blank.
        """
        # A setting that is given, be it as it is by default, is written to the model.
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
            raise self._refusal(str(error)) from None
        return model.getvalue()

    @property
    def symbols(self) -> list[str]:
        """All words that are one piece each."""
        sentinels = [f'<extra_id_{i}>' for i in range(self.sentinels)]
        return [*self.user_defined_symbols, *sentinels]

    def _refusal(self, message: str) -> UserError:
        needed = re.search(r'required_chars\. \d+ vs (\d+)', message)
        if needed:
            special = 4 + _BYTES * self.byte_fallback + len(self.symbols)
            return UserError(
                f'tokenizer: vocab_size={self.vocab_size} is smaller than the '
                f'{int(needed[1]) - special:,} characters of the training text and '
                f'{special} special ids; give at least {needed[1]}'
            )
        if 'sentences_.empty()' in message:
            return UserError('data: the training text is blank')
        return UserError(f'tokenizer: SentencePiece cannot learn: {reason(message)}')

    def opened(self, model):
        """With a serialized model, whose number of ids is `vocab_size`."""
        found = dataclasses.replace(self, model=model)
        return dataclasses.replace(found, vocab_size=found._processor.vocab_size())

    @functools.cached_property
    def _processor(self) -> sentencepiece.SentencePieceProcessor:
        return sentencepiece.SentencePieceProcessor(model_proto=self.model)

    def encode(self, texts):
        """The ids of each text, without BOS and EOS; a blank text has none."""
        check_list('texts', texts)
        return self._processor.encode([_plain(text) for text in texts])

    @property
    def samples(self):
        return self.alpha > 0

    def sample(self, row, seed):
        """Others of the text; words with UNK, bytes or symbols stay as they are."""
        generator = random.Random(seed)
        draw = bpe_dropout if self.model_type == 'bpe' else unigram_sample
        drawn = []
        for word in self._words(row):
            pieces = [self._pieces[i] for i in word]
            if all(piece in self._scores for piece in pieces):
                pieces = draw(pieces, self._scores, self.alpha, generator)
                word = [self._ids[piece] for piece in pieces]
            drawn += word
        return drawn

    def _words(self, row: list[int]) -> list[list[int]]:
        """The ids of each word, which no piece reaches beyond."""
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
        """Piece → its score, of those that are learnt of text: no symbol, no byte."""
        processor = self._processor
        learnt = {}
        for i, piece in enumerate(self._pieces):
            is_special = processor.is_control(i) or processor.is_unknown(i)
            if not (is_special or processor.is_byte(i) or piece in self.symbols):
                learnt[piece] = processor.get_score(i)
        return learnt

    def decode(self, ids):
        """The text of each row up to its first EOS; PAD and BOS count for nothing."""
        return self._processor.decode([text_ids(row) for row in ids])

    def pieces(self, ids):
        """How each id is written."""
        return [self._processor.id_to_piece(int(i)) for i in ids]


def _check_symbol(symbol: Any, taken: Collection[str]) -> None:
    """Raises ValueError for a symbol that cannot be a piece of its own."""
    problem = ''
    if not isinstance(symbol, str) or not symbol:
        problem = 'is not text; give a text of at least one character'
    elif symbol in taken:
        problem = 'is a piece already; leave it out or choose another'
    elif symbol != _plain(symbol) or ' ' in symbol:
        problem = 'never occurs in text as it is encoded; use NFC without spaces and ▁'
    if problem:
        raise ValueError(f'user_defined_symbols: {ranges.shown(symbol)} {problem}')


def _plain(text: str) -> str:
    return normalize(text).replace(_SPACE, '_')


def _learnable(text: str) -> str:
    """Returns the text in a form that SentencePiece reads word for word."""
    text = _plain(text).replace(_SKIPPED, _BOUNDARY)
    return _RESERVED.sub(f'<{_BOUNDARY}', text)


# How a word is cut into pieces, drawn: the same from the same seed, wherever it runs.
# SentencePiece draws as well, but by a generator that other processes start elsewhere.


def bpe_dropout(
    pieces: list[str], scores: Scores, rate: float, generator: random.Random
) -> list[str]:
    """Merges a word's characters, where each merge is left out of a step at a rate.

    Provilkov et al. 2020, algorithm 1. Of the merges that remain the one learnt first
    is made, until none remains. How many are made before one is left out is geometric:
    for most words one draw says that it is all of them.

    Args:
      pieces: of the word, as it is encoded without sampling.
      scores: of each piece; the higher, the sooner its merge was learnt.
      rate: above 0, at most 1.
    """
    word = ''.join(pieces)
    made = _until_left_out(rate, generator)
    if made >= len(word) - len(pieces):
        return pieces
    pieces = list(word)
    while True:
        unions = [left + right for left, right in itertools.pairwise(pieces)]
        merges = [i for i, union in enumerate(unions) if union in scores]
        for i in sorted(merges, key=lambda i: -scores[unions[i]]):
            if made:
                made -= 1
                pieces[i : i + 2] = [unions[i]]
                break
            made = _until_left_out(rate, generator)
        else:
            return pieces


def _until_left_out(rate: float, generator: random.Random) -> int:
    if rate == 1:
        return 0
    return int(math.log(1 - generator.random()) / math.log1p(-rate))


def unigram_sample(
    pieces: list[str], scores: Scores, alpha: float, generator: random.Random
) -> list[str]:
    """Draws a segmentation x of a word with the probability P(x)^α / Σ P^α.

    Kudo 2018, equation 7 over all segmentations: sums run forward over the ends of
    pieces, and the pieces are drawn backward from the last.

    Args:
      pieces: of the word, as it is encoded without sampling.
      scores: log-probability of each piece.
      alpha: α; the smaller, the more evenly all segmentations come.
    """
    word = ''.join(pieces)
    totals = [0.0]  # log Σ P^α over all segmentations of the characters so far
    last_pieces: list[dict[str, float]] = [{}]  # piece → its part of the total, a log
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
