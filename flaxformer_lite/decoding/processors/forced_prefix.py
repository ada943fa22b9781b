"""Forces the first tokens of every target: `forced_prefix(tokens=(5, 9))`."""

import dataclasses

import jax
import jax.numpy as jnp

from flaxformer_lite.decoding.processors.base import Processor


class ForcedPrefix(Processor):
    """Gives the first tokens probability 1.

    Attributes:
      tokens: Token ids, such as that of a language; traced ones are not checked.

    Examples:
      >>> tokens_BNL, logits_BNV = jnp.zeros((1, 1, 4), int), jnp.zeros((1, 1, 3))
      >>> found = ForcedPrefix(tokens=(2,))(logits_BNV, tokens_BNL, jnp.array(0), eos=1)
      >>> jnp.isfinite(found).tolist()
      [[[False, False, True]]]
    """

    tokens: tuple[int | jax.Array, ...]

    def __post_init__(self):
        super().__post_init__()
        if not self.tokens or not all(
            isinstance(x, int | jax.Array) for x in self.tokens
        ):
            raise ValueError(
                f'ForcedPrefix.tokens must be ids, such as (5, 9), not {self.tokens!r}'
            )

    def check(self, vocab_size, special_tokens, max_length):
        special = dataclasses.astuple(special_tokens)
        for token in self.tokens:
            if not 0 <= token < vocab_size or token in special:
                raise ValueError(
                    f'forced prefix: token {token} is not text. Choose from the '
                    f'{vocab_size} tokens, except padding, start and end token '
                    f'{special}.'
                )
        if len(self.tokens) >= max_length:
            raise ValueError(
                f'forced prefix: {len(self.tokens)} tokens and the end token exceed '
                f'the {max_length} tokens of a target. Give fewer, or allow longer '
                'targets.'
            )

    def __call__(self, logits_BNV, tokens_BNL, step, eos):
        prefix = jnp.asarray(self.tokens, jnp.int32)
        token_V = jnp.arange(logits_BNV.shape[2])
        is_forced_V = token_V == prefix[step]
        log_z_BN1 = jax.nn.logsumexp(logits_BNV, -1, keepdims=True)
        forced_BNV = jnp.where(is_forced_V[None, None], log_z_BN1, -jnp.inf)
        return jnp.where(step < len(prefix), forced_BNV, logits_BNV)
