"""Decoding: greedy, beam search and sampling. Nothing here knows what a model is.

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

from flaxformer_lite.decoding.result import DecodeResult
from flaxformer_lite.decoding.search import DecodeInputs, length_penalty
from flaxformer_lite.decoding.strategies import beam, filter_logits, greedy, sample

__all__ = [
    'DecodeInputs',
    'DecodeResult',
    'beam',
    'filter_logits',
    'greedy',
    'length_penalty',
    'sample',
]
