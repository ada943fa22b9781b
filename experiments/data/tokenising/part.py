"""A part of the training text: so many consecutive pairs as token ids."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from experiments.data.ragged import RaggedArray
from experiments.data.tokenizer import Tokenizer


class Part(NamedTuple):
    """Consecutive pairs as ids, without those that have a blank side.

    Attributes:
      source, target: row i of one translates row i of the other.
      skipped: pairs that were left out.
    """

    source: RaggedArray
    target: RaggedArray
    skipped: int

    @property
    def pairs(self) -> int:
        """How many pairs of the text it was made of."""
        return len(self.source) + self.skipped


def tokenize(pairs: Sequence[tuple[str, str]], tokenizer: Tokenizer) -> Part:
    """The part that these pairs of texts make."""
    source_ids = tokenizer.encode([text for text, _ in pairs])
    target_ids = tokenizer.encode_target([text for _, text in pairs])
    full = [both for both in zip(source_ids, target_ids, strict=True) if all(both)]
    dtype = id_dtype(tokenizer)
    return Part(
        source=RaggedArray.of([ids for ids, _ in full], dtype),
        target=RaggedArray.of([ids for _, ids in full], dtype),
        skipped=len(pairs) - len(full),
    )


def id_dtype(tokenizer: Tokenizer) -> str:
    """The smallest dtype for the ids of a tokenizer."""
    return 'uint16' if tokenizer.vocab_size <= 1 << 16 else 'uint32'


def to_bytes(part: Part) -> bytes:
    """The part as bytes: a header of five int64, then both sides."""
    sides = (part.source, part.target)
    header = [part.skipped, len(part.source), *(len(side.tokens) for side in sides)]
    arrays = [np.array([part.source.tokens.itemsize, *header], np.int64)]
    for side in sides:
        arrays += [side.offsets, side.tokens]
    return b''.join(array.tobytes() for array in arrays)


def from_bytes(data: bytes) -> Part:
    """Undoes `to_bytes`."""
    itemsize, skipped, rows, *numbers = np.frombuffer(data, np.int64, 5).tolist()
    place = 5 * 8
    sides = []
    for tokens in numbers:
        offsets = np.frombuffer(data, np.int64, rows + 1, place)
        place += offsets.nbytes
        ids = np.frombuffer(data, f'uint{8 * itemsize}', tokens, place)
        place += ids.nbytes
        sides.append(RaggedArray(ids, offsets))
    source, target = sides
    return Part(source, target, skipped)
