"""A mixture of experts (Shazeer et al. 2017; Lepikhin et al. 2021; Fedus et al. 2022)."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.feed_forward.base import FeedForward
from flaxformer_lite.feed_forward.relu import Relu
from flaxformer_lite.ranges import NotNegative, Size


class Mixture(FeedForward):
    """Σ p_e FFN_e(x) over the `top` likeliest of E `experts`, p = softmax(x W), made to sum to 1 if
    top > 1. Training adds `balance` · E Σ f_e P_e to the loss (Fedus et al. 2022, equation 4), f_e
    the share of choices that fell on e, P_e the mean of p_e; reported with the share `dropped`.

    Attributes:
      capacity: while training an expert takes so many times its even share of tokens and drops
        the rest, last choices first; 0 for no limit, as elsewhere: no sentence depends on others.

    Raises:
      ValueError: top is more than experts.
    """

    experts: Size = 4
    top: Size = 2
    capacity: NotNegative = 0.0
    balance: NotNegative = 0.01

    def __post_init__(self):
        super().__post_init__()
        if self.top > self.experts:
            raise ValueError(
                f'top must be at most experts={self.experts}, not {self.top}'
            )

    @nn.compact
    def __call__(self, x_BTD, valid_BT=None):
        x_ND = x_BTD.reshape(-1, x_BTD.shape[-1])
        learns, n = self.is_mutable_collection('losses'), len(x_ND)
        room = (
            min(n, int(-(-self.capacity * self.top * n // self.experts)) or n)
            if learns
            else n
        )
        valid_1N = (
            jnp.ones((1, n), bool) if valid_BT is None else valid_BT.reshape(1, -1)
        )
        gate = self.layer(self.experts, 'gate', bias=False, dtype=jnp.float32)
        p_NE = jax.nn.softmax(gate(x_ND), -1)
        p_KN, expert_KN = (x_NK.T for x_NK in jax.lax.top_k(p_NE, self.top))
        p_KN = (
            p_KN / p_KN.sum(0, keepdims=True) if self.top > 1 else p_KN
        )  # alone, p teaches W
        expert_KN = jnp.where(
            valid_1N, expert_KN, self.experts
        )  # out of bounds, so dropped
        chosen_PE = jax.nn.one_hot(expert_KN.reshape(-1), self.experts, dtype=jnp.int32)
        place_KN = (
            ((jnp.cumsum(chosen_PE, 0) - 1) * chosen_PE)
            .sum(-1)
            .reshape(expert_KN.shape)
        )
        token_ER = (
            jnp.full((self.experts, room), n).at[expert_KN, place_KN].set(jnp.arange(n))
        )
        every = nn.vmap(Relu, variable_axes={'params': 0}, split_rngs={'params': True})
        own = every(self.d_ff, self.dense.copy(parent=None), name='experts')
        y_ERD = own(x_ND.at[token_ER].get(mode='fill', fill_value=0))
        y_KND = y_ERD.at[expert_KN, place_KN].get(mode='fill', fill_value=0)
        if learns and not self.is_initializing():
            choices = jnp.maximum(chosen_PE.sum(), 1)
            p_E = jnp.where(valid_1N, p_NE.T, 0).sum(-1) / jnp.maximum(
                valid_1N.sum(), 1
            )
            balance = self.experts * (chosen_PE.sum(0) / choices * p_E).sum()
            self.sow('losses', 'balance', self.balance * balance)
            self.sow('metrics', 'balance', balance)
            self.sow('metrics', 'dropped', (place_KN >= room).sum() / choices)
        return (y_KND * p_KN[..., None]).sum(0).reshape(x_BTD.shape)
