"""Mixture of experts (Shazeer et al. 2017; Lepikhin et al. 2021; Fedus et al. 2022)."""

import math

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.feed_forward.base import FeedForward
from flaxformer_lite.feed_forward.relu import Relu
from flaxformer_lite.masks import padding_mask
from flaxformer_lite.ranges import NotNegative, Size


class Mixture(FeedForward):
    """Σ_e p_e FFN_e(x) over the `top` likeliest of E experts, with p = softmax(x W).

    The weights p of the chosen experts are divided by their sum if there is more than
    one of them. Training adds `balance` · E Σ_e f_e P_e to the loss of a token (Fedus
    et al. 2022, equation 4): f_e is the share of choices that fell on expert e, P_e the
    mean of p_e. It reports this sum, and the share of choices that were dropped, as
    metrics.

    Attributes:
      experts: E.
      top: experts a token goes to.
      capacity: while training, an expert takes at most so many times its even share of
        the choices and drops the rest, second choices first; 0 is no limit. There is
        none in evaluation and decoding, so that no sentence depends on others.
      balance: the weight of the balance loss.

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
    def __call__(self, x_BTD):
        d_model = x_BTD.shape[-1]
        x_ND = x_BTD.reshape(-1, d_model)
        valid_BT = padding_mask(x_BTD.shape[:2])
        valid_N = valid_BT.reshape(-1)
        trains = self.is_mutable_collection('losses')
        capacity = self.slots_per_expert(len(x_ND), trains)

        p_NE, weight_KN, expert_KN = self._route(x_ND, valid_N)
        slot_KN = _slots(expert_KN, self.experts)
        x_ECD = _dispatch(x_ND, expert_KN, slot_KN, (self.experts, capacity))
        y_ECD = self._run_experts(x_ECD)
        y_ND = _combine(y_ECD, weight_KN, expert_KN, slot_KN)
        if trains and not self.is_initializing():
            self._report_balance(p_NE, expert_KN, slot_KN, valid_N, capacity)
        return y_ND.reshape(x_BTD.shape)

    def slots_per_expert(self, tokens: int, trains: bool) -> int:
        """How many tokens an expert can take."""
        if not trains or self.capacity == 0:
            return tokens
        even_share = self.top * tokens / self.experts
        return min(tokens, math.ceil(self.capacity * even_share))

    def _route(self, x_ND, valid_N):
        """→ p of all experts; of the K chosen ones their weights and numbers.

        The number of a padding token's expert is E, which does not exist.
        """
        gate = self.matrix(self.experts, 'gate', bias=False, dtype=jnp.float32)
        p_NE = jax.nn.softmax(gate(x_ND), -1)
        weight_NK, expert_NK = jax.lax.top_k(p_NE, self.top)
        weight_KN = weight_NK.T
        expert_KN = expert_NK.T
        if self.top > 1:  # a weight alone would be 1, and W would get no gradient
            weight_KN = weight_KN / weight_KN.sum(0, keepdims=True)
        expert_KN = jnp.where(valid_N[None], expert_KN, self.experts)
        return p_NE, weight_KN, expert_KN

    def _run_experts(self, x_ECD):
        experts = nn.vmap(
            Relu,
            variable_axes={'params': 0},
            split_rngs={'params': True, 'dropout': True},
        )
        return experts(
            self.sizes,
            self.dense.copy(parent=None),
            self.d_ff,
            self.bias,
            self.dropout,
            name='experts',
        )(x_ECD)

    def _report_balance(self, p_NE, expert_KN, slot_KN, valid_N, capacity):
        choices_E = _one_hot(expert_KN, self.experts).sum(0)
        choices = jnp.maximum(choices_E.sum(), 1)
        share_E = choices_E / choices

        tokens = jnp.maximum(valid_N.sum(), 1)
        p_NE = jnp.where(valid_N[:, None], p_NE, 0)
        mean_p_E = p_NE.sum(0) / tokens

        balance = self.experts * (share_E * mean_p_E).sum()
        dropped = (slot_KN >= capacity).sum() / choices
        self.sow('losses', 'balance', self.balance * balance)
        self.sow('metrics', 'balance', balance)
        self.sow('metrics', 'dropped', dropped)


def _one_hot(expert_KN, experts):
    """Every first choice, then every second choice, …: int32 (K N, E)."""
    return jax.nn.one_hot(expert_KN.reshape(-1), experts, dtype=jnp.int32)


def _slots(expert_KN, experts):
    """The place of each choice among those of its expert, first choices first."""
    chosen_PE = _one_hot(expert_KN, experts)
    before_PE = jnp.cumsum(chosen_PE, 0) - 1
    return (before_PE * chosen_PE).sum(-1).reshape(expert_KN.shape)


def _dispatch(x_ND, expert_KN, slot_KN, shape):
    """The tokens of each expert, in their slots: (E, capacity, D), zeros in free slots.

    What has a slot beyond the capacity, or an expert that does not exist, is dropped.
    """
    number_of_tokens = len(x_ND)
    free = jnp.full(shape, number_of_tokens)
    token_N = jnp.arange(number_of_tokens)
    token_EC = free.at[expert_KN, slot_KN].set(token_N)
    return x_ND.at[token_EC].get(mode='fill', fill_value=0)


def _combine(y_ECD, weight_KN, expert_KN, slot_KN):
    """Each token's weighted sum over its experts; a dropped choice adds zero."""
    y_KND = y_ECD.at[expert_KN, slot_KN].get(mode='fill', fill_value=0)
    return (y_KND * weight_KN[..., None]).sum(0)
