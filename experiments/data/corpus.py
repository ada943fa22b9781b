"""Training pairs as token ids in memory-mapped files, tokenized once."""

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments import storage
from experiments.data.digest import hex_digest, text_digest
from experiments.data.objectives.base import Objective
from experiments.data.sources.base import Pair, Source
from experiments.data.tokenizers.base import Progress, Tokenizer, encode_lines
from experiments.errors import UserError
from flaxformer_lite.special_tokens import DEFAULT_TOKENS, SpecialTokens

Pairs = list[Pair]
_CHUNK = 8192  # pairs in memory at once; SentencePiece encodes them in parallel
_METADATA = 'corpus.json'
_DIGEST = 'digest'
_CHECKSUMS = 'SHA256SUMS'  # as `sha256sum` writes it; checkpoints hold the digest of it


@dataclasses.dataclass(frozen=True)
class RaggedArray:
    """Rows of unequal length, concatenated.

    Attributes:
      tokens: [tokens], uint16 or uint32; or vectors, [tokens, features], float32.
      offsets: [rows + 1], int64: the start of each row, and the end of the last one.
    """

    tokens: np.ndarray
    offsets: np.ndarray

    @classmethod
    def from_rows(
        cls, rows: Sequence[Any], dtype: np.typing.DTypeLike = 'uint32'
    ) -> 'RaggedArray':
        """Concatenates rows."""
        tokens = np.fromiter(itertools.chain.from_iterable(rows), dtype)
        offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        return cls(tokens, offsets)

    @property
    def dtype(self) -> np.dtype:
        """The dtype of a token, or of a vector including its shape."""
        return np.dtype((self.tokens.dtype, self.tokens.shape[1:]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        return self.tokens[self.offsets[row] : self.offsets[row + 1]]

    def lengths(self, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        return self.offsets[1:][rows] - self.offsets[:-1][rows]


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Pairs as ids, without BOS and EOS.

    Attributes:
      skipped: Number of excluded pairs with a blank side.
      left_out: Number of pairs that the source excluded, as in `Source.left_out`.
      digest: Digest of the files. A run resumes only if its checkpoints have the same.
        Empty for a corpus in memory.
    """

    source: RaggedArray
    target: RaggedArray
    skipped: int = 0
    left_out: dict[str, int] = dataclasses.field(default_factory=dict)
    digest: str = ''
    special_tokens: SpecialTokens = DEFAULT_TOKENS
    source_eos: int | None = DEFAULT_TOKENS.eos

    def __len__(self) -> int:
        return len(self.source)

    def first(self, pairs: int) -> 'Corpus':
        """Returns a corpus of the first `pairs` pairs, which share the arrays."""
        source, target = [
            RaggedArray(side.tokens, side.offsets[: pairs + 1])
            for side in (self.source, self.target)
        ]
        return dataclasses.replace(self, source=source, target=target)

    def lengths(self, pairs: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Returns the lengths of both sides, including EOS: [pairs, 2]."""
        sides = (self.source, self.target)
        return np.stack([side.lengths(pairs) + 1 for side in sides], axis=1)


def resample(
    corpus: Corpus,
    pairs: np.ndarray,
    tokenizer: Tokenizer,
    seeds: np.ndarray,
    most: int,
) -> Corpus:
    """Returns selected pairs in memory, with newly sampled ids.

    Pairs longer than `most`, with EOS, keep their ids. `seeds` are [n, 2], for both
    sides.
    """
    sides = []
    both = zip((corpus.source, corpus.target), tokenizer.sides, seeds.T, strict=True)
    for side, own, own_seeds in both:
        rows = []
        for pair, seed in zip(pairs.tolist(), own_seeds.tolist(), strict=True):
            row = drawn = side[pair]
            if own.samples:
                drawn = own.sample(row.tolist(), seed)
            longest = max(len(row), len(drawn))
            rows.append(drawn if longest < most else row)
        sides.append(RaggedArray.from_rows(rows, side.dtype))
    return dataclasses.replace(corpus, source=sides[0], target=sides[1])


def examples(
    corpus: Corpus, pairs: np.ndarray, objective: Objective, seeds: np.ndarray
) -> Corpus:
    side: RaggedArray = getattr(corpus, objective.side)
    generators = map(np.random.default_rng, seeds.tolist())
    rows = [side[pair].tolist() for pair in pairs.tolist()]
    sources, targets = zip(*map(objective.example, rows, generators), strict=True)
    return dataclasses.replace(
        corpus,
        source=RaggedArray.from_rows(sources, side.dtype),
        target=RaggedArray.from_rows(targets, side.dtype),
    )


def tokenize(pairs: Pairs, tokenizer: Tokenizer, first: int = 0) -> Corpus:
    """Tokenizes all pairs in memory, including blank ones, for evaluation.

    `first` is the number of earlier pairs, for errors.
    """
    sources, targets = encode_lines(tokenizer.encode_pairs, pairs, first)
    dtypes = _dtypes(tokenizer)
    return Corpus(
        source=RaggedArray.from_rows(sources, dtypes['source']),
        target=RaggedArray.from_rows(targets, dtypes['target']),
        special_tokens=tokenizer.special_tokens,
        source_eos=tokenizer.source_eos,
    )


def prepare(
    data: Source,
    tokenizer: Tokenizer,
    cache: Path,
    progress: Progress = lambda done: None,
) -> Corpus:
    """Returns the tokenized training pairs, without those with a blank side.

    Streams them into files under `cache`, or reuses those of the same text and
    tokenizer. `progress` gets the number of pairs so far.
    """
    key = hex_digest(f'{data.digest()} {tokenizer.digest}')
    folder = cache / f'corpus-{key[:32]}'
    storage.cache_folder(folder, lambda draft: _write(draft, data, tokenizer, progress))
    try:
        return _read(folder, tokenizer)
    except (OSError, ValueError) as error:
        raise UserError(
            f'cannot read {folder}: {error}. Remove it, to tokenize the text again.'
        ) from error


def training_digest(data: Source, cache: Path) -> str:
    """Returns a digest of the training pairs, whatever the tokenizer and the code.

    Keeps it under `cache`, because it reads all pairs.
    """
    folder = cache / f'text-{hex_digest(data.digest())[:32]}'

    def write(draft: Path) -> None:
        storage.write(draft / _DIGEST, text_digest(data.train()))

    storage.cache_folder(folder, write)
    with storage.as_user_error('read', folder):
        return (folder / _DIGEST).read_text()


def _write(
    folder: Path,
    data: Source,
    tokenizer: Tokenizer,
    progress: Progress,
) -> None:
    dtypes = _dtypes(tokenizer)
    lengths = {side: [np.zeros(1, np.int64)] for side in dtypes}
    pairs = 0
    done = 0
    stream = iter(data.train())
    while chunk := list(itertools.islice(stream, _CHUNK)):
        sides_of_pairs = encode_lines(
            tokenizer.encode_pairs, chunk, done, 'data: training pair'
        )
        encoded = zip(*sides_of_pairs, strict=True)
        full = [both for both in encoded if all(map(len, both))]
        for i, side in enumerate(dtypes):
            own = [both[i] for both in full]
            rows = RaggedArray.from_rows(own, dtypes[side])
            with (folder / f'{side}.tokens').open('ab') as file:
                rows.tokens.tofile(file)
            lengths[side].append(rows.lengths())
        pairs += len(full)
        done += len(chunk)
        progress(done)
    if not pairs:
        raise UserError(
            'data: no training pair has text on both sides. Check the training text.'
        )
    for side, parts in lengths.items():
        offsets = np.cumsum(np.concatenate(parts))
        offsets.tofile(folder / f'{side}.offsets')
    # Other content would change the digest, so existing runs could not resume.
    about: dict[str, Any] = {'dtype': dtypes['target'], 'skipped': done - pairs}
    if tokenizer.reads_vectors:
        about['source_dtype'] = dtypes['source']
    if data.left_out:
        about['left_out'] = dict(data.left_out)
    storage.write_json(folder / _METADATA, about)
    files = sorted(folder.iterdir())
    sums = [f'{storage.sha256(file)}  {file.name}\n' for file in files]
    storage.write(folder / _CHECKSUMS, ''.join(sums))


def _dtypes(tokenizer: Tokenizer) -> dict[str, str]:
    source, target = [side.dtype for side in tokenizer.sides]
    if not tokenizer.reads_vectors:
        source = target = max(source, target)
    return {'source': source, 'target': target}


def _read(folder: Path, tokenizer: Tokenizer) -> Corpus:
    about = storage.read_json(folder / _METADATA)

    def mapped(name, dtype):
        return np.asarray(np.memmap(folder / name, dtype, 'r'))

    dtypes = {'source': about.get('source_dtype', about['dtype'])}
    dtypes['target'] = about['dtype']
    sides = {
        side: RaggedArray(
            mapped(f'{side}.tokens', dtype), mapped(f'{side}.offsets', 'int64')
        )
        for side, dtype in dtypes.items()
    }
    return Corpus(
        **sides,
        skipped=about['skipped'],
        left_out=about.get('left_out', {}),
        digest=storage.sha256(folder / _CHECKSUMS),
        special_tokens=tokenizer.special_tokens,
        source_eos=tokenizer.source_eos,
    )
