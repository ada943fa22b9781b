"""A mixture of experts (Shazeer et al. 2017; Lepikhin et al. 2021; Fedus et al. 2022)."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.dense import Dense
from flaxformer_lite.feed_forward._places import places
from flaxformer_lite.feed_forward.base import FeedForward
from flaxformer_lite.feed_forward.relu import Relu
from flaxformer_lite.shapes import Valid


class Mixture(FeedForward):
    """Σ p_e FFN_e(x) over the `top` likeliest experts e, p = softmax(x W): their p made to sum to 1
    (but for top=1, where p itself teaches W).

    Training adds `balance` · E Σ_e f_e P_e to the loss, f_e the share of choices that fell on e and
    P_e the mean of p_e (Fedus et al., equation 4), and reports it and the share `dropped`.

    Attributes:
      experts: E. top: how many of them see a token.
      capacity: while training an expert takes so many times its even share of tokens, first
        choices first, and drops the rest; 0 for no limit, as elsewhere, so that what becomes of a
        sentence never depends on those beside it.

    Raises:
      ValueError: top is not in 1 … experts, or capacity or balance is negative.
    """

    experts: int = 4
    top: int = 2
    capacity: float = 0.0
    balance: float = 0.01

    def __post_init__(self):
        if not (1 <= self.top <= self.experts and self.capacity >= 0 and self.balance >= 0):
            raise ValueError(f'mixture needs 1 ≤ top ≤ experts, capacity and balance ≥ 0: {self}')
        super().__post_init__()

    @nn.compact
    def __call__(self, x_BTD: jax.Array, valid_BT: Valid = None) -> jax.Array:
        x_ND, valid_N = x_BTD.reshape(-1, x_BTD.shape[-1]), jnp.ones(x_BTD.shape[:2], bool)
        valid_N = (valid_N if valid_BT is None else valid_BT).reshape(-1)
        gate = Dense((self.experts,), bias=False, initial=self.initial, name='gate')
        p_NE = jax.nn.softmax(gate(x_ND), -1)
        p_NK, expert_NK = jax.lax.top_k(p_NE, self.top)
        p_NK = p_NK / p_NK.sum(-1, keepdims=True) if self.top > 1 else p_NK

        learns, n = self.is_mutable_collection('losses'), len(x_ND)
        share = self.capacity * self.top * n / self.experts
        room = min(n, -int(-share // 1)) if learns and share else n
        token_S, slot_P, chosen_PE = places(expert_NK, valid_N, self.experts, room)
        x_ECD = x_ND.at[token_S].get(mode='fill', fill_value=0).reshape(self.experts, room, -1)
        every = nn.vmap(Relu, variable_axes={'params': 0}, split_rngs={'params': True})
        y_ECD = every(self.d_ff, self.dtype, self.initial, name='experts')(x_ECD)
        y_PD = y_ECD.reshape(-1, y_ECD.shape[-1]).at[slot_P].get(mode='fill', fill_value=0)
        y_ND = (y_PD * p_NK.T.reshape(-1, 1)).reshape(self.top, n, -1).sum(0)

        if learns and not self.is_initializing():
            tokens = jnp.maximum(valid_N.sum(), 1)
            f_E = chosen_PE.sum(0) / (tokens * self.top)
            balance = self.experts * (f_E * (p_NE * valid_N[:, None]).sum(0) / tokens).sum()
            self.sow('losses', 'balance', self.balance * balance)
            self.sow('metrics', 'balance', balance)
            kept = (slot_P < len(token_S)).sum()
            self.sow('metrics', 'dropped', 1 - kept / (tokens * self.top))
        return y_ND.reshape(x_BTD.shape)
