"""Decoding: greedy, beam and sampling over any step function; nothing here knows what a model is.

A step is `(token_BN, cache, path) → (logits_BNV, cache)`: the token at position `path.step` of each
of a sentence's N hypotheses, to the logits of the next. What a cache is only the step knows, and
`grow(cache, hypotheses, tokens)`, which makes room in it. All that belongs to sentences has to be
in it, each array by their axis first: those that have ended leave the batch. Token 0 is padding;
neither it nor the start token is ever chosen, though scores are probabilities among all. The start
token may be 0, as T5's is.
"""

from flaxformer_lite.decode.loop import Decoded, Task, length_penalty
from flaxformer_lite.decode.searches import beam, filtered, greedy, sample

__all__ = [
    'Decoded',
    'Task',
    'beam',
    'filtered',
    'greedy',
    'length_penalty',
    'sample',
]
