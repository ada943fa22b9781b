"""Special tokens of published checkpoints."""

from typing import Any

import jax.numpy as jnp

from flaxformer_lite.special_tokens import SpecialTokens


class PaddingAsBos(SpecialTokens):
    """Special tokens of a model whose start token is padding, such as Marian.

    Training keeps the embedding of the start token at zero if it is zero, because
    CTranslate2 has no weights for it.
    """

    def adjust_gradients(self, gradients: Any, params: Any) -> Any:
        if 'embedding' not in gradients:
            return gradients
        is_zero = ~jnp.any(params['embedding'][self.bos])
        gradients_VD = gradients['embedding']
        row_D = jnp.where(is_zero, 0, gradients_VD[self.bos])
        gradients_VD = gradients_VD.at[self.bos].set(row_D)
        return {**gradients, 'embedding': gradients_VD}


def published_tokens(padding: int, bos: int, eos: int) -> SpecialTokens:
    """Returns the special tokens of a checkpoint.

    Raises:
      ValueError: As `SpecialTokens`.
    """
    kind = PaddingAsBos if bos == padding else SpecialTokens
    return kind(padding, bos, eos)
