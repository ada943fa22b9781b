"""Rows of unequal length in one array."""

import dataclasses
import itertools

import numpy as np


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
