"""The ways in which positions can enter a model; a variant overrides those it uses."""

from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.ranges import Checked, Range
from flaxformer_lite.sizes import Sizes


class Positions(Checked, nn.Module):
    """Positions that do nothing. All positions are int32.

    Attributes:
      sizes: of the attention, or of the stack, that the positions are for.
      adds_scores: whether an attention is to call `scores` and `values`.
      per_head: whether they have parameters for each head of queries, so that keys and
        values are repeated for each, as `Attention.per_head` has them.
    """

    adds_scores: ClassVar[bool] = False
    per_head: ClassVar[bool] = False
    sizes: Sizes = Sizes()

    @property
    def num_positions(self) -> int | None:
        """The number of positions that it can tell apart, from 0; None for any.

        A class with a table overrides this, unless its attribute is called
        `max_length`. Longer sentences are then refused: a lookup past the end of the
        table would give NaN, or another position's row.
        """
        return getattr(self, 'max_length', None)

    @property
    def in_attention(self) -> bool:
        """Whether these positions act in the attention: on queries, keys or scores."""
        return self.adds_scores or type(self).rotate is not Positions.rotate

    @property
    def acts_on_stack(self) -> bool:
        """Whether they act once for all layers: on embeddings, or as a bias."""
        methods = type(self)
        is_embedded = methods.embed is not Positions.embed
        return is_embedded or methods.bias is not Positions.bias

    def embed(self, x_BTD: jax.Array, positions_BT: jax.Array) -> jax.Array:
        """The input of the first layer, of token embeddings."""
        return x_BTD

    def rotate(self, x_BTHK: jax.Array, positions_BT: jax.Array) -> jax.Array:
        """Queries or keys as their dot product is to see them."""
        return x_BTHK

    def bias(
        self, query_positions_BT: jax.Array, key_positions_BS: jax.Array
    ) -> jax.Array | None:
        """Added to the scores of every layer: broadcastable to BHTS, or None."""
        return None

    @property
    def has_layer_bias(self) -> bool:
        """Whether each self-attention has a bias of its own, `layer_bias`."""
        return False

    def layer_bias(
        self, query_positions_BT: jax.Array, key_positions_BS: jax.Array
    ) -> jax.Array:
        """Added to the scores of one self-attention: as `bias`, of its own."""
        raise NotImplementedError

    def scores(
        self,
        q_BTHK: jax.Array,
        query_positions_BT: jax.Array,
        key_positions_BS: jax.Array,
    ) -> jax.Array:
        """Added to the scores of one attention, BHTS; depends on its queries."""
        raise NotImplementedError

    def values(
        self,
        weights_BHTS: jax.Array,
        query_positions_BT: jax.Array,
        key_positions_BS: jax.Array,
    ) -> jax.Array | float:
        """Added to the result of one attention, BTHU, or 0; depends on its weights."""
        raise NotImplementedError


class Sinusoids(Positions):
    """Sines and cosines of angles that grow with the position.

    Attributes:
      offset: the position of the first token.

    Raises:
      ValueError: d_model is odd, so that a sine would have no cosine.
    """

    offset: Annotated[int, Range(at_least=0, at_most=2**20)] = 0

    def __post_init__(self):
        check_even(self.sizes.d_model)
        super().__post_init__()

    def angles(self, positions_BT: jax.Array, rates: jax.Array) -> jax.Array:
        """position · rate for each of the rates, float32 (B, T, rates)."""
        positions_BT = (positions_BT + self.offset).astype(jnp.float32)
        return positions_BT[:, :, None] * rates[None, None]


def check_even(d_model: int) -> None:
    """Raises ValueError where a sine would have no cosine."""
    if d_model % 2:
        raise ValueError(f'd_model must be even for sinusoids, not {d_model}')


def sinusoid_rates(d_model: int) -> jax.Array:
    """10000^(−2i / d_model), by which the paper's sinusoids turn at each position."""
    return 10000.0 ** (-jnp.arange(0, d_model, 2, dtype=jnp.float32) / d_model)


def distances(query_positions_BT: jax.Array, key_positions_BS: jax.Array) -> jax.Array:
    """The position of each key minus that of each query, int32 BTS."""
    return key_positions_BS[:, None, :] - query_positions_BT[:, :, None]
