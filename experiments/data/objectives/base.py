"""What every objective offers."""

import dataclasses
import functools
import re
from typing import Annotated, ClassVar

import numpy as np

from experiments.errors import UserError
from flaxformer_lite.ranges import Checked, Choices


@dataclasses.dataclass(frozen=True)
class Objective(Checked):
    """Makes examples of one side of the pairs: a frozen dataclass.

    The arguments in the spec are those of the class, but for `pieces`.

    Attributes:
      pieces: how each id is written.
      side: of which side of the pairs the examples are made.
      needs: a regular expression of the pieces that it puts in the place of text.
    """

    needs: ClassVar[str] = ''
    pieces: tuple[str, ...] = dataclasses.field(repr=False)
    side: Annotated[str, Choices('source', 'target')] = 'source'

    @functools.cached_property
    def marks(self) -> list[int]:
        """The ids of the pieces that it `needs`, `<extra_id_9>` before `<extra_id_10>`.

        Raises:
          UserError: the tokenizer has none.
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
        """What the model reads and what it is to write, by the random numbers alone.

        Args:
          row: the n ≥ 1 ids of a text, without its end.

        Returns:
          At most n ids each, without ends.
        """
        raise NotImplementedError
