"""Tokenizers: what is asked of one, and SentencePiece's BPE (paper §5.1)."""

import dataclasses
import functools
import hashlib
import io
import itertools
import re
import unicodedata
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import sentencepiece

from experiments import storage
from experiments.data.sources import Source
from experiments.errors import UserError, warn
from flaxformer_lite.special_tokens import DEFAULT_TOKENS, SpecialTokens

PAD, EOS, BOS, UNK = 0, 1, 2, 3

# Text is normalised here, so SentencePiece is to leave it alone; then decode gives back
# what encode got. Every character of the training text is a piece; bytes as a fallback
# would cost 256 ids that training text never uses, so a character unseen in training is
# UNK. The number of threads is part of the model's bytes.
_SETTINGS: dict[str, Any] = dict(
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
_COUNTED = 8192  # pairs read between two reports of progress
_MODEL = 'tokenizer.model'


class Tokenizer(Protocol):
    """Text to ids and back: what the runner asks of any tokenizer.

    Attributes:
      model: the content of its file.
      vocab_size: the number of ids.
      special_tokens: which tokens are no text.
      source_end: the token that each source ends with; None for none.
      forced_first: the token that each target begins with; None for any.
      digest: tells it from any other.
    """

    @property
    def model(self) -> bytes: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def special_tokens(self) -> SpecialTokens: ...

    @property
    def source_end(self) -> int | None: ...

    @property
    def forced_first(self) -> int | None: ...

    @property
    def digest(self) -> str: ...

    def encode(self, texts: list[str]) -> list[list[int]]:
        """The ids of each source, without `source_end`; a blank text has none."""
        ...

    def encode_target(self, texts: list[str]) -> list[list[int]]:
        """The ids of each target, without start and end token."""
        ...

    def decode(self, ids: list[list[int]]) -> list[str]:
        """The text of each row up to its first end token."""
        ...

    def pieces(self, ids: list[int]) -> list[str]:
        """How each id is written."""
        ...

    def save(self, path: Path) -> None:
        """Writes its file, complete or not at all, and a sum beside it."""
        ...


@dataclasses.dataclass(frozen=True)
class TrainedTokenizer:
    """SentencePiece's byte-pair encoding, trained on a run's own text.

    `decode` undoes `encode` up to `normalize`, for all text in characters seen in
    training.

    Attributes:
      model: the serialized SentencePiece model.
      special_tokens: those that it was trained with.
      source_end: EOS.
      forced_first: targets may begin with any token.
    """

    model: bytes
    special_tokens: SpecialTokens = DEFAULT_TOKENS
    source_end: int = EOS
    forced_first: None = None

    @functools.cached_property
    def _processor(self) -> sentencepiece.SentencePieceProcessor:
        return sentencepiece.SentencePieceProcessor(model_proto=self.model)

    @property
    def vocab_size(self) -> int:
        """The number of ids; fewer than asked for where the text is short."""
        return self._processor.vocab_size()

    @property
    def digest(self) -> str:
        """SHA-256 of the model."""
        return hashlib.sha256(self.model).hexdigest()

    def encode(self, texts: list[str]) -> list[list[int]]:
        """The ids of each text, without BOS and EOS; a blank text has none."""
        return self._processor.encode([normalize(text) for text in texts])

    def encode_target(self, texts: list[str]) -> list[list[int]]:
        """As `encode`: both languages share the vocabulary."""
        return self.encode(texts)

    def decode(self, ids: list[list[int]]) -> list[str]:
        """The text of each row up to its first EOS; PAD and BOS count for nothing."""
        rows = [itertools.takewhile(lambda i: i != EOS, row) for row in ids]
        return self._processor.decode(
            [[int(i) for i in row if i not in (PAD, BOS)] for row in rows]
        )

    def pieces(self, ids: list[int]) -> list[str]:
        """How each id is written; a word's first piece begins with ▁."""
        return [self._processor.id_to_piece(int(i)) for i in ids]

    def save(self, path: Path) -> None:
        """Writes the model."""
        write_model(path, self.model)


def normalize(text: str) -> str:
    """NFC, with one space for each run of white space of any kind."""
    text = unicodedata.normalize('NFC', text)
    text = text.replace('▁', '_')  # SentencePiece's sign for a space
    return ' '.join(text.split())


def write_model(path: Path, model: bytes) -> None:
    """Writes the file of a tokenizer, and its sum beside it."""
    storage.write(path, model)
    storage.write_sums(_sums(path), [path])


def load(path: Path) -> TrainedTokenizer:
    """Raises UserError if there is no file, or if it is not what was saved."""
    wrong = damage(path)
    if wrong:
        raise UserError(
            f'{path} is damaged ({wrong}): start its run again with the same command '
            'and training text, which writes it anew'
        )
    return _parse(path)


def damage(path: Path) -> str:
    """What is wrong with a saved tokenizer; '' for nothing, or without a sum."""
    sums = _sums(path)
    return storage.damage(sums) if storage.exists(sums) else ''


def check_same(tokenizer: Tokenizer, path: Path) -> None:
    """Refuses a tokenizer of other text than the one that was saved, if one was.

    To save it again mends a damaged file.

    Raises:
      UserError: the tokenizer is another one.
    """
    saved = storage.read_sums(_sums(path)).get(path.name)
    if saved not in (None, hashlib.sha256(tokenizer.model).hexdigest()):
        raise UserError(
            f'the training text is not what {path.parent} was begun with: its '
            'tokenizer differs. Restore the text, or begin a new run with another '
            '--workdir'
        )
    if damage(path):
        warn(f'{path} is damaged ({damage(path)}): it is written anew')


def _sums(path: Path) -> Path:
    return path.with_name(f'{path.name}.sha256')


def _parse(path: Path) -> TrainedTokenizer:
    try:
        tokenizer = TrainedTokenizer(path.read_bytes())
        tokenizer.vocab_size  # noqa: B018 (parses the model)
    except (OSError, RuntimeError) as error:
        raise UserError(f'{path} cannot be read as a tokenizer: {error}') from None
    return tokenizer


def train(
    data: Source,
    vocab_size: int,
    cache: Path,
    progress: Callable[[int], None] | None = None,
) -> TrainedTokenizer:
    """The tokenizer of a training text, made once for each text and kept in `cache`.

    Of more than a million pairs, pairs spaced evenly over all of them are used. Text
    that is too short for `vocab_size` pieces gives as many as it has.

    Args:
      progress: is told how many pairs are read so far, now and then; what takes time
        after that, the merging of pieces, does not say how far it is.

    Raises:
      UserError: `vocab_size` is less than the text has characters, or there is no text.
    """
    key = repr((data.digest(), vocab_size, _SAMPLE, sorted(_SETTINGS.items())))
    folder = cache / f'tokenizer-{hashlib.sha256(key.encode()).hexdigest()[:32]}'

    def make(draft: Path) -> None:
        pairs = _sample(data.train(), _SAMPLE, progress)
        (draft / _MODEL).write_bytes(_train(pairs, vocab_size))

    storage.cache_folder(folder, make)
    return _parse(folder / _MODEL)


def _sample(
    pairs: Iterable[tuple[str, str]],
    limit: int,
    progress: Callable[[int], None] | None = None,
) -> list[tuple[str, str]]:
    """Every pair, or every second, fourth, …, so that at most `limit` remain."""
    sample = []
    stride = 1
    for i, pair in enumerate(pairs):
        if progress is not None and i % _COUNTED == 0:
            progress(i)
        if i % stride == 0:
            sample.append(pair)
            if len(sample) > limit:
                sample = sample[::2]
                stride *= 2
    return sample


def _train(pairs: list[tuple[str, str]], vocab_size: int) -> bytes:
    model = io.BytesIO()
    sentences = (normalize(text) for pair in pairs for text in pair)
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=filter(None, sentences),
            model_writer=model,
            # With less, it fails before it has counted the characters.
            vocab_size=max(vocab_size, 5),
            **_SETTINGS,
        )
    except RuntimeError as error:
        needed = re.search(r'required_chars\. \d+ vs (\d+)', str(error))
        if needed:
            raise UserError(
                f'tokenizer.vocab_size={vocab_size} is smaller than the '
                f'{int(needed[1]) - 4:,} characters of the training text and four '
                f'special ids; give at least {needed[1]}'
            ) from None
        if 'sentences_.empty()' in str(error):
            raise UserError('data: the training text is blank') from None
        raise
    return model.getvalue()
