"""The training pairs as token ids in files: tokenised once, then memory-mapped."""

import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np

from experiments.command_line.errors import UserError
from experiments.data.sources import Source
from experiments.data.tokenizer import Tokenizer
from experiments.storage import checksums, files

T = TypeVar('T')
_CHUNK = 8192  # pairs tokenised at once
_ABOUT = 'corpus.json'
_FILES = (
    *(_ABOUT, 'source.tokens', 'source.offsets'),
    *('target.tokens', 'target.offsets'),
)


@dataclasses.dataclass(frozen=True)
class RaggedArray:
    """Rows of unequal length, stored one behind the other.

    Attributes:
      tokens: [tokens], uint16 or uint32.
      offsets: [rows + 1], int64: where each row begins, and where the last one ends.
    """

    tokens: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of(cls, rows: list[list[int]], dtype: str = 'uint32') -> 'RaggedArray':
        tokens = np.fromiter(itertools.chain.from_iterable(rows), dtype)
        return cls(tokens, np.cumsum([0, *map(len, rows)], dtype=np.int64))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        return self.tokens[self.offsets[row] : self.offsets[row + 1]]

    def lengths(self, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        """The lengths of all rows, or of those asked for: int64."""
        return self.offsets[1:][rows] - self.offsets[:-1][rows]


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Pairs as ids, without BOS and EOS.

    Attributes:
      source, target: row i of one translates row i of the other.
      skipped: pairs that were left out because a side was blank.
      digest: of its files; '' for pairs in memory.
    """

    source: RaggedArray
    target: RaggedArray
    skipped: int = 0
    digest: str = ''

    def __len__(self) -> int:
        return len(self.source)


def tokenize(pairs: list[tuple[str, str]], tokenizer: Tokenizer) -> Corpus:
    """All the pairs, blank ones too, in memory: for evaluation sets."""

    def ragged(texts: list[str]) -> RaggedArray:
        return RaggedArray.of(tokenizer.encode(texts), _dtype(tokenizer))

    return Corpus(
        source=ragged([source for source, _ in pairs]),
        target=ragged([target for _, target in pairs]),
    )


def prepare(
    data: Source,
    tokenizer: Tokenizer,
    cache: Path,
    progress: Callable[[int], None] | None = None,
) -> Corpus:
    """The training pairs, without those that have a blank side.

    They are streamed into files under `cache`, in memory that does not grow with the
    text; files that are there for this text and tokenizer, undamaged, are used again.
    Several processes may do so at the same time.

    Args:
      progress: is told from time to time how many pairs are done; what it raises ends
        the work.

    Raises:
      UserError: there is no pair with text on both sides.
    """
    key = hashlib.sha256(f'{data.digest()} {tokenizer.digest}'.encode()).hexdigest()
    folder = cache / f'corpus-{key[:32]}'

    def make(draft: Path) -> None:
        _write(draft, data.train(), tokenizer, progress)

    checksums.keep(folder, _FILES, make)
    return _read(folder)


def _write(
    folder: Path,
    pairs: Iterable[tuple[str, str]],
    tokenizer: Tokenizer,
    progress: Callable[[int], None] | None,
) -> None:
    dtype = _dtype(tokenizer)
    kept = 0
    skipped = 0
    with (
        _Writer(folder / 'source', dtype) as source,
        _Writer(folder / 'target', dtype) as target,
    ):
        for chunk in chunks(pairs, _CHUNK):
            source_ids = tokenizer.encode([text for text, _ in chunk])
            target_ids = tokenizer.encode([text for _, text in chunk])
            pairs_of_ids = zip(source_ids, target_ids, strict=True)
            full = [pair for pair in pairs_of_ids if all(pair)]
            source.add([ids for ids, _ in full])
            target.add([ids for _, ids in full])
            kept += len(full)
            skipped += len(chunk) - len(full)
            if progress:
                progress(kept + skipped)
    if not kept:
        raise UserError('data: no training pair has text on both sides')
    files.write_json(folder / _ABOUT, {'dtype': dtype, 'skipped': skipped})


class _Writer:
    """Appends rows to the two files of a RaggedArray."""

    def __init__(self, stem: Path, dtype: str):
        self._dtype = dtype
        self._end = 0
        self._tokens = stem.with_suffix('.tokens').open('wb')
        self._offsets = stem.with_suffix('.offsets').open('wb')
        self._offsets.write(np.zeros(1, np.int64).tobytes())

    def __enter__(self) -> '_Writer':
        return self

    def __exit__(self, *_) -> None:
        self._tokens.close()
        self._offsets.close()

    def add(self, rows: list[list[int]]) -> None:
        ragged = RaggedArray.of(rows, self._dtype)
        self._tokens.write(ragged.tokens.tobytes())
        self._offsets.write((ragged.offsets[1:] + self._end).tobytes())
        self._end += len(ragged.tokens)


def _read(folder: Path) -> Corpus:
    about = files.read_json(folder / _ABOUT)

    def ragged(side: str) -> RaggedArray:
        tokens = np.memmap(folder / f'{side}.tokens', about['dtype'], 'r')
        offsets = np.memmap(folder / f'{side}.offsets', np.int64, 'r')
        return RaggedArray(np.asarray(tokens), np.asarray(offsets))

    digest = checksums.sha256(folder / checksums.SUMS) or ''
    return Corpus(ragged('source'), ragged('target'), about['skipped'], digest)


def _dtype(tokenizer: Tokenizer) -> str:
    return 'uint16' if tokenizer.vocab_size <= 1 << 16 else 'uint32'


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items in lists of `size`, the last one shorter."""
    iterator = iter(items)
    while chunk := list(itertools.islice(iterator, size)):
        yield chunk
