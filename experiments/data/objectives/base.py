"""Base class of objectives."""

import dataclasses
import functools
import re
from typing import Annotated, ClassVar

import numpy as np

from experiments.errors import UserError
from flaxformer_lite.validation import Checked, Choices


@dataclasses.dataclass(frozen=True)
class Objective(Checked):
    """Base class of objectives, which make examples from one side of the pairs.

    A subclass is a frozen dataclass with the arguments of the spec.

    Attributes:
      pieces: The piece of each id.
      side: The side of the pairs to make examples from.
      needs: A regular expression of the pieces that replace text.
    """

    needs: ClassVar[str] = ''
    pieces: tuple[str, ...] = dataclasses.field(repr=False)
    side: Annotated[str, Choices('source', 'target')] = 'source'

    @functools.cached_property
    def marks(self) -> list[int]:
        """The ids of the pieces that match `needs`, sorted by their numbers.

        Raises:
          UserError: The tokenizer has no such piece.
        """
        is_mark = re.compile(self.needs).fullmatch
        found = [x for x, piece in enumerate(self.pieces) if is_mark(piece)]
        if self.needs and not found:
            raise UserError(
                f'objective: the tokenizer has no piece {self.needs}: give '
                'tokenizer=\'sentencepiece(user_defined_symbols=["<mask>"])\' for '
                'denoise, and sentencepiece(sentinels=100) for span_corruption'
            )
        return sorted(found, key=lambda x: (len(self.pieces[x]), self.pieces[x]))

    def example(
        self, row: list[int], rng: np.random.Generator
    ) -> tuple[list[int], list[int]]:
        """Returns source and target ids, determined by the row and the random numbers.

        Args:
          row: The n ≥ 1 ids of a text, without EOS.

        Returns:
          At most n ids each, without EOS.
        """
        raise NotImplementedError
