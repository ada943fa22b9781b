"""Decoding by strategies, one file each. Nothing here knows what a model is.

A decoding step is `(token_BN, state, beam) → (logits_BNV, state)`: from the token at
position `beam.step` of each of the N hypotheses of a sentence to the logits of the next
token. What is in `state` only the step knows. It is a tree of arrays with the sentences
on the first axis of each, so that those that are finished can leave the batch; and it
has a method `allocate(hypotheses, tokens)`, which makes room for that many tokens.

A search has loops that end with the last sentence, and takes the finished ones out of
the batch. So devices that divide the sentences should each have a search of their own:
`sharding.map_rows`.

Neither padding nor the start token is ever chosen, unless it is the end token, too;
though scores are log-probabilities among all tokens.
"""

# ruff: noqa: F401 (type checkers read them)

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
    """Imports JAX when the first name is used: those of strategies are read without."""
    if name not in __all__:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    from flaxformer_lite.decoding import filtering, search

    return getattr(filtering if name == 'filter_logits' else search, name)
