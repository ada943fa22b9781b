"""Decoding strategies and logits processors, independent of models.

    strategy = fl.decoding.BeamSearch(beams=8, alpha=1.0)
    result = fl.generate(model, variables, sources, strategy)
    result.tokens, result.scores

Strategies choose the continuations of hypotheses. Derive your own from `Strategy`.

- `BeamSearch`: the paper's (§6.1), with a length penalty
- `DiverseBeamSearch`: groups of beams that differ
- `Greedy`: the most likely token
- `MBR`: the sample most like the others (minimum Bayes risk)
- `Sample`: random tokens, with a temperature, top-k and top-p

Processors change the logits at each step. Derive your own from `Processor`.

- `ForcedPrefix`: the first tokens of all targets
- `MinLength`: no end token before a length
- `NoRepeatNgram`: no n-gram twice

`DecodeResult` is the result of `fl.generate`. `filter_logits` and `length_penalty` are
the formulas of `Sample` and `BeamSearch`. To decode with a model of your own, call a
strategy with `DecodeInputs`; its `search(inputs).trace()` returns a `SearchTrace`. A
strategy's `choose` gets a `SearchState`. To search in another way, override `__call__`,
and pass a `BeamState` to each step.

A decoding step is a function `(token_BN, state, beam) → (logits_BNV, state)`. It maps
the tokens at position `beam.step` of N hypotheses per sentence to the logits of the
next tokens. The state is a tree of arrays whose first axis is the sentences. Its method
`allocate(hypotheses, tokens)` reserves space.

Results never contain padding or the start token, unless it is also the end token.
Their scores are log-probabilities, or what a strategy's `score` makes of them.
"""

from typing import TYPE_CHECKING

from flaxformer_lite.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from flaxformer_lite.decoding.filtering import filter_logits as filter_logits
    from flaxformer_lite.decoding.processors.base import Processor as Processor
    from flaxformer_lite.decoding.processors.forced_prefix import (
        ForcedPrefix as ForcedPrefix,
    )
    from flaxformer_lite.decoding.processors.min_length import MinLength as MinLength
    from flaxformer_lite.decoding.processors.no_repeat_ngram import (
        NoRepeatNgram as NoRepeatNgram,
    )
    from flaxformer_lite.decoding.result import DecodeResult as DecodeResult
    from flaxformer_lite.decoding.search import DecodeInputs as DecodeInputs
    from flaxformer_lite.decoding.search import SearchState as SearchState
    from flaxformer_lite.decoding.search import SearchTrace as SearchTrace
    from flaxformer_lite.decoding.search import length_penalty as length_penalty
    from flaxformer_lite.decoding.strategies.base import Strategy as Strategy
    from flaxformer_lite.decoding.strategies.beam import BeamSearch as BeamSearch
    from flaxformer_lite.decoding.strategies.diverse_beam import (
        DiverseBeamSearch as DiverseBeamSearch,
    )
    from flaxformer_lite.decoding.strategies.greedy import Greedy as Greedy
    from flaxformer_lite.decoding.strategies.mbr import MBR as MBR
    from flaxformer_lite.decoding.strategies.sample import Sample as Sample
    from flaxformer_lite.kv_cache import BeamState as BeamState
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
