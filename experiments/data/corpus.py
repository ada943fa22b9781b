"""The training pairs as token ids in files: tokenised once, then memory-mapped."""

import contextlib
import dataclasses
import hashlib
import itertools
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from typing import TypeVar

import numpy as np

from experiments import storage
from experiments.data import checksums
from experiments.data.ragged import RaggedArray
from experiments.data.sources import Source
from experiments.data.tokenising import part, store
from experiments.data.tokenising.part import Part
from experiments.data.tokenising.pool import Pool
from experiments.data.tokenizer import Tokenizer
from experiments.errors import UserError
from flaxformer_lite.special_tokens import DEFAULT_TOKENS, SpecialTokens

T = TypeVar('T')
Pairs = list[tuple[str, str]]
_CHUNK = 8192  # pairs tokenised at once; more would cost each process more memory
_FEW = 1 << 16  # pairs that are tokenised in less time than it takes to gain any
_AHEAD = 2  # chunks that wait for each process, so that none of them waits
_POLL = 0.1  # seconds between two reports of progress
_ABOUT = 'corpus.json'
_FILES = (
    *(_ABOUT, 'source.tokens', 'source.offsets'),
    *('target.tokens', 'target.offsets'),
)


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Pairs as ids, without BOS and EOS.

    Attributes:
      source, target: row i of one translates row i of the other.
      skipped: pairs that were left out because a side was blank.
      digest: of its files; '' for pairs in memory.
      special_tokens: what batches of it start, end and are filled up with.
      source_end: what sources end with; None for nothing.
    """

    source: RaggedArray
    target: RaggedArray
    skipped: int = 0
    digest: str = ''
    special_tokens: SpecialTokens = DEFAULT_TOKENS
    source_end: int | None = DEFAULT_TOKENS.end

    def __len__(self) -> int:
        return len(self.source)

    def lengths(self, pairs: np.ndarray | slice = slice(None)) -> np.ndarray:
        """[pairs, 2]: the lengths of both sides, EOS included."""
        sides = (self.source, self.target)
        return np.stack([side.lengths(pairs) + 1 for side in sides], axis=1)


def tokenize(pairs: list[tuple[str, str]], tokenizer: Tokenizer) -> Corpus:
    """All the pairs, blank ones too, in memory: for evaluation sets."""

    dtype = part.id_dtype(tokenizer)
    sources = tokenizer.encode([source for source, _ in pairs])
    targets = tokenizer.encode_target([target for _, target in pairs])
    return Corpus(
        source=RaggedArray.of(sources, dtype),
        target=RaggedArray.of(targets, dtype),
        special_tokens=tokenizer.special_tokens,
        source_end=tokenizer.source_end,
    )


def prepare(
    data: Source,
    tokenizer: Tokenizer,
    cache: Path,
    progress: Callable[[int], None] | None = None,
    processes: int | None = None,
) -> Corpus:
    """The training pairs, without those that have a blank side.

    They are streamed into files under `cache`, in memory that does not grow with the
    text; files that are there for this text and tokenizer, undamaged, are used again.
    A large text is tokenised by several processes, in parts that are kept until it is
    whole: a start after a kill goes on from those. The files do not depend on either.
    Where several processes ask for the same large text, one makes it and the others
    wait.

    Args:
      progress: is told from time to time how many pairs are done; what it raises ends
        the work.
      processes: that tokenise a large text; by default one for each core that this
        process may use.

    Raises:
      UserError: there is no pair with text on both sides; the disk is full; a process
        has ended.
    """
    key = hashlib.sha256(f'{data.digest()} {tokenizer.digest}'.encode()).hexdigest()
    folder = cache / f'corpus-{key[:32]}'
    work = _Work(tokenizer, folder, progress or _ignore, processes or _cores())

    def make(draft: Path) -> None:
        with contextlib.closing(work.parts(data.train())) as parts:
            _write(draft, part.id_dtype(tokenizer), parts)

    checksums.keep(folder, _FILES, make)
    if storage.exists(work.unfinished):
        storage.remove(work.unfinished)
    return _read(folder, tokenizer)


def _ignore(pairs: int) -> None:
    """Nobody wants to know."""


def _cores() -> int:
    """Those that this process may use."""
    if hasattr(os, 'sched_getaffinity'):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Work:
    """The tokenising of a text.

    Args:
      tokenizer: what with.
      folder: where the corpus will be.
      progress: is told how many pairs are done.
      processes: that tokenise a large text.

    Attributes:
      unfinished: the folder of a large text's parts, until the corpus is whole.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        folder: Path,
        progress: Callable[[int], None],
        processes: int,
    ):
        self._tokenizer = tokenizer
        self._folder = folder
        self._progress = progress
        self._processes = processes
        self.unfinished = folder.with_name(f'.{folder.name}.parts')

    def parts(self, pairs: Iterable[tuple[str, str]]) -> Generator[Part, None, None]:
        """The whole text in parts, in order; only what follows its begin in parallel.

        Raises:
          UserError: another process was first; or as `prepare`.
        """
        text = chunks(pairs, _CHUNK)
        done = 0
        for chunk in itertools.islice(text, max(1, _FEW // _CHUNK)):
            yield part.tokenize(chunk, self._tokenizer)
            done += len(chunk)
            self._progress(done)
        next_chunk = next(text, None)
        if next_chunk is None:
            return
        with storage.locked(self.unfinished / 'lock', wait=True):
            if storage.exists(self._folder):
                raise UserError(f'another process has made {self._folder}')
            for folder in (self._folder.parent, self.unfinished):
                storage.sweep(folder, held=False, writing=True)  # what a kill has left
            yield from self._rest(itertools.chain([next_chunk], text), done)

    def _rest(self, text: Iterable[Pairs], done: int) -> Iterator[Part]:
        waiting: deque[Future[Part]] = deque()
        first = done
        with Pool(self._tokenizer, self._processes) as pool:
            for chunk in text:
                waiting.append(pool.submit(self._kept, pool, first, chunk))
                first += len(chunk)
                if len(waiting) > _AHEAD * self._processes:
                    made = self._result(waiting.popleft(), done)
                    done += made.pairs
                    yield made
            for future in waiting:
                made = self._result(future, done)
                done += made.pairs
                yield made
        self._progress(done)

    def _kept(self, pool: Pool, first: int, chunk: Pairs) -> Part:
        """A part as an earlier start has left it, or a new one, which is kept."""
        made = store.read(self.unfinished, first, len(chunk))
        if made is None:
            made = pool.tokenize(chunk)
            store.write(self.unfinished, first, made)
        return made

    def _result(self, future: Future[Part], done: int) -> Part:
        self._progress(done)
        while not wait([future], _POLL).done:
            self._progress(done)
        return future.result()


def _write(folder: Path, dtype: str, parts: Iterable[Part]) -> None:
    kept = 0
    skipped = 0
    with (
        _Writer(folder / 'source') as source,
        _Writer(folder / 'target') as target,
    ):
        for made in parts:
            source.add(made.source)
            target.add(made.target)
            kept += len(made.source)
            skipped += made.skipped
    if not kept:
        raise UserError('data: no training pair has text on both sides')
    storage.write_json(folder / _ABOUT, {'dtype': dtype, 'skipped': skipped})


class _Writer:
    """Appends rows to the two files of a RaggedArray."""

    def __init__(self, stem: Path):
        self._end = 0
        self._tokens = stem.with_suffix('.tokens').open('wb')
        self._offsets = stem.with_suffix('.offsets').open('wb')
        self._offsets.write(np.zeros(1, np.int64).tobytes())

    def __enter__(self) -> '_Writer':
        return self

    def __exit__(self, *_) -> None:
        self._tokens.close()
        self._offsets.close()

    def add(self, ragged: RaggedArray) -> None:
        self._tokens.write(ragged.tokens.tobytes())
        self._offsets.write((ragged.offsets[1:] + self._end).tobytes())
        self._end += len(ragged.tokens)


def _read(folder: Path, tokenizer: Tokenizer) -> Corpus:
    about = storage.read_json(folder / _ABOUT)

    def ragged(side: str) -> RaggedArray:
        tokens = np.memmap(folder / f'{side}.tokens', about['dtype'], 'r')
        offsets = np.memmap(folder / f'{side}.offsets', np.int64, 'r')
        return RaggedArray(np.asarray(tokens), np.asarray(offsets))

    return Corpus(
        source=ragged('source'),
        target=ragged('target'),
        skipped=about['skipped'],
        digest=checksums.sha256(folder / checksums.SUMS) or '',
        special_tokens=tokenizer.special_tokens,
        source_end=tokenizer.source_end,
    )


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items in lists of `size`, the last one shorter."""
    iterator = iter(items)
    while chunk := list(itertools.islice(iterator, size)):
        yield chunk
