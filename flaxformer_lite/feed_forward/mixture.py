"""A mixture of experts (Shazeer et al. 2017; Lepikhin et al. 2021; Fedus et al. 2022)."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.feed_forward._routing import route
from flaxformer_lite.feed_forward.base import FeedForward
from flaxformer_lite.feed_forward.relu import Relu
from flaxformer_lite.shapes import Valid


class Mixture(FeedForward):
    """Σ p_e FFN_e(x) over the `top` likeliest of E `experts`, p = softmax(x W), made to sum to 1 if
    top is not 1, where p itself teaches W.

    Training adds `balance` times `Routing.balance` to the loss, and reports that and the share of
    choices that were `dropped`.

    Attributes:
      capacity: while training an expert takes so many times its even share of tokens and drops
        the rest; 0 for no limit, as elsewhere: sentences never depend on those beside them.

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
        x_ND, valid_BT = x_BTD.reshape(-1, x_BTD.shape[-1]), True if valid_BT is None else valid_BT
        valid_N = jnp.broadcast_to(valid_BT, x_BTD.shape[:2]).reshape(-1)
        gate = self.dense.copy(features=(self.experts,), bias=False, dtype=jnp.float32, name='gate')
        p_NE = jax.nn.softmax(gate(x_ND), -1)
        p_NK, expert_NK = jax.lax.top_k(p_NE, self.top)
        p_NK = p_NK / p_NK.sum(-1, keepdims=True) if self.top > 1 else p_NK
        learns, n = self.is_mutable_collection('losses'), len(x_ND)
        share = int(-(-self.capacity * self.top * n // self.experts))  # rounded up
        room = min(n, share) if learns and share else n
        routing = route(expert_NK, valid_N, self.experts, room)
        every = nn.vmap(Relu, variable_axes={'params': 0}, split_rngs={'params': True})
        own = every(self.d_ff, self.dense.copy(parent=None), name='experts')
        y_ND = routing.to_tokens(own(routing.to_experts(x_ND)), p_NK)

        if learns and not self.is_initializing():
            balance = routing.balance(p_NE, valid_N)
            self.sow('losses', 'balance', self.balance * balance)
            self.sow('metrics', 'balance', balance)
            self.sow('metrics', 'dropped', routing.dropped())
        return y_ND.reshape(x_BTD.shape)
