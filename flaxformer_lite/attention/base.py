"""Base classes of attention."""

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike

from flaxformer_lite.kv_cache import Cache, CacheState, KeyValues
from flaxformer_lite.layers.dense.base import Dense
from flaxformer_lite.layers.dropout import Dropout
from flaxformer_lite.ops.einsum import einsum
from flaxformer_lite.ops.masked_softmax import masked_softmax
from flaxformer_lite.ops.rms import divide_by_rms
from flaxformer_lite.sizes import Sizes
from flaxformer_lite.taps import tap
from flaxformer_lite.validation import Checked, NotNegative, Range, Rate

if TYPE_CHECKING:
    from flaxformer_lite.positions.base import Positions


def dot_products(q_BTHK: jax.Array, key_BHKS: jax.Array) -> jax.Array:
    """Returns q · k for every query-key pair, float32 BHTS."""
    return einsum('bthk,bhks->bhts', q_BTHK, key_BHKS)


def weighted_sum(
    weights_BHTS: jax.Array, value_BHUS: jax.Array, dtype: DTypeLike
) -> jax.Array:
    """Returns Σ_s w_s v_s, float32 BTHU, with weights rounded to `dtype`."""
    return einsum('bhts,bhus->bthu', weights_BHTS.astype(dtype), value_BHUS)


def append_one(value_BHUS: jax.Array) -> jax.Array:
    """Appends 1 to each value, so that Σ w [v, 1] also holds the divisor Σ w."""
    return jnp.pad(value_BHUS, [(0, 0), (0, 0), (0, 1), (0, 0)], constant_values=1)


def divide_by_last(y_BTHU: jax.Array) -> jax.Array:
    """Returns Σ w v / Σ w, given Σ w [v, 1]; zeros where Σ w is 0.

    Examples:
      >>> divide_by_last(jnp.array([[[[6.0, 8.0, 2.0]]]])).tolist()
      [[[[3.0, 4.0]]]]
    """
    total_BTH1 = y_BTHU[..., -1:]
    divisor_BTH1 = jnp.where(total_BTH1 > 0, total_BTH1, 1.0)
    return y_BTHU[..., :-1] / divisor_BTH1


def check_no_positions(attention: 'Attention', *given: Any) -> None:
    """Raises ValueError if any bias or relative positions are given."""
    if any(value is not None for value in given):
        raise ValueError(
            f'positions: {type(attention).__name__} attention has no scores that these '
            'positions could change. Choose positions that act on embeddings, queries '
            'and keys, or Softmax attention.'
        )


class Attention(Checked, nn.Module):
    """Attention: Σ_s w_s v_s with w = softmax(q · k_s / √d_k + bias).

    Variants override `scores`, for another product than q · k / √d_k; `weights`, for
    another function than the softmax; or `__call__`, for all of it. The mask applies in
    `weights`. Queries that may attend to no key get zeros. Scores that depend on the
    distance of tokens belong to `Positions.bias`, which knows both positions.

    Grouped-query attention folds groups into the query axis, so queries and keys have
    equally many heads here. Variants that mix heads or have parameters per head set
    `per_head`, to repeat keys and values instead.

    Attributes:
      by_distance: Whether the mask depends on the distance between query and key.
        Cross-attention then uses softmax, unless it has an attention of its own.
      queries_per_head: Number of query heads that `transform_heads` combines into one.
      causal_only: Whether scores depend on the order of the keys, so that only
        self-attention to earlier tokens can use it.

    Examples:
      >>> class Euclidean(Attention):
      ...     def scores(self, q_BTHK, kv):
      ...         key_BSHK = kv.key_BGKS.transpose(0, 3, 1, 2)
      ...         offsets_BTSHK = q_BTHK[:, :, None] - key_BSHK[:, None]
      ...         return -(offsets_BTSHK**2).sum(-1).transpose(0, 3, 1, 2)
      >>> from flaxformer_lite.attention.softmax import Softmax
      >>> arrays = jnp.zeros((1, 1, 2, 3)), jnp.tri(2, 3, dtype=bool)[None, None]

      >>> print(Softmax().apply({}, *arrays, method='weights')[0, 0])
      [[1.  0.  0. ]
       [0.5 0.5 0. ]]
    """

    per_head: ClassVar[bool] = False
    by_distance: ClassVar[bool] = False
    queries_per_head: ClassVar[int] = 1
    causal_only: ClassVar[bool] = False

    def normalize_query(self, q_BTHK: jax.Array) -> jax.Array:
        """Normalizes projected queries, before positions rotate them."""
        return q_BTHK

    def normalize_key(self, key_BSGK: jax.Array) -> jax.Array:
        """Normalizes projected keys, before positions rotate them."""
        return key_BSGK

    def key_features(
        self, x_BSD: jax.Array, sizes: Sizes, dense: Dense
    ) -> jax.Array | None:
        """Returns what scores need of a token besides its key, float32 B…S, or None.

        `KeyValues.features_BHS` and the cache hold it.

        Args:
          x_BSD: Token vectors, from which the keys are projected.
          dense: As in `transform_heads`.
        """
        return None

    def scores(self, q_BTHK: jax.Array, kv: KeyValues) -> jax.Array:
        """Returns the score of each query-key pair, float32 BHTS.

        Args:
          q_BTHK: Queries in the compute dtype, with rotary positions applied.
          kv: The keys are `kv.key_BGKS`, with as many heads G as the queries.
        """
        scale = q_BTHK.shape[-1] ** -0.5
        # The float32 products are scaled: a scaled query would be rounded twice.
        return scale * dot_products(q_BTHK, kv.key_BGKS)

    def weights(self, scores_BHTS: jax.Array, mask_BHTS: jax.Array) -> jax.Array:
        """Returns the weight of each key, float32 BHTS; 0 where the mask is False."""
        return masked_softmax(scores_BHTS, mask_BHTS)

    def key_weights(
        self,
        q_BTHK: jax.Array,
        kv: KeyValues,
        *,
        positions_BT: jax.Array,
        mask_BHTS: jax.Array,
        bias_BHTS: jax.Array | None = None,
        relative_positions: 'Positions | None' = None,
    ) -> jax.Array:
        """Returns the factor of each value, float32 BHTS."""
        scores_BHTS = self.scores(q_BTHK, kv)
        if relative_positions is not None:
            scores_BHTS += relative_positions.scores(
                q_BTHK, positions_BT, kv.positions_BS
            )
        if bias_BHTS is not None:
            scores_BHTS += bias_BHTS
        scores_BHTS = tap(self, '../scores', scores_BHTS, 'BHTS')
        weights_BHTS = self.weights(scores_BHTS, mask_BHTS)
        # An intervention on the pattern must not read masked keys.
        weights_BHTS = tap(self, '../pattern', weights_BHTS, 'BHTS', mask_BHTS)
        # Unlike a tap, `sow` works inside the scan of a recurrent decoder.
        self.sow('intermediates', 'weights', weights_BHTS)
        return weights_BHTS

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
        """Returns the attention output of each query, float32 BTHU.

        Args:
          q_BTHK: Queries in the compute dtype.
          positions_BT: int32 positions of the queries.
          mask_BHTS: bool, True = may attend.
          relative_positions: Adds terms to the scores and the output.

        Raises:
          ValueError: This attention has no scores to add them to.
        """
        weights_BHTS = self.key_weights(
            q_BTHK,
            kv,
            positions_BT=positions_BT,
            mask_BHTS=mask_BHTS,
            bias_BHTS=bias_BHTS,
            relative_positions=relative_positions,
        )
        y_BTHU = weighted_sum(weights_BHTS, kv.value_BGUS, q_BTHK.dtype)
        if relative_positions is not None:
            y_BTHU += relative_positions.values(
                weights_BHTS, positions_BT, kv.positions_BS
            )
        return y_BTHU

    def transform_heads(
        self, y_BTHU: jax.Array, x_BTD: jax.Array, dense: Dense
    ) -> jax.Array:
        """Returns the input of the output projection; by default the heads unchanged.

        Head dropout, recording and interventions apply to the result.

        Args:
          y_BTHU: Output of each query head, float32.
          x_BTD: Input of the sublayer.
          dense: Template of a projection with the model's dtype and initializer. Copy
            it with your own `features` and `name`.
        """
        return y_BTHU

    def init_cache(self, prefix: KeyValues, valid_BS: jax.Array) -> CacheState:
        """Returns the initial cache for decoding.

        Args:
          prefix: Keys and values that all hypotheses of a sentence share. May be empty.
          valid_BS: bool, False for padding in the prefix.
        """
        return Cache.starting_with(prefix)


class ScaledDotProduct(Attention):
    """Softmax attention in float32: softmax((cap(q · k_s · scale) + bias) / T).

    Attributes:
      scale: Factor of q · k. True is 1 / √d_k and False is 1.
      temperature: T, which divides scores and bias. 0 puts all weight on the
        highest-scoring keys, evenly for ties.
      cap: Scores s become cap · tanh(s / cap) (Gemma Team 2024). 0 disables it.
      dropout: Dropout rate of the weights.
      query_key_norm: Whether to RMS-normalize queries and keys per head, with gain c +
        w (Gemma Team 2025).
      query_key_offset: The constant c. The learned w starts at 1 − c, so that the gain
        starts at 1.
      unsupported: Attributes that a variant fixes at their defaults. For `temperature`,
        only 0 is unsupported.

    Raises:
      ValueError: An attribute is out of range or unsupported.
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
                    f'{type(self).__name__}.{name}={value} needs an attention that '
                    f'computes all weights, such as Softmax. Leave it at {default}.'
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
        return self.cap_scores(scale * dot_products(q_BTHK, kv.key_BGKS))

    @nn.nowrap
    def scale_of(self, d_k: int) -> float:
        """Returns the factor of q · k for queries and keys of width `d_k`."""
        if self.scale is True:
            return d_k**-0.5
        if self.scale is False:
            return 1.0
        return self.scale

    @nn.nowrap
    def cap_scores(self, scores: jax.Array) -> jax.Array:
        """Applies the soft cap to scaled scores, before any bias is added."""
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
