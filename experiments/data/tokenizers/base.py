"""Base class of tokenizers."""

import dataclasses
import itertools
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from experiments import storage
from experiments.data.digest import hex_digest, read_code
from experiments.errors import UserError, prefix_errors
from flaxformer_lite.special_tokens import DEFAULT_TOKENS, SpecialTokens
from flaxformer_lite.validation import Checked

Progress = Callable[[int], None]  # called with the number of processed texts
PAD, EOS, BOS, UNK = 0, 1, 2, 3
UNKNOWN = '\N{DOUBLE QUESTION MARK}'  # how UNK is decoded


class Tokenizer(Checked):
    """Base class of tokenizers of both languages: a frozen dataclass.

    The spec gives all arguments except `model`, and makes an untrained tokenizer;
    `opened` returns a trained one. For known pieces, `decode` inverts `encode` up to
    `normalize`.

    Attributes:
      vocab_size: Number of ids. Before training, this is the maximum, because a short
        text may have too few distinct pieces.
      model: Result of training, the content of the saved file. Empty before training.
      source_eos: The id that ends each source, if any.
      forced_first: The id that begins each target, if any.
      reads_vectors: Whether `encode` returns float32 vectors (length, features).
        `vocab_size` is then the number of features.
    """

    vocab_size: int
    model: bytes
    special_tokens: SpecialTokens = DEFAULT_TOKENS
    source_eos: int | None = DEFAULT_TOKENS.eos
    forced_first: int | None = None
    reads_vectors: bool = False

    @property
    def sides(self) -> 'tuple[Tokenizer, Tokenizer]':
        """The tokenizers of sources and of targets."""
        return self, self

    @property
    def source_vocab_size(self) -> int | None:
        """The number of source ids, if sources have a separate tokenizer."""
        return None

    @property
    def source_features(self) -> int | None:
        """The number of features if sources are vectors, else None."""
        return self.source_vocab_size if self.reads_vectors else None

    @property
    def dtype(self) -> str:
        """The NumPy dtype of ids on disk, or of vectors including their shape."""
        return 'uint16' if self.vocab_size <= 1 << 16 else 'uint32'

    @property
    def digest(self) -> str:
        """A hex digest of everything that affects ids, including the code."""
        kinds = [kind for kind in type(self).__mro__ if issubclass(kind, Tokenizer)]
        return hex_digest(repr(self), self.model, *map(read_code, kinds))

    @property
    def model_digest(self) -> str:
        """A hex digest of the saved file, which checkpoints store."""
        return hex_digest(self.model)

    def largest_vocab_size(self) -> int:
        """Returns the maximum of `vocab_size`; overrides may read files."""
        return self.vocab_size

    def derived(self, other: 'Tokenizer') -> 'Tokenizer | None':
        """Returns the tokenizer that this one's arguments make of a trained one.

        A run with `init_from` uses it. With None, the run trains its own.
        """
        return None

    @property
    def like_pieces(self) -> Mapping[str, str]:
        """New pieces, each with the piece whose embedding initializes it."""
        return {}

    def train(self, texts: Iterable[str]) -> bytes:
        """Learns from streamed texts of both sides, and returns the `model`."""
        raise NotImplementedError

    def opened(self, model: bytes) -> Self:
        """Returns a trained tokenizer with the given model.

        Raises UserError, ValueError or RuntimeError if the model cannot be read.
        """
        return dataclasses.replace(self, model=model)  # pyright: ignore

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Returns the ids of each source, without `source_eos`; none for blank text."""
        raise NotImplementedError

    def with_end(self, row: Any) -> Any:
        """Appends `source_eos`, if any, to a row."""
        return row if self.source_eos is None else [*row, self.source_eos]

    @property
    def samples(self) -> bool:
        """True if training should sample new ids in each epoch."""
        return False

    def sample(self, row: list[int], seed: int) -> list[int]:
        """Returns other ids of a row of `encode`, drawn by a seed in 0..2³¹ − 1."""
        return row

    def encode_target(self, texts: list[str]) -> list[list[int]]:
        """Returns the ids of each target, without start and end tokens."""
        return self.encode(texts)

    def encode_pairs(
        self, pairs: Sequence[tuple[str, str]]
    ) -> tuple[list[Any], list[Any]]:
        sources = self.encode([source for source, _ in pairs])
        return sources, self.encode_target([target for _, target in pairs])

    def first_tokens(self, texts: Sequence[str]) -> list[int | None]:
        """Returns the token that begins the target of each source, if any."""
        return [self.forced_first] * len(texts)

    def direction(self, text: str) -> tuple[str, str] | None:
        """Returns the languages of a source and its target, if it knows them."""
        return None

    def check_directions(
        self, directions: Sequence[tuple[str, str]], tags: bool | str
    ) -> None:
        """Raises UserError if the tokenizer can't write the languages of the data.

        `directions` are those of the parts of the data, and `tags` is `mix`'s argument.
        """

    def decode(self, ids: list[list[int]]) -> list[str]:
        """Returns the text of each row up to EOS, without padding and start tokens."""
        raise NotImplementedError

    def pieces(self, ids: list[int]) -> list[str]:
        """Returns the piece of each id."""
        raise NotImplementedError

    def save(self, path: Path) -> None:
        """Writes the model file atomically."""
        storage.write(path, self.model)

    def open(self, path: Path) -> Self:
        """Opens a file that `save` wrote."""
        return self.opened(path.read_bytes())


def encode_lines(
    encode: Callable[[list[Any]], Any],
    lines: list[Any],
    first: int = 0,
    unit: str = 'line',
) -> Any:
    """Encodes texts or pairs; an error about one of them names its line.

    `first` is the number of earlier lines.
    """
    try:
        return encode(lines)
    except UserError:
        encode([])  # raises errors that no line causes, such as of a missing file
        for number, text in enumerate(lines, first + 1):
            with prefix_errors(f'{unit} {number:,}'):
                encode([text])
        raise


def normalize(text: str) -> str:
    """Returns NFC text, with each run of white space as one space."""
    return ' '.join(unicodedata.normalize('NFC', text).split())


def on_one_line(text: str) -> str:
    return ' '.join(text.splitlines())


def until(end: int, row: Iterable[int]) -> list[int]:
    return list(itertools.takewhile(lambda i: i != end, map(int, row)))


def text_ids(row: Iterable[int]) -> list[int]:
    return [i for i in until(EOS, row) if i not in (PAD, BOS)]
