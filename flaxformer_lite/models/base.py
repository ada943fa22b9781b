"""Base class of models: embeddings, logits and the interface for decoding."""

import functools
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.kv_cache import BeamState, CacheState
from flaxformer_lite.layers.stack import Stack
from flaxformer_lite.masks import TokenBatch
from flaxformer_lite.networks import LayeredNetwork, Network
from flaxformer_lite.ops.loss_of_logits import finish_logits
from flaxformer_lite.ops.matmul import matmul
from flaxformer_lite.remat import NONE, Remat
from flaxformer_lite.sharding import gather, map_rows, place
from flaxformer_lite.special_tokens import DEFAULT_TOKENS, SpecialTokens
from flaxformer_lite.taps import at_step, at_target, tap
from flaxformer_lite.validation import Choices, FrozenDataclass, Range, Size, naming

# int32 tokens BT or float source vectors BSF; or rows that may be packed.
Tokens = jax.Array | TokenBatch


class DecodeState(NamedTuple):
    """State that a model carries between decoding steps.

    Attributes:
      encoder_state: Source data shared by all hypotheses of a sentence.
    """

    encoder_state: Any
    caches: tuple[CacheState, ...]

    def allocate(self, hypotheses: int, tokens: int) -> 'DecodeState':
        """Extends the caches to `tokens` tokens for each hypothesis of a sentence."""
        caches = tuple(cache.allocate(hypotheses, tokens) for cache in self.caches)
        return self._replace(caches=caches)


class Embeddings(FrozenDataclass):
    """Embeddings and logits (§3.4).

    Attributes:
      tie: Embeddings that share a matrix: 'all' (source, target, output), 'decoder'
        (target, output), 'source_target' or 'none'.
      scale: Whether to multiply embeddings by √width.
      output_bias: Whether logits have a bias.
      scale_logits: Whether to divide logits by √d_model before the bias, as in T5.
      logit_cap: Soft cap m, or None: logits z become m tanh(z / m) (Gemma Team 2024).

    Examples:
      >>> Embeddings(tie='decoder', logit_cap=30.0).scale
      True
    """

    tie: Annotated[str, Choices('all', 'decoder', 'source_target', 'none')] = 'all'
    scale: bool = True
    output_bias: bool = False
    scale_logits: bool = False
    logit_cap: Annotated[float | None, Range(above=0)] = None

    @property
    def ties_source(self) -> bool:
        """Whether source and target embeddings share a matrix."""
        return self.tie in ('all', 'source_target')


class Model(Network, kw_only=True):
    """Model that maps tokens to logits.

    Variants override `decode_hidden`, `prefill` and `step_hidden`.

    Sources may be vectors of `source_vocab_size` features instead of tokens, such as
    frames of speech. They weight the rows of the source embedding.

    Attributes:
      vocab_size: Target vocabulary size, and the source's unless it has its own.
      source_vocab_size: Size of a separate source vocabulary, or None. Requires
        embeddings that don't share a matrix between source and target.
      embeddings: Which embeddings share a matrix, and how logits result from them.
      special_tokens: Ids of padding and of the first and last token.
      own_arguments: Attributes that a spec may set, as in recurrent(cell='lstm').
        Attributes with the name of a config field get its value instead.
    """

    own_arguments: ClassVar[tuple[str, ...]] = ()
    unused_fields: ClassVar[tuple[str, ...]] = ()
    vocab_size: Size
    embeddings: Embeddings = Embeddings()
    special_tokens: SpecialTokens = DEFAULT_TOKENS
    source_vocab_size: Annotated[int | None, Range(at_least=1)] = None

    if TYPE_CHECKING:
        # Flax makes modules hashable by their attributes, but does not annotate it.
        def __hash__(self) -> int: ...

    def __post_init__(self):
        super().__post_init__()
        with naming('special_tokens'):
            self.special_tokens.check_within(self.vocab_size)
        if self.source_vocab_size is not None and self.embeddings.ties_source:
            raise ValueError(
                f'embeddings.tie={self.embeddings.tie} shares source and target '
                'embeddings, but each side has its own vocabulary. Set it to decoder '
                'or none.'
            )

    def setup(self):
        self.target_VD = self._table('embedding')
        self.source_VD = self.target_VD
        self.output_VD = self.target_VD
        if not self.embeddings.ties_source:
            size = self.source_vocab_size
            self.source_VD = self._table('source_embedding', self.d_model, size)
        if self.embeddings.tie in ('source_target', 'none'):
            self.output_VD = self._table('output')
        self.bias_V = None
        if self.embeddings.output_bias:
            zeros = nn.initializers.zeros
            self.bias_V = self.param('output_bias', zeros, (self.vocab_size,))

    def _table(self, name, d_model=None, size=None):
        init = self.dense.kernel_init.embedding
        shape = (size or self.vocab_size, d_model or self.target_d_model)
        return self.param(name, init, *shape)

    @property
    def target_d_model(self) -> int:
        """Width of target embeddings and of the vectors that give logits."""
        return self.d_model

    def lr_multiplier(self, path: tuple[str, ...]) -> float:
        """Returns the learning-rate multiplier of a parameter, set by its initializer.

        Args:
          path: Such as ('encoder', 'layer_0', 'feed_forward', 'up', …).
        """
        return self.dense.kernel_init.lr_multiplier(path)

    @nn.nowrap
    def stacks(self) -> dict[str, Stack]:
        """Returns the templates of stacks by name; recurrent models have none."""
        return {}

    @nn.nowrap
    def with_remat(self, remat: Remat) -> Self:
        """Returns the same model with a rematerialization policy of `Stack.remat`.

        Raises:
          ValueError: `remat` is unknown, or the model has no blocks.
        """
        if self.stacks():
            return self.clone(remat=remat)
        if remat == NONE:
            return self
        raise ValueError(
            f'remat={remat} has no effect: {type(self).__name__} has no blocks to '
            'rematerialize. Set it to none.'
        )

    @property
    def scans_layers(self) -> bool:
        return any(stack.is_scanned for stack in self.stacks().values())

    @property
    def layer_periods(self) -> dict[str, int]:
        """Number of layers in the repeating pattern of each stack."""
        return {name: len(stack.blocks) for name, stack in self.stacks().items()}

    @nn.nowrap
    def with_separate_layers(self) -> Self:
        """Returns the same model with layers that run one by one.

        `layers.scanned_stack.unstack_layers` converts the variables.
        """
        return self.clone(scan_layers=False) if self.scans_layers else self

    @nn.nowrap
    def unshared(self, variables: Any) -> tuple[Self, Any]:
        """Returns the same model without shared layers, and its variables with copies.

        Args:
          variables: Must have separate layers.
        """
        stacks = {name: x for name, x in self.stacks().items() if x.shared}
        if not stacks:
            return self, variables
        params = dict(variables['params'])
        for name, stack in stacks.items():
            params[name] = stack.of_all_layers(params[name])
        return self._without_sharing(), {**variables, 'params': params}

    @nn.nowrap
    def _without_sharing(self) -> Self:
        return self.clone(share_layers=None)

    @property
    def max_length(self) -> int | None:
        return None

    def embed(self, table_VD: jax.Array, tokens_BT: jax.Array) -> jax.Array:
        """Embeds tokens, or vectors BTV that weight the table's rows, as float32 BTD.

        Raises:
          ValueError: The vectors' features differ in number from the table's rows.
        """
        table_VD = gather(table_VD, ('embedding',))
        if tokens_BT.ndim == 3:
            x_BTD = place(self._weigh(table_VD, tokens_BT), 'BTD')
        else:
            # Per device. Otherwise XLA communicates the gradients of all tokens instead
            # of their sum.
            rows_of = functools.partial(jnp.take, axis=0)
            x_BTD = place(map_rows(rows_of, (table_VD,), (tokens_BT,)), 'BTD')
        if self.embeddings.scale:
            x_BTD *= x_BTD.shape[-1] ** 0.5
        return x_BTD

    def _weigh(self, table_VD, vectors_BTV):
        if vectors_BTV.shape[-1] != len(table_VD):
            raise ValueError(
                f'the source has vectors of {vectors_BTV.shape[-1]} features, and the '
                f"model's source_vocab_size is {len(table_VD)}"
            )
        dtype = self.dense.dtype
        vectors_NV = vectors_BTV.reshape(-1, len(table_VD)).astype(dtype)
        x_ND = matmul(vectors_NV, table_VD.astype(dtype))
        return x_ND.reshape(*vectors_BTV.shape[:-1], -1)

    def decode_hidden(self, source: TokenBatch, inputs: TokenBatch) -> jax.Array:
        """Returns the hidden states of a whole target, float32 BTD, before logits."""
        raise NotImplementedError

    def hidden_of_heads(
        self, source: TokenBatch, inputs: TokenBatch
    ) -> tuple[jax.Array, ...]:
        """Returns `decode_hidden`, and hidden states that predict later tokens.

        Entry i predicts the token after i others. Losses read all entries.
        """
        return (self.decode_hidden(source, inputs),)

    def prefill(self, source_BS: jax.Array) -> DecodeState:
        """Reads the source once. The caches have no slots for generated tokens yet."""
        raise NotImplementedError

    def step_hidden(
        self, x_BND: jax.Array, state: DecodeState, beam: BeamState
    ) -> tuple[jax.Array, tuple[CacheState, ...]]:
        """Maps the embedded token of each hypothesis to a hidden state and caches."""
        raise NotImplementedError

    def logit_factors(
        self, source: Tokens, inputs: Tokens
    ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        """Returns the factors of logits: hidden states BTD, output matrix VD, bias V.

        All are float32; the bias may be None. They exclude `logit_cap`.
        """
        source, inputs = self._rows(source, inputs)
        with at_target(inputs):
            hidden_BTD = self._scale_logits(self.decode_hidden(source, inputs))
        return hidden_BTD, self.output_VD, self.bias_V

    def factors_of_heads(
        self, source: Tokens, inputs: Tokens
    ) -> tuple[tuple[jax.Array, ...], jax.Array, jax.Array | None]:
        """Like `logit_factors`, with the hidden states of `hidden_of_heads`."""
        source, inputs = self._rows(source, inputs)
        with at_target(inputs):
            hidden = self.hidden_of_heads(source, inputs)
        return tuple(map(self._scale_logits, hidden)), self.output_VD, self.bias_V

    def _rows(self, source, inputs):
        padding = self.special_tokens.padding
        source = TokenBatch.from_tokens(source, padding)
        return source, TokenBatch.from_inputs(inputs, padding)

    def __call__(self, source: Tokens, inputs: Tokens) -> jax.Array:
        """Returns teacher-forced logits, float32 BTV; row t predicts the next token.

        Args:
          inputs: Target tokens, shifted right. Each row starts with the start token.
        """
        source, inputs = self._rows(source, inputs)
        hidden_BTD, _, _ = self.logit_factors(source, inputs)
        with at_target(inputs):
            return tap(self, 'logits', self._logits(hidden_BTD), 'BTV')

    def decode_step(
        self, token_BN: jax.Array, state: DecodeState, beam: BeamState
    ) -> tuple[jax.Array, DecodeState]:
        """Maps the next token per hypothesis to logits, float32 BNV, and new state."""
        with at_step(beam, token_BN.shape):
            x_BND = self.embed(self.target_VD, token_BN)
            hidden_BND, caches = self.step_hidden(x_BND, state, beam)
            logits_BNV = tap(self, 'logits', self.unembed(hidden_BND), 'BTV')
        return logits_BNV, state._replace(caches=caches)

    def unembed(self, hidden_BTD: jax.Array) -> jax.Array:
        """Maps final hidden states to logits, float32 BTV."""
        return self._logits(self._scale_logits(hidden_BTD))

    def _scale_logits(self, hidden_BTD):
        scale = self.dense.kernel_init.logit_scale
        if self.embeddings.scale_logits:
            scale *= self.target_d_model**-0.5
        if scale == 1:
            return hidden_BTD
        return hidden_BTD * scale

    def _logits(self, hidden_BTD):
        dtype = self.dense.dtype
        hidden_ND = hidden_BTD.reshape(-1, self.target_d_model).astype(dtype)
        table_VD = self.output_VD.astype(dtype)
        table_VD = gather(table_VD, ('output',))
        logits_NV = matmul(hidden_ND, table_VD.T)
        logits_NV = finish_logits(logits_NV, self.bias_V, self.embeddings.logit_cap)
        return logits_NV.reshape(*hidden_BTD.shape[:-1], self.vocab_size)


class LayeredModel(LayeredNetwork, Model, kw_only=True):
    """Model with stacks of Transformer layers."""
