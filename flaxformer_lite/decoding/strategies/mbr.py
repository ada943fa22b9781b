"""Minimum Bayes risk decoding (Kumar and Byrne 2004; Eikema and Aziz 2020)."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from flaxformer_lite.decoding.result import DecodeResult
from flaxformer_lite.decoding.strategies.sample import Sample
from flaxformer_lite.validation import Size

# (y_L, length, reference_L, length) → u, on token ids without the end token.
Utility = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]
_ORDER = 4  # longest n-grams


class MBR(Sample):
    """The sampled translation with the highest mean utility.

    The mean utility of y is 1/S Σ_s u(y, y_s) over all samples y_s (Eikema and Aziz
    2020, §5).

    Use it if the likeliest translation is poor, as with large beams. It takes as long
    as S samples.

    Attributes:
      temperature, top_k, top_p: As in `Sample`.
      samples: S; 1 is equivalent to `Sample`.
      utility: u. In Python, it may be another function with the arguments of `gleu`.

    Examples:
      >>> import flaxformer_lite as fl
      >>> strategy = fl.decoding.MBR(samples=32, top_p=0.9)
    """

    samples: Size = 16
    utility: Utility | None = None

    def __post_init__(self):
        super().__post_init__()
        if self.utility is not None and not callable(self.utility):
            raise ValueError(
                f'MBR.utility must be a function of token ids, not {self.utility!r}. '
                'Leave it out, or give one such as MBR(utility=f).'
            )

    @property
    def sampler(self) -> Sample:
        return Sample(self.temperature, self.top_k, self.top_p)

    def __call__(self, inputs, n_best=1):
        utility = gleu if self.utility is None else self.utility
        fold_in = jax.vmap(jax.random.fold_in, (0, None))
        keys_B: Any = inputs.keys_B
        # The first sample is that of `sample`. Steps of a search are below 2³¹.
        others = [fold_in(keys_B, (1 << 32) - i) for i in range(1, self.samples)]
        keys_SB = jnp.stack([keys_B, *others])

        def draw(keys_B):
            return self.sampler(inputs._replace(keys_B=keys_B), n_best)

        samples_SB1 = jax.lax.map(draw, keys_SB)
        tokens_SBL = samples_SB1.tokens[:, :, 0]
        lengths_SB = (tokens_SBL != inputs.padding).sum(-1) - 1  # without the end token
        means_SB = _mean_utilities(utility, tokens_SBL, lengths_SB)
        exists_SB = samples_SB1.exists[:, :, 0]
        best_B = jnp.where(exists_SB, means_SB, -jnp.inf).argmax(0)
        rows_B = jnp.arange(len(best_B))
        return DecodeResult(*(x_SB1[best_B, rows_B] for x_SB1 in samples_SB1))


def _mean_utilities(
    utility: Utility, tokens_SBL: jax.Array, lengths_SB: jax.Array
) -> jax.Array:

    def of_sentence(tokens_SL, lengths_S):
        def mean(sample):
            against = functools.partial(utility, *sample)
            return jax.vmap(against)(tokens_SL, lengths_S).mean()

        return jax.lax.map(mean, (tokens_SL, lengths_S))

    # One sentence at a time, since all pairs would take much memory.
    arrays = jnp.moveaxis(tokens_SBL, 1, 0), lengths_SB.T
    return jax.lax.map(lambda arrays: of_sentence(*arrays), arrays).T


def gleu(
    y_L: jax.Array,
    length: jax.Array,
    reference_L: jax.Array,
    reference_length: jax.Array,
) -> jax.Array:
    """Returns the GLEU of a text, min(precision, recall) of its 1- to 4-grams.

    Matches are clipped to the counts in the reference (Wu et al. 2016, §5.2). An empty
    text scores 0.

    Args:
      y_L, reference_L: Token ids; those after the length are ignored.

    Examples:
      >>> text, reference = jnp.array([5, 6, 7]), jnp.array([5, 6, 8])
      >>> print(gleu(text, jnp.array(3), reference, jnp.array(3)))
      0.5
    """
    is_token_L = jnp.arange(len(y_L)) < length
    is_reference_L = jnp.arange(len(reference_L)) < reference_length
    y_L1 = y_L[:, None]
    is_token_L1 = is_token_L[:, None]
    own_LL = (y_L1 == y_L[None]) & is_token_L1 & is_token_L[None]
    shared_LL = (y_L1 == reference_L[None]) & is_token_L1 & is_reference_L[None]
    matches = total = 0
    own_ngrams_LL, shared_ngrams_LL = own_LL, shared_LL
    for n in range(1, _ORDER + 1):
        # The first occurrence of an n-gram matches if the reference has one, and so on.
        occurrence_L = jnp.tril(own_ngrams_LL).sum(1)
        is_match_L = (occurrence_L > 0) & (occurrence_L <= shared_ngrams_LL.sum(1))
        matches += is_match_L.sum()
        total += jnp.maximum(jnp.maximum(length, reference_length) - n + 1, 0)
        own_ngrams_LL = own_LL & _from_next_tokens(own_ngrams_LL)
        shared_ngrams_LL = shared_LL & _from_next_tokens(shared_ngrams_LL)
    return matches / jnp.maximum(total, 1)


def _from_next_tokens(x_LL: jax.Array) -> jax.Array:
    """Shifts both axes by one: entry (i, j) becomes that of (i + 1, j + 1)."""
    return jnp.pad(x_LL[1:, 1:], ((0, 1), (0, 1)))
