"""SentencePiece, joint byte-pair encoding over both languages (paper §5.1)."""

import dataclasses
import functools
import hashlib
import io
import itertools
import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path

import sentencepiece

from experiments import files
from experiments.data import Source
from experiments.errors import UserError

PAD, EOS, BOS, UNK = 0, 1, 2, 3

# Text is normalised here, so SentencePiece is to leave it alone; then decode gives back what encode
# got. Every character of the training text is a piece; bytes as a fallback would cost 256 ids that
# training text never uses, so a character unseen in training is UNK. The number of threads is part
# of the model's bytes.
_SETTINGS = dict(
    model_type='bpe',
    pad_id=PAD,
    eos_id=EOS,
    bos_id=BOS,
    unk_id=UNK,
    unk_surface='\N{DOUBLE QUESTION MARK}',
    character_coverage=1.0,
    normalization_rule_name='identity',
    remove_extra_whitespaces=False,
    max_sentence_length=1 << 20,
    hard_vocab_limit=False,
    num_threads=1,
    minloglevel=2,
)
_SAMPLE = 1_000_000  # pairs; more text moves the merges little and costs memory


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """Text to ids and back.

    `decode` undoes `encode` up to `normalize`, for all text in characters seen in training.

    Attributes:
      model: the serialized SentencePiece model.
    """

    model: bytes

    @functools.cached_property
    def _processor(self) -> sentencepiece.SentencePieceProcessor:
        return sentencepiece.SentencePieceProcessor(model_proto=self.model)

    @property
    def vocab_size(self) -> int:
        """The number of ids, special ones included; fewer than asked for where text is short."""
        return self._processor.vocab_size()

    @functools.cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.model).hexdigest()

    def encode(self, texts: list[str]) -> list[list[int]]:
        """The ids of each text, without BOS and EOS; a blank text has none."""
        return self._processor.encode([normalize(text) for text in texts])

    def decode(self, ids: list[list[int]]) -> list[str]:
        """The text of each row up to its first EOS; PAD and BOS count for nothing."""
        rows = [itertools.takewhile(lambda i: i != EOS, row) for row in ids]
        return self._processor.decode(
            [[int(i) for i in row if i not in (PAD, BOS)] for row in rows]
        )

    def save(self, path: Path) -> None:
        """Writes the model, whole or not at all."""
        files.write(path, self.model)


def normalize(text: str) -> str:
    """NFC, and each run of white space (tabs, no-break spaces, line separators) as one space."""
    text = unicodedata.normalize('NFC', text).replace(
        '▁', '_'
    )  # SentencePiece's sign for a space
    return ' '.join(text.split())


def load(path: Path) -> Tokenizer:
    """Raises UserError if there is no file or if it is no SentencePiece model."""
    try:
        tokenizer = Tokenizer(path.read_bytes())
        tokenizer.vocab_size  # noqa: B018 (parses the model)
    except (OSError, RuntimeError) as error:
        raise UserError(f'{path} cannot be read as a tokenizer: {error}') from None
    return tokenizer


def train(data: Source, vocab_size: int, cache: Path) -> Tokenizer:
    """The tokenizer of the data's training text, made once and kept in `cache` by that content.

    Of more than a million pairs, pairs spaced evenly over all of them are used. Text that is too
    short for `vocab_size` pieces gives as many as it has.

    Raises:
      UserError: `vocab_size` is less than the text has characters, or there is no text.
    """
    key = repr((data.digest(), vocab_size, _SAMPLE, sorted(_SETTINGS.items())))
    path = cache / f'tokenizer-{hashlib.sha256(key.encode()).hexdigest()[:32]}.model'
    if not path.exists():
        Tokenizer(_train(_sample(data.train(), _SAMPLE), vocab_size)).save(path)
    return load(path)


def _sample(pairs: Iterable[tuple[str, str]], limit: int) -> list[tuple[str, str]]:
    """Each pair, or each second, fourth, … so that at most `limit` remain of however many."""
    kept, stride = [], 1
    for i, pair in enumerate(pairs):
        if i % stride == 0:
            kept.append(pair)
            if len(kept) > limit:
                kept, stride = kept[::2], stride * 2
    return kept


def _train(pairs: list[tuple[str, str]], vocab_size: int) -> bytes:
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=filter(
                None, (normalize(text) for pair in pairs for text in pair)
            ),
            model_writer=model,
            # With less, it fails before it has counted the characters.
            vocab_size=max(vocab_size, 5),
            **_SETTINGS,
        )
    except RuntimeError as error:
        needed = re.search(r'required_chars\. \d+ vs (\d+)', str(error))
        if needed:
            raise UserError(
                f'tokenizer.vocab_size={vocab_size} is smaller than the {int(needed[1]) - 4:,} '
                f'characters of the training text and four special ids; give at least {needed[1]}'
            ) from None
        if 'sentences_.empty()' in str(error):
            raise UserError('data: the training text is blank') from None
        raise
    return model.getvalue()
