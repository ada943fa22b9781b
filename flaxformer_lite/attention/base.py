"""What attentions share: scores, weights over keys, a weighted sum of values."""

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike

from flaxformer_lite.kv_cache import Cache, CacheState, KeyValues
from flaxformer_lite.layers.dropout import Dropout
from flaxformer_lite.ops.einsum import einsum
from flaxformer_lite.ops.masked_softmax import masked_softmax
from flaxformer_lite.ops.rms import divide_by_rms
from flaxformer_lite.ranges import Checked, NotNegative, Range, Rate

if TYPE_CHECKING:
    from flaxformer_lite.positions.base import Positions


def dot_products(q_BTHK: jax.Array, key_BHKS: jax.Array) -> jax.Array:
    """q · k for each pair of a query and a key, float32 BHTS."""
    return einsum('bthk,bhks->bhts', q_BTHK, key_BHKS)


def weighted_sum(
    weights_BHTS: jax.Array, value_BHUS: jax.Array, dtype: DTypeLike
) -> jax.Array:
    """Σ_s w_s v_s, float32 BTHU, of weights that are rounded to the compute dtype."""
    return einsum('bhts,bhus->bthu', weights_BHTS.astype(dtype), value_BHUS)


def append_one(value_BHUS: jax.Array) -> jax.Array:
    """[v, 1]: one sum Σ w [v, 1] then holds what `divide_by_last` divides by."""
    return jnp.pad(value_BHUS, [(0, 0), (0, 0), (0, 1), (0, 0)], constant_values=1)


def divide_by_last(y_BTHU: jax.Array) -> jax.Array:
    """Σ w v / Σ w, of Σ w [v, 1]; zeros where Σ w is 0."""
    total_BTH1 = y_BTHU[..., -1:]
    divisor_BTH1 = jnp.where(total_BTH1 > 0, total_BTH1, 1.0)
    return y_BTHU[..., :-1] / divisor_BTH1


def refuse_positions(name: str, *given: Any) -> None:
    """Refuses positions that act on scores, in an attention that holds no scores.

    Raises:
      ValueError: any of `given`, biases or relative positions, is not None.
    """
    if any(value is not None for value in given):
        raise ValueError(
            f'{name} attention holds no scores for these positions to act on: choose '
            'positions that act on embeddings, queries and keys, or attention=softmax'
        )


class Attention(Checked, nn.Module):
    """Σ_s w_s v_s with w = softmax(q · k_s / √d_k + bias). A variant overrides a part.

    A query that may attend to no key gets zeros. There are always as many heads of
    queries as of keys. In grouped-query attention the queries of a group come as more
    queries of one head; but if an attention has parameters for each head, or mixes
    heads, it sets `per_head`, and keys and values are repeated for each query head.
    """

    per_head: ClassVar[bool] = False
    # Whether the distance from the query decides which keys are visible. Such a pattern
    # is for one text: cross-attention has it only if `cross_attention` names it.
    by_distance: ClassVar[bool] = False

    def normalize_query(self, q_BTHK: jax.Array) -> jax.Array:
        """Projected queries, before positions turn them."""
        return q_BTHK

    def normalize_key(self, key_BSGK: jax.Array) -> jax.Array:
        """Projected keys, before positions turn them."""
        return key_BSGK

    def scores(self, q_BTHK: jax.Array, kv: KeyValues) -> jax.Array:
        """How well each key fits each query, float32 BHTS."""
        scale = q_BTHK.shape[-1] ** -0.5
        return dot_products(q_BTHK * scale, kv.key_BGKS)

    def weights(self, scores_BHTS: jax.Array, mask_BHTS: jax.Array) -> jax.Array:
        """The weight of each key, float32 BHTS; 0 where the mask is False."""
        return masked_softmax(scores_BHTS, mask_BHTS)

    def __call__(
        self,
        q_BTHK: jax.Array,
        kv: KeyValues,
        *,
        positions_BT: jax.Array,
        mask_BHTS: jax.Array,
        bias_BHTS: jax.Array | None = None,
        relative_positions: 'Positions | None' = None,
    ) -> jax.Array:
        """Attends from the queries to the keys.

        Args:
          q_BTHK: queries in the compute dtype.
          kv: keys and values.
          positions_BT: int32, of the queries.
          mask_BHTS: bool, True = may attend.
          bias_BHTS: added to the scores.
          relative_positions: a module of `positions/` that adds to the scores by the
            queries, and to the result by the weights.

        Returns:
          float32 BTHU.

        Raises:
          ValueError: a bias or relative positions that this attention has no scores
            for.
        """
        scores_BHTS = self.scores(q_BTHK, kv)
        if relative_positions is not None:
            scores_BHTS += relative_positions.scores(
                q_BTHK, positions_BT, kv.positions_BS
            )
        if bias_BHTS is not None:
            scores_BHTS += bias_BHTS
        weights_BHTS = self.weights(scores_BHTS, mask_BHTS)
        self.sow('intermediates', 'weights', weights_BHTS)
        y_BTHU = weighted_sum(weights_BHTS, kv.value_BGUS, q_BTHK.dtype)
        if relative_positions is not None:
            y_BTHU += relative_positions.values(
                weights_BHTS, positions_BT, kv.positions_BS
            )
        return y_BTHU

    def init_cache(self, prefix: KeyValues, valid_BS: jax.Array) -> CacheState:
        """The cache that decoding begins with.

        Args:
          prefix: keys and values that all hypotheses of a sentence share; may be empty.
          valid_BS: bool, False for padding in the prefix.
        """
        return Cache.starting_with(prefix)


class ScaledDotProduct(Attention):
    """softmax((cap(q · k_s · scale) + bias) / T), the softmax in float32.

    Attributes:
      scale: True for 1 / √d_k, False for 1, or a number.
      temperature: T; 0 gives all weight to the keys of the highest score, ties evenly.
      cap: scores s become cap · tanh(s / cap) (Gemma Team 2024); 0 leaves them.
      dropout: of the weights, each by itself; the paper has none.
      query_key_norm: whether the queries and keys of each head are divided by their
        root mean square and multiplied by a gain γ = c + w (Gemma Team 2025).
      query_key_offset: c, a constant; w is learned, and γ is 1 at first.
      unsupported: the attributes that a variant has to leave at their defaults; of
        `temperature` it is 0 alone.

    Raises:
      ValueError: an attribute is out of its range, or unsupported.
    """

    unsupported: ClassVar[tuple[str, ...]] = ()
    scale: Annotated[bool | float, Range(at_least=0)] = True
    temperature: NotNegative = 1.0
    cap: NotNegative = 0.0
    dropout: Rate = 0.0
    query_key_norm: bool = False
    query_key_offset: Annotated[float, Range(at_least=0, at_most=1)] = 0.0

    def __post_init__(self):
        super().__post_init__()
        for name in self.unsupported:
            value = getattr(self, name)
            default = getattr(ScaledDotProduct, name)
            if value != default and not (name == 'temperature' and value > 0):
                raise ValueError(
                    f'{name}={value} needs an attention that holds its weights, such '
                    f'as softmax: leave {name} at {default} here'
                )

    def setup(self):
        if self.query_key_norm:
            self.query_norm = _HeadNorm(self.query_key_offset)
            self.key_norm = _HeadNorm(self.query_key_offset)

    def normalize_query(self, q_BTHK):
        if not self.query_key_norm:
            return q_BTHK
        return self.query_norm(q_BTHK)

    def normalize_key(self, key_BSGK):
        if not self.query_key_norm:
            return key_BSGK
        return self.key_norm(key_BSGK)

    def scores(self, q_BTHK, kv):
        scale = self.scale_of(q_BTHK.shape[-1])
        scores_BHTS = dot_products(q_BTHK * scale, kv.key_BGKS)
        return self.cap_scores(scores_BHTS)

    @nn.nowrap
    def scale_of(self, d_k: int) -> float:
        """What products of queries and keys so wide are multiplied by."""
        if self.scale is True:
            return d_k**-0.5
        if self.scale is False:
            return 1.0
        return self.scale

    @nn.nowrap
    def cap_scores(self, scores: jax.Array) -> jax.Array:
        """Scaled scores, before a bias is added."""
        if self.cap:
            return self.cap * jnp.tanh(scores / self.cap)
        return scores

    @nn.compact
    def weights(self, scores_BHTS, mask_BHTS):
        if self.temperature:
            scores_BHTS = scores_BHTS / self.temperature
            weights_BHTS = masked_softmax(scores_BHTS, mask_BHTS)
        else:
            weights_BHTS = _one_hot_of_highest(scores_BHTS, mask_BHTS)
        return Dropout(self.dropout)(weights_BHTS)


class _HeadNorm(nn.Module):
    """x / √(E x² + 10⁻⁶) ⊙ (c + w) over the features of a head, float32."""

    offset: float

    @nn.compact
    def __call__(self, x_BTHK):
        init = nn.initializers.constant(1 - self.offset)
        scale_K = self.param('scale', init, x_BTHK.shape[-1:])
        gain_K = self.offset + scale_K
        x_BTHK = divide_by_rms(x_BTHK.astype(jnp.float32), 1e-6, False)
        return x_BTHK * gain_K[None, None, None]


def _one_hot_of_highest(scores_BHTS, mask_BHTS):
    scores_BHTS = jnp.where(mask_BHTS, scores_BHTS, -jnp.inf)
    highest_BHT1 = scores_BHTS.max(-1, keepdims=True)
    is_highest_BHTS = mask_BHTS & (scores_BHTS == highest_BHT1)
    count_BHT1 = is_highest_BHTS.sum(-1, keepdims=True)
    return is_highest_BHTS / jnp.maximum(count_BHT1, 1)
