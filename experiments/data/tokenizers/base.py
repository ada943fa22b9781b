"""What every tokenizer offers."""

import dataclasses
import itertools
import unicodedata
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self

from experiments import storage
from experiments.data.digest import code_of, hex_digest
from flaxformer_lite.ranges import Checked
from flaxformer_lite.special_tokens import DEFAULT_TOKENS, SpecialTokens

Progress = Callable[[int], None]  # is told how many texts are done, now and then
PAD, EOS, BOS, UNK = 0, 1, 2, 3
UNKNOWN = '\N{DOUBLE QUESTION MARK}'  # how UNK is decoded


class Tokenizer(Checked):
    """Text to ids and back, of both languages: a frozen dataclass.

    The arguments in the spec are those of the class, but for `model`. An object as the
    spec makes it is to be trained; `opened` with what it learnt it has its ids, and
    `decode` undoes `encode` up to `normalize` for text of known pieces.

    Attributes:
      vocab_size: the number of ids; before it is trained, the largest it may have.
      model: what it learnt: the content of its file. Empty before.
      special_tokens: which ids are no text.
      source_end: the id that each source ends with; None for none.
      forced_first: the id that each target begins with; None for any.
      reads_vectors: whether `encode` gives vectors, float32 (length, features), in
        place of ids; `vocab_size` is then the number of features.

    Raises:
      ValueError: when made, for arguments that cannot be.
    """

    vocab_size: int
    model: bytes
    special_tokens: SpecialTokens = DEFAULT_TOKENS
    source_end: int | None = DEFAULT_TOKENS.end
    forced_first: int | None = None
    reads_vectors: bool = False

    @property
    def sides(self) -> 'tuple[Tokenizer, Tokenizer]':
        """That of sources and that of targets; here it is both."""
        return self, self

    @property
    def source_vocab_size(self) -> int | None:
        """The number of ids of sources, where these have a tokenizer of their own."""
        return None

    @property
    def dtype(self) -> str:
        """NumPy's, of a row of ids on disk; of vectors with their shape."""
        return 'uint16' if self.vocab_size <= 1 << 16 else 'uint32'

    @property
    def digest(self) -> str:
        """A hexadecimal digest of all by which ids may differ, the class's code too."""
        kinds = [kind for kind in type(self).__mro__ if issubclass(kind, Tokenizer)]
        return hex_digest(repr(self), self.model, *map(code_of, kinds))

    def largest_vocab_size(self) -> int:
        """`vocab_size`; an override may have to read files for it."""
        return self.vocab_size

    def train(self, texts: Iterable[str]) -> bytes:
        """What it learns of texts, to be its `model`.

        Args:
          texts: of both sides, streamed; blank ones are among them.

        Raises:
          UserError: it cannot be made of these.
        """
        raise NotImplementedError

    def opened(self, model: bytes) -> Self:
        """The same with what was learnt.

        Raises:
          UserError, ValueError, RuntimeError: it cannot be read.
        """
        return dataclasses.replace(self, model=model)  # pyright: ignore

    def encode(self, texts: list[str]) -> list[list[int]]:
        """The ids of each source, without `source_end`; a blank text has none.

        Raises:
          UserError: `texts` is one text.
        """
        raise NotImplementedError

    def with_end(self, row: Any) -> Any:
        """A row of `encode` with `source_end`."""
        return row if self.source_end is None else [*row, self.source_end]

    @property
    def samples(self) -> bool:
        """Whether training is to draw ids anew in each epoch."""
        return False

    def sample(self, row: list[int], seed: int) -> list[int]:
        """Other ids of the same text, drawn by the seed alone.

        Args:
          row: of `encode`.
          seed: from 0 to 2³¹ − 1.
        """
        return row

    def encode_target(self, texts: list[str]) -> list[list[int]]:
        """The ids of each target, without start and end; here as of sources."""
        return self.encode(texts)

    def decode(self, ids: list[list[int]]) -> list[str]:
        """The text of each row up to its first end; padding and starts are no text."""
        raise NotImplementedError

    def pieces(self, ids: list[int]) -> list[str]:
        """How each id is written."""
        raise NotImplementedError

    def save(self, path: Path) -> None:
        """Writes its file, complete or not at all, and a sum beside it."""
        storage.write(path, self.model)
        storage.write_sums(sums_file(path), [path])

    def open(self, path: Path) -> Self:
        """As `opened`, with the file that `save` wrote, which is known to be whole."""
        return self.opened(storage.read_bytes(path))


def sums_file(path: Path) -> Path:
    """Where the sum of a tokenizer's file is."""
    return path.with_name(f'{path.name}.sha256')


def normalize(text: str) -> str:
    """NFC, with one space for each run of white space of any kind."""
    return ' '.join(unicodedata.normalize('NFC', text).split())


def on_one_line(text: str) -> str:
    """The text with spaces in place of its line ends, of whichever kind."""
    return ' '.join(text.splitlines())


def until(end: int, row: Iterable[int]) -> list[int]:
    """The ids of a row before its first end."""
    return list(itertools.takewhile(lambda i: i != end, map(int, row)))


def text_ids(row: Iterable[int]) -> list[int]:
    """The ids of a row up to its first EOS, without PAD and BOS."""
    return [i for i in until(EOS, row) if i not in (PAD, BOS)]
