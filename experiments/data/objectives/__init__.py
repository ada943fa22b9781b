"""Objectives on one side of the pairs, one per module, selected by a spec."""

from typing import TYPE_CHECKING

from experiments.data.tokenizers.base import Tokenizer
from experiments.errors import UserError, user_errors
from experiments.registries import OBJECTIVES
from flaxformer_lite.config.spec import Spec

if TYPE_CHECKING:  # checking a spec should not import numpy
    from experiments.data.objectives.base import Objective


def make(spec: Spec | None, tokenizer: Tokenizer | None = None) -> 'Objective | None':
    """Makes the objective of the config field `objective`; None if the field is empty.

    Args:
      tokenizer: The trained tokenizer. Without it, only the spec is checked.

    Raises:
      UserError: The spec is invalid, or the tokenizer lacks the necessary pieces.
    """
    if not spec:
        return None
    ids = list(range(tokenizer.vocab_size)) if tokenizer else []
    pieces = tuple(tokenizer.pieces(ids)) if tokenizer else ()
    with user_errors('objective: '):
        objective = OBJECTIVES.make(spec, pieces=pieces)
    if tokenizer:
        if tokenizer.source_vocab_size is not None:
            raise UserError(
                f'objective={spec} reconstructs its input, so both sides need the same '
                'tokenizer. Give a single tokenizer.'
            )
        assert objective.marks is not None  # raises UserError without marks
    return objective
