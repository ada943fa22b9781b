"""Value residual (Zhou et al. 2024, "Value Residual Learning")."""

from typing import Annotated

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.layer_scope import publish, published
from flaxformer_lite.layers.blocks.sequential import Sequential
from flaxformer_lite.validation import Range

_NAME = 'first_values'


class ValueResidual(Sequential):
    """Sequential block whose self-attention reads values λ₁ V₁ + λ₂ V.

    V₁ are the values of the same tokens in the stack's first such layer. λ₁ = λ₂ = 0.5
    is Identity-ResFormer. λ₁ = 1 with λ₂ = 0 is SVFormer. Use it to ask whether deep
    layers need the values of the first.

    Attributes:
      first: λ₁.
      own: λ₂.
      learned: Whether λ₁ and λ₂ are parameters of each layer, initialized to `first`
        and `own` (Learnable-ResFormer). The first layer multiplies its values by λ₁ +
        λ₂.

    Examples:
      >>> import flaxformer_lite as fl
      >>> block = fl.blocks.ValueResidual(learned=True)
      >>> model = fl.Transformer(vocab_size=100, block=block)
    """

    first: Annotated[float, Range(at_least=0)] = 0.5
    own: Annotated[float, Range(at_least=0)] = 0.5
    learned: bool = False

    def setup(self):
        if self.learned:
            self.value_mix = _ValueMix(self.first, self.own)

    @nn.nowrap
    def publishes(self, batch, length):
        sizes = self.self_attention.sizes
        shape = batch, sizes.num_kv_heads, sizes.d_v, length
        if not self.self_attention.projections:
            shape = batch, sizes.num_heads, sizes.d_k, length
        return {_NAME: jax.ShapeDtypeStruct(shape, self.self_attention.dense.dtype)}

    def keep(self, h_BTD, positions_BT):
        kv = super().keep(h_BTD, positions_BT)
        own_BGUS = kv.value_BGUS
        first_BGUS, exists = published(_NAME, default=own_BGUS)
        publish(_NAME, first_BGUS)
        sum_BGUS = self._sum(first_BGUS.astype(jnp.float32), own_BGUS)
        sum_BGUS = sum_BGUS.astype(own_BGUS.dtype)
        if not self.learned:
            sum_BGUS = jnp.where(exists, sum_BGUS, own_BGUS)
        return kv.replace(value_BGUS=sum_BGUS)

    def _sum(self, first_BGUS, own_BGUS):
        if self.learned:
            return self.value_mix(first_BGUS, own_BGUS)
        return self.first * first_BGUS + self.own * own_BGUS


class _ValueMix(nn.Module):
    first: float
    own: float

    @nn.compact
    def __call__(self, first_BGUS, own_BGUS):
        first = self.param('first', nn.initializers.constant(self.first), ())
        own = self.param('own', nn.initializers.constant(self.own), ())
        return first * first_BGUS + own * own_BGUS
