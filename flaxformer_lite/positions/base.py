"""Base classes of positions. Variants override the methods they use."""

from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.sizes import Sizes
from flaxformer_lite.validation import Checked, Range


class Positions(Checked, nn.Module):
    """Positions without effect. All positions are int32.

    Attributes:
      sizes: Sizes of the attention or stack that uses the positions.
      adds_scores: Whether attention calls `scores` and `values`. Attention that doesn't
        compute scores, such as `flash`, rejects such positions.
      per_head: Whether each query head has its own parameters, as in `Attention`.
    """

    set_by_model: ClassVar[tuple[str, ...]] = ('sizes',)
    adds_scores: ClassVar[bool] = False
    per_head: ClassVar[bool] = False
    sizes: Sizes = Sizes()

    @property
    def num_positions(self) -> int | None:
        """Number of distinct positions, counted from 0; None for no limit.

        Classes with a table override this or have an attribute `max_length`. Longer
        sentences are rejected.
        """
        return getattr(self, 'max_length', None)

    @property
    def in_attention(self) -> bool:
        """Returns True if the positions act on queries, keys or scores."""
        return self.adds_scores or type(self).rotate is not Positions.rotate

    @property
    def acts_on_stack(self) -> bool:
        """Returns True if they act once for all layers, on embeddings or as a bias."""
        methods = type(self)
        is_embedded = methods.embed is not Positions.embed
        return is_embedded or methods.bias is not Positions.bias

    def embed(self, x_BTD: jax.Array, positions_BT: jax.Array) -> jax.Array:
        """Adds positions to token embeddings, the input of the first layer."""
        return x_BTD

    def rotate(self, x_BTHK: jax.Array, positions_BT: jax.Array) -> jax.Array:
        """Applies positions to queries or keys before their dot product."""
        return x_BTHK

    def bias(
        self, query_positions_BT: jax.Array, key_positions_BS: jax.Array
    ) -> jax.Array | None:
        """Returns the bias of the scores of each self-attention, or None.

        It is broadcastable to BHTS. Cross-attention has none: distances between two
        texts mean nothing.
        """
        return None

    @property
    def has_layer_bias(self) -> bool:
        """Returns True if each self-attention has its own `layer_bias`."""
        return False

    def layer_bias(
        self, query_positions_BT: jax.Array, key_positions_BS: jax.Array
    ) -> jax.Array:
        """Returns the bias of one self-attention, in the form of `bias`."""
        raise NotImplementedError

    def scores(
        self,
        q_BTHK: jax.Array,
        query_positions_BT: jax.Array,
        key_positions_BS: jax.Array,
    ) -> jax.Array:
        """Returns query-dependent terms to add to one attention's scores, BHTS."""
        raise NotImplementedError

    def values(
        self,
        weights_BHTS: jax.Array,
        query_positions_BT: jax.Array,
        key_positions_BS: jax.Array,
    ) -> jax.Array | float:
        """Returns weight-dependent terms to add to an attention's output, BTHU or 0."""
        raise NotImplementedError


class Sinusoids(Positions):
    """Sines and cosines of angles proportional to the position.

    Attributes:
      offset: Position of the first token.

    Raises:
      ValueError: d_model is odd.
    """

    offset: Annotated[int, Range(at_least=0, at_most=2**20)] = 0

    def __post_init__(self):
        check_even(self.sizes.d_model)
        super().__post_init__()

    def angles(self, positions_BT: jax.Array, rates: jax.Array) -> jax.Array:
        positions_BT = (positions_BT + self.offset).astype(jnp.float32)
        return positions_BT[:, :, None] * rates[None, None]


def check_even(d_model: int) -> None:
    if d_model % 2:
        raise ValueError(f'd_model must be even for sinusoids, not {d_model}')


def sinusoid_rates(d_model: int) -> jax.Array:
    """Returns the angular frequencies of the paper, 10000^(−2i / d_model).

    Examples:
      >>> print(sinusoid_rates(8))
      [1.    0.1   0.01  0.001]
    """
    return 10000.0 ** (-jnp.arange(0, d_model, 2, dtype=jnp.float32) / d_model)


def distances(query_positions_BT: jax.Array, key_positions_BS: jax.Array) -> jax.Array:
    """Returns key position minus query position for each pair, int32 BTS.

    Examples:
      >>> distances(jnp.arange(3)[None], jnp.arange(3)[None]).tolist()
      [[[0, 1, 2], [-1, 0, 1], [-2, -1, 0]]]
    """
    return key_positions_BS[:, None, :] - query_positions_BT[:, :, None]
