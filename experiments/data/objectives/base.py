"""Base class of objectives."""

import dataclasses
import functools
import re
from typing import Annotated, ClassVar, Self

import numpy as np

from experiments.data.tokenizers.base import Tokenizer
from experiments.errors import UserError
from flaxformer_lite.validation import Choices, FrozenDataclass


class Objective(FrozenDataclass):
    """Base class of objectives, which make examples from one side of the pairs.

    Annotated attributes are arguments.

    Attributes:
      pieces: The piece of each id; `with_tokenizer` sets it.
      needs: Regular expression of the pieces that replace text.
    """

    needs: ClassVar[str] = ''
    pieces: tuple[str, ...] = dataclasses.field(repr=False)
    side: Annotated[str, Choices('source', 'target')] = 'source'

    def with_tokenizer(self, tokenizer: Tokenizer) -> Self:
        """Returns the objective with the pieces of a trained tokenizer."""
        if tokenizer.source_vocab_size is not None:
            raise UserError(
                'objective: it reconstructs its input, so both sides need the same '
                'tokenizer. Give a single tokenizer.'
            )
        pieces = tokenizer.pieces(list(range(tokenizer.vocab_size)))
        fitted = dataclasses.replace(self, pieces=tuple(pieces))
        assert fitted.marks is not None  # raises UserError without marks
        return fitted

    @functools.cached_property
    def marks(self) -> list[int]:
        """The ids of the pieces that match `needs`, sorted by their numbers."""
        is_mark = re.compile(self.needs).fullmatch
        found = [x for x, piece in enumerate(self.pieces) if is_mark(piece)]
        if self.needs and not found:
            raise UserError(
                f'objective: the tokenizer has no piece {self.needs}. Set '
                'tokenizer=\'sentencepiece(user_defined_symbols=["<mask>"])\' for '
                'denoise, or sentencepiece(sentinels=100) for span_corruption.'
            )
        return sorted(found, key=lambda x: (len(self.pieces[x]), self.pieces[x]))

    def example(
        self, row: list[int], rng: np.random.Generator
    ) -> tuple[list[int], list[int]]:
        """Returns source and target ids, at most n each, for the n ≥ 1 ids of `row`.

        All are without EOS.
        """
        raise NotImplementedError
