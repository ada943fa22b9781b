"""The tokens that are no text: a tokenizer, or a checkpoint, says which they are."""

import dataclasses
from typing import Annotated

from flaxformer_lite.ranges import Checked, Range

Token = Annotated[int, Range(at_least=0)]


@dataclasses.dataclass(frozen=True)
class SpecialTokens(Checked):
    """Numbers of tokens with a meaning; the defaults are those of our tokenizers.

    Two of them may be one: the start is padding in T5 and Marian, and the end token in
    BART and M2M100.

    Attributes:
      padding: what stands where a row has no token. It is never chosen.
      start: what stands before each target.
      end: what each target ends with. It is a word, and so no padding.

    Raises:
      ValueError: a number below 0, or an end token that is padding.
    """

    padding: Token = 0
    start: Token = 2
    end: Token = 1

    def __post_init__(self):
        super().__post_init__()
        if self.end == self.padding:
            raise ValueError(
                f'end={self.end} is padding, which no target has: give each a number'
            )

    def check_within(self, vocab_size: int) -> None:
        """Refuses tokens that a vocabulary of so many does not have.

        Raises:
          ValueError: names the token.
        """
        for name, token in dataclasses.asdict(self).items():
            if token >= vocab_size:
                raise ValueError(
                    f'{name}={token} is none of the {vocab_size} tokens of the '
                    'vocabulary, which are numbered from 0'
                )


# Those of the tokenizers that are made here.
DEFAULT_TOKENS = SpecialTokens()
