"""Multi-head attention (paper §3.2.2): project, rotate, attend, project back."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.kv_cache import NO_POSITION, KeyValues
from flaxformer_lite.layers.dense.base import Dense
from flaxformer_lite.layers.dropout import Dropout
from flaxformer_lite.masks import AttentionContext
from flaxformer_lite.shapes import fold_groups, unfold_groups
from flaxformer_lite.sizes import Sizes
from flaxformer_lite.taps import is_tapped, tap


class MultiHeadAttention(nn.Module):
    """Multi-head attention: Concat(head_1, …, head_h) W^O.

    head_i = Attention(x W_i^Q, y W_i^K, y W_i^V). `project_kv` computes keys and
    values, in cross-attention once per sentence.

    Attributes:
      sizes: The sizes d_model, num_heads, num_kv_heads, d_k and d_v. Fewer key-value
        heads give grouped-query attention (Ainslie et al. 2023). A single one gives
        multi-query attention (Shazeer 2019).
      core_attention: A module of `attention/`.
      positions: A module of `positions/`.
      dense: Template of the matrices. Its dtype is also that of cached keys and values.
      head_dropout: Dropout of whole heads, before the output projection.
      projections: False omits all four matrices and slices the input into heads.
      bias: Whether matrices have biases.
    """

    sizes: Sizes
    core_attention: nn.Module
    positions: nn.Module
    dense: Dense = Dense()
    head_dropout: nn.Module = Dropout(0.0)
    projections: bool = True
    bias: bool = False

    def setup(self):
        if not self.projections:
            return
        sizes = self.sizes
        self.query = self._matrix(sizes.num_heads, sizes.d_k)
        self.key = self._matrix(sizes.num_kv_heads, sizes.d_k)
        self.value = self._matrix(sizes.num_kv_heads, sizes.d_v)
        self.out_proj = self._matrix(sizes.d_model, input_axes=2)

    def _matrix(self, *features, input_axes=1):
        return self.dense.copy(
            features=features, input_axes=input_axes, bias=self.bias, name=None
        )

    def _slices(self, x_BTD):
        return x_BTD.reshape(*x_BTD.shape[:2], self.sizes.num_heads, self.sizes.d_k)

    def project_kv(self, x_BSD: jax.Array, positions_BS: jax.Array | None) -> KeyValues:
        """Computes keys and values in the compute dtype.

        Args:
          positions_BS: int32; None for keys without positions.
        """
        if self.projections:
            key_BSGK = self.key(x_BSD)
            value_BSGU = self.value(x_BSD)
        else:
            key_BSGK = value_BSGU = self._slices(x_BSD)
        key_BSGK = self.core_attention.normalize_key(key_BSGK)
        prefix = ''
        if positions_BS is None:
            prefix = '../cross_attention/'  # the source in merged attention
            positions_BS = jnp.full(x_BSD.shape[:2], NO_POSITION, jnp.int32)
        else:
            key_BSGK = self.positions.rotate(key_BSGK, positions_BS)
        key_BSGK = key_BSGK.astype(self.dense.dtype)
        value_BSGU = value_BSGU.astype(self.dense.dtype)
        key_BSGK = tap(self, f'{prefix}k', key_BSGK, 'BTHK')
        value_BSGU = tap(self, f'{prefix}v', value_BSGU, 'BTHU')
        return KeyValues(
            key_BGKS=jnp.moveaxis(key_BSGK, 1, -1),
            value_BGUS=jnp.moveaxis(value_BSGU, 1, -1),
            positions_BS=positions_BS,
            features_BHS=self.core_attention.key_features(
                x_BSD, self.sizes, self.dense
            ),
        )

    def __call__(
        self, x_BTD: jax.Array, kv: KeyValues, context: AttentionContext
    ) -> jax.Array:
        """Attends from x_BTD to the result of `project_kv` or a cache, float32 BTD."""
        q_BTHK = self.query(x_BTD) if self.projections else self._slices(x_BTD)
        q_BTHK = self.core_attention.normalize_query(q_BTHK)
        q_BTHK = self.positions.rotate(q_BTHK, context.positions_BT)
        q_BTHK = q_BTHK.astype(self.dense.dtype)
        q_BTHK = tap(self, 'q', q_BTHK, 'BTHK')
        y_BTHU = self._attend(q_BTHK, kv, context)
        y_BTHU = self.core_attention.transform_heads(y_BTHU, x_BTD, self.dense)
        y_BTHU = tap(self, 'z', y_BTHU, 'BTHU')
        y_BTHU = self.head_dropout(y_BTHU)
        if not self.projections:
            return y_BTHU.reshape(*x_BTD.shape[:2], -1)
        return self._project_heads(y_BTHU)

    def _project_heads(self, z_BTHU):
        y_BTD = self.out_proj(z_BTHU)
        if not is_tapped(self, 'result'):
            return y_BTD
        # An adapter's matrices add to the kernel.
        params = self.out_proj.merge(self.out_proj.variables['params'])
        result_BTHD = jnp.einsum(
            'bthu,hud->bthd',
            z_BTHU.astype(self.dense.dtype),
            params['kernel'].astype(self.dense.dtype),
            preferred_element_type=jnp.float32,
        )
        # Adding only the change keeps the output's bits if the result is unchanged.
        change_BTHD = tap(self, 'result', result_BTHD, 'BTHD') - result_BTHD
        return y_BTD + change_BTHD.sum(2)

    def _attend(self, q_BTHK, kv, context):
        """Applies the core attention, with as many query heads as key heads.

        Folds queries that share a key head into the query axis. If core attention or
        positions are `per_head`, it repeats keys and values instead.
        """
        bias_BHTS = self._bias(kv, context)
        group_size = self.sizes.num_heads // self.sizes.num_kv_heads
        per_head = self.core_attention.per_head or self.positions.per_head
        if group_size > 1 and per_head:
            kv = kv.replace(
                key_BGKS=jnp.repeat(kv.key_BGKS, group_size, 1),
                value_BGUS=jnp.repeat(kv.value_BGUS, group_size, 1),
            )
            group_size = 1
        y_BTHU = self.core_attention(
            fold_groups(q_BTHK, group_size),
            kv,
            positions_BT=jnp.repeat(context.positions_BT, group_size, 1),
            mask_BHTS=_fold_pairs(context.mask_BHTS, group_size),
            bias_BHTS=_fold_pairs(bias_BHTS, group_size),
            relative_positions=self.positions if self.positions.adds_scores else None,
        )
        return unfold_groups(y_BTHU, group_size)

    def _bias(self, kv, context):
        if not self.positions.has_layer_bias:
            return context.bias_BHTS
        bias_BHTS = self.positions.layer_bias(context.positions_BT, kv.positions_BS)
        # In merged attention, source keys have no positions and get no bias.
        has_position_BS = kv.positions_BS != NO_POSITION
        return jnp.where(has_position_BS[:, None, None], bias_BHTS, 0.0)


def _fold_pairs(x_BHTS, group_size):
    if x_BHTS is None or group_size == 1:
        return x_BHTS
    if x_BHTS.shape[1] > 1:
        x_BTHS = jnp.swapaxes(x_BHTS, 1, 2)
        return jnp.swapaxes(fold_groups(x_BTHS, group_size), 1, 2)
    if x_BHTS.shape[2] > 1:
        return jnp.repeat(x_BHTS, group_size, 2)
    return x_BHTS
