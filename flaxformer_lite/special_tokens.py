"""Special token ids, which come from a tokenizer or a checkpoint."""

import dataclasses
from typing import Annotated, Any

from flaxformer_lite.validation import FrozenDataclass, Range

Token = Annotated[int, Range(at_least=0)]


class SpecialTokens(FrozenDataclass):
    """Ids of the special tokens. Default to those of this project's tokenizers.

    The start token may be padding, as in T5 and Marian, or the end token, as in BART.

    Raises:
      ValueError: An id is negative, or the end token is padding.
    """

    padding: Token = 0
    bos: Token = 2
    eos: Token = 1

    def __post_init__(self):
        super().__post_init__()
        if self.eos == self.padding:
            raise ValueError(f'eos={self.eos} must differ from padding')

    def adjust_gradients(self, gradients: Any, params: Any) -> Any:
        """Returns the gradients to train with; subclasses can fix a token's embedding.

        Args:
          params: The model's parameters, a tree like `gradients`.
        """
        return gradients

    def check_within(self, vocab_size: int) -> None:
        """Raises ValueError if an id is outside of a vocabulary; names the token."""
        for name, token in dataclasses.asdict(self).items():
            if token >= vocab_size:
                raise ValueError(
                    f'{name}={token} must be below the vocabulary size, {vocab_size}'
                )


# The ids of this project's tokenizers.
DEFAULT_TOKENS = SpecialTokens()
