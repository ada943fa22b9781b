"""Beam search (paper §6.1) with GNMT's length penalty."""

from typing import Annotated

from flaxformer_lite.decoding.search import length_penalty
from flaxformer_lite.decoding.strategies.base import Strategy, flat
from flaxformer_lite.ops.top_k import top_k_indices
from flaxformer_lite.validation import Range


class BeamSearch(Strategy):
    """Beam search: keeps the continuations with the highest log-probability.

    A finished hypothesis scores log-probability / ((5 + L) / 6)^α (Wu et al. 2016,
    equation 14). A sentence stops at its limit, or when no live hypothesis can enter
    its `n_best`.

    Attributes:
      beams: Live hypotheses and results per sentence.
      alpha: α; 0 disables the penalty.

    Examples:
      >>> import jax, jax.numpy as jnp
      >>> from flaxformer_lite import build, generate
      >>> sizes = {'d_model': 8, 'num_layers': 1, 'num_heads': 2, 'd_ff': 16}

      >>> model = build.model(sizes, vocab_size=10)

      >>> pair = jnp.array([[5, 1]]), jnp.array([[2]])
      >>> shapes = jax.eval_shape(model.init, jax.random.key(0), *pair)
      >>> zeros = jax.tree.map(lambda x: jnp.zeros(x.shape), shapes)

      >>> result = generate(model, zeros, [[5, 1]], BeamSearch(beams=3), max_length=2)
      >>> result.tokens_BNL.shape
      (1, 3, 2)
    """

    beams: Annotated[int, Range(at_least=1, at_most=10_000)] = 4
    # A larger α overflows float32 for long sentences.
    alpha: Annotated[float, Range(at_least=0, at_most=10)] = 0.6

    @property
    def hypotheses(self):
        return self.beams

    def choose(self, state, logits_BNV, total_BNV):
        # At most N of these 2 N end, so N can stay live.
        return top_k_indices(flat(total_BNV), 2 * self.beams)

    def length_penalty(self, length):
        return length_penalty(length, self.alpha)
