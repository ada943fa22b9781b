"""Decoding strategies, one file each, independent of models.

A decoding step is a function `(token_BN, state, beam) → (logits_BNV, state)`. It maps
the tokens at position `beam.step` of N hypotheses per sentence to the logits of the
next tokens. The state is a tree of arrays whose first axis is the sentences. Its method
`allocate(hypotheses, tokens)` reserves space.

Results never contain padding or the start token, unless it is also the end token.
Scores are log-probabilities over all tokens.
"""

# ruff: noqa: F401 (for type checkers)

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flaxformer_lite.decoding.filtering import filter_logits
    from flaxformer_lite.decoding.result import DecodeResult
    from flaxformer_lite.decoding.search import (
        DecodeInputs,
        SearchTrace,
        length_penalty,
    )

__all__ = [
    'DecodeInputs',
    'DecodeResult',
    'SearchTrace',
    'filter_logits',
    'length_penalty',
]


def __getattr__(name: str) -> Any:
    """Imports JAX on first use, so that the names can be listed without it."""
    if name not in __all__:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    from flaxformer_lite.decoding import filtering, search

    return getattr(filtering if name == 'filter_logits' else search, name)
