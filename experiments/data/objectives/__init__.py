"""What is learnt of one side of the pairs: one file an objective, chosen by a spec."""

from typing import TYPE_CHECKING

from experiments.data.tokenizers.base import Tokenizer
from experiments.errors import UserError, user_errors
from experiments.kinds import OBJECTIVES
from flaxformer_lite.config.spec import Spec

if TYPE_CHECKING:  # for what only names an objective does not need numpy
    from experiments.data.objectives.base import Objective


def make(spec: Spec | None, tokenizer: Tokenizer | None = None) -> 'Objective | None':
    """What the config field `objective` names; None where it is empty.

    Args:
      tokenizer: that makes ids; without it the spec alone is looked at.

    Raises:
      UserError: the spec is wrong, or the tokenizer has no pieces for it.
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
                f'objective={spec} has the model write what it reads: give one '
                'tokenizer of both sides'
            )
        assert objective.marks is not None  # or says that it has none
    return objective
