"""Mixture of experts (Shazeer et al. 2017; Lepikhin et al. 2021; Fedus et al. 2022)."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.feed_forward.base import FeedForward
from flaxformer_lite.feed_forward.relu import ReLU
from flaxformer_lite.masks import padding_mask
from flaxformer_lite.sharding import gather, place
from flaxformer_lite.taps import unobserved
from flaxformer_lite.validation import NotNegative, Size

# Copying an expert's weights takes about as long as computing this many tokens,
# measured on a CPU.
COPY_IN_TOKENS = 100


class _Blocks(NamedTuple):
    """Layout of an array X C D of tokens, in which each block X belongs to one expert.

    Attributes:
      one_each: Whether block e belongs to expert e, which needs no indices of experts.
        Otherwise, a routed batch assigns consecutive blocks to an expert, as many as
        its tokens fill.
    """

    number: int
    size: int
    one_each: bool


def _plan_blocks(tokens: int, top: int, experts: int, capacity: int) -> _Blocks:
    """Returns the blocks that compute a batch fastest, whatever its routing.

    Small blocks compute less padding, but copy the weights of an expert more often. One
    block per expert copies none.

    Examples:
      >>> _plan_blocks(2048, top=2, experts=8, capacity=2048)
      _Blocks(number=23, size=256, one_each=False)
      >>> _plan_blocks(2048, top=2, experts=8, capacity=512)
      _Blocks(number=8, size=512, one_each=True)
    """
    plans = {_Blocks(experts, capacity, True): experts * capacity}
    choices = top * tokens
    size = 1
    while size < capacity:
        # The last block of each expert may hold a single token.
        number = (choices + experts * (size - 1)) // size
        plan = _Blocks(min(choices, number), size, False)
        plans[plan] = plan.number * (size + COPY_IN_TOKENS)
        size *= 2
    return min(plans, key=plans.__getitem__)


class MixtureOfExperts(FeedForward):
    """Σ_e p_e FFN_e(x) over the `top` likeliest of E experts, with p = softmax(x W).

    The weights of several chosen experts are divided by their sum. Training adds
    `balance` · E Σ_e f_e P_e to the loss per token (Fedus et al. 2022, equation 4). f_e
    is the share of choices routed to expert e, and P_e the mean of p_e. Metrics report
    the sum and the share of dropped choices.

    Each expert computes only its own tokens, in blocks of equal size (Gale et al. 2023,
    "MegaBlocks").

    Sources: Shazeer et al. 2017; Lepikhin et al. 2021. Use it for more parameters at
    almost the same computation per token.

    Attributes:
      experts: E.
      top: Number of experts per token.
      capacity: Maximum load of an expert in training, relative to an even share of
        choices. Excess choices are dropped, second choices first. 0 disables the limit.

    Raises:
      ValueError: `top` exceeds `experts`.

    Examples:
      >>> import flaxformer_lite as fl
      >>> feed_forward = fl.feed_forward.MixtureOfExperts(experts=8)
      >>> model = fl.Transformer(vocab_size=100, feed_forward=feed_forward)
    """

    experts: Size = 4
    top: Size = 2
    capacity: NotNegative = 0.0
    balance: NotNegative = 0.01

    def __post_init__(self):
        super().__post_init__()
        if self.top > self.experts:
            raise ValueError(
                f'MixtureOfExperts.top must be at most experts={self.experts}, not '
                f'{self.top}'
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
        kept_KN = (expert_KN < self.experts) & (slot_KN < capacity)
        if self.is_initializing():
            blocks = _Blocks(self.experts, capacity, True)
        else:
            blocks = _plan_blocks(len(x_ND), self.top, self.experts, capacity)
        if blocks.one_each:
            expert_X, to_KN, at_KN = None, expert_KN, slot_KN
        else:
            expert_X, first_E = _owners(expert_KN, kept_KN, blocks, self.experts)
            to_KN = first_E[expert_KN] + slot_KN // blocks.size
            at_KN = slot_KN % blocks.size
        to_KN = jnp.where(kept_KN, to_KN, blocks.number)
        x_XCD = _dispatch(x_ND, to_KN, at_KN, blocks)
        y_XCD = self._run_experts(x_XCD, expert_X)
        y_ND = _combine(y_XCD, weight_KN, to_KN, at_KN)
        if trains and not self.is_initializing():
            self._sow_balance(p_NE, expert_KN, slot_KN, valid_N, capacity)
        return y_ND.reshape(x_BTD.shape)

    def slots_per_expert(self, tokens: int, trains: bool) -> int:
        """Returns the maximum number of tokens per expert.

        Examples:
          >>> network = MixtureOfExperts(experts=4, top=2, capacity=1.5)
          >>> network.slots_per_expert(8, trains=True)
          6
        """
        if not trains or self.capacity == 0:
            return tokens
        even_share = self.top * tokens / self.experts
        return min(tokens, math.ceil(self.capacity * even_share))

    def _route(self, x_ND, valid_N):
        """Returns p of all experts, and weights and indices of the K chosen ones.

        Padding gets the nonexistent expert E.
        """
        gate = self.matrix(self.experts, 'gate', bias=False, dtype=jnp.float32)
        p_NE = jax.nn.softmax(gate(x_ND), -1)
        weight_NK, expert_NK = jax.lax.top_k(p_NE, self.top)
        weight_KN = weight_NK.T
        expert_KN = expert_NK.T
        if self.top > 1:  # normalizing a single weight would give 1, and W no gradient
            weight_KN = weight_KN / weight_KN.sum(0, keepdims=True)
        expert_KN = jnp.where(valid_N[None], expert_KN, self.experts)
        return p_NE, weight_KN, expert_KN

    def _run_experts(self, x_XCD, expert_X):
        """Runs each block's expert: `expert_X`, or expert e for block e if None."""
        experts = nn.vmap(
            ReLU,
            variable_axes={'params': 0},
            split_rngs={'params': True, 'dropout': True},
        )
        axes = 'EBD'
        if expert_X is not None:
            axes = ' BD'

            def copy(path, w_E):
                names = ('experts', *(key.key for key in path[-2:]))
                return gather(w_E, names)[expert_X]

            experts = nn.map_variables(
                experts, 'params', lambda params: jax.tree.map_with_path(copy, params)
            )
        experts = experts(
            self.sizes,
            self.dense.copy(parent=None),
            self.d_ff,
            self.bias,
            self.dropout,
            name='experts',
        )
        with unobserved():
            return experts(place(x_XCD, axes))

    def _sow_balance(self, p_NE, expert_KN, slot_KN, valid_N, capacity):
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
    """Returns int32 (K N, E): all first choices, then all second choices, …."""
    return jax.nn.one_hot(expert_KN.reshape(-1), experts, dtype=jnp.int32)


def _slots(expert_KN, experts):
    chosen_PE = _one_hot(expert_KN, experts)
    before_PE = jnp.cumsum(chosen_PE, 0) - 1
    return (before_PE * chosen_PE).sum(-1).reshape(expert_KN.shape)


def _owners(expert_KN, kept_KN, blocks, experts):
    """Returns the expert of each block, and the first block of each expert."""
    tokens_E = _one_hot(jnp.where(kept_KN, expert_KN, experts), experts).sum(0)
    blocks_E = -(-tokens_E // blocks.size)
    end_E = jnp.cumsum(blocks_E)
    owner_X = (jnp.arange(blocks.number)[:, None] >= end_E[None]).sum(-1)
    return jnp.minimum(owner_X, experts - 1), end_E - blocks_E


def _dispatch(x_ND, to_KN, at_KN, blocks):
    """Gathers tokens into their blocks, (X, C, D), padded with zeros.

    Choices of a nonexistent block are dropped.
    """
    number_of_tokens = len(x_ND)
    free = jnp.full((blocks.number, blocks.size), number_of_tokens)
    token_N = jnp.arange(number_of_tokens)
    token_XC = free.at[to_KN, at_KN].set(token_N)
    return x_ND.at[token_XC].get(mode='fill', fill_value=0)


def _combine(y_XCD, weight_KN, to_KN, at_KN):
    """Sums each token's results over its experts; dropped choices add zero."""
    y_KND = y_XCD.at[to_KN, at_KN].get(mode='fill', fill_value=0)
    return (y_KND * weight_KN[..., None]).sum(0)
