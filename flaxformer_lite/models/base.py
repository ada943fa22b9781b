"""What models of text have in common: embeddings, logits, and how they are decoded."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.kv_cache import BeamState, CacheState
from flaxformer_lite.layers.dense import Dense
from flaxformer_lite.layers.scanned_stack import ScannedStack
from flaxformer_lite.layers.stack import Stack
from flaxformer_lite.masks import TokenBatch
from flaxformer_lite.ops.loss_of_logits import finish_logits
from flaxformer_lite.ops.matmul import matmul
from flaxformer_lite.ranges import Checked, Choices, Range, Size
from flaxformer_lite.remat import NONE, Remat
from flaxformer_lite.sharding import gather, map_rows, place
from flaxformer_lite.special_tokens import DEFAULT_TOKENS, SpecialTokens

if TYPE_CHECKING:
    from flaxformer_lite.config.build import Parts

TIES = ('all', 'decoder', 'source_target', 'none')

# Tokens, int32 BT, or vectors of a source, float BSF; or rows that may be packed.
Tokens = jax.Array | TokenBatch


class DecodeState(NamedTuple):
    """What a model carries from one decoding step to the next.

    Attributes:
      encoder_state: what it reads of the source, shared by a sentence's hypotheses.
      caches: one a layer.
    """

    encoder_state: Any
    caches: tuple[CacheState, ...]

    def allocate(self, hypotheses: int, tokens: int) -> 'DecodeState':
        """Makes room for so many tokens of each hypothesis of a sentence."""
        caches = tuple(cache.allocate(hypotheses, tokens) for cache in self.caches)
        return self._replace(caches=caches)


class Model(Checked, nn.Module):
    """Tokens to logits.

    A source may be vectors, such as frames of speech, in place of tokens: each weighs
    the rows of the source's embeddings, so that a vector with a single 1 is a token.
    Its features are then the source's vocabulary, and `source_vocab_size` their number.

    A variant overrides `decode_hidden`, `prefill` and `step_hidden`.

    Attributes:
      d_model: the width of target embeddings and of the residual stream under the
        logits.
      vocab_size: source and target have one vocabulary, or this is the target's.
      source_vocab_size: of a vocabulary of the source's own; `tie` then shares no
        matrix between source and target. None: there is none.
      tie: which embeddings share one matrix (paper §3.4): 'all' (source, target and
        pre-softmax), 'decoder' (target and pre-softmax), 'source_target' or 'none'.
      scale_embeddings: whether they are multiplied by the root of their width (§3.4).
      output_bias: whether the logits have a bias for each token.
      scale_logits: whether they are divided by √d_model, before the bias, as in T5.
      logit_cap: logits z become m tanh(z / m) (Gemma Team 2024); None leaves them.
      dense: the template of matrices. The residual stream and the logits are float32
        whatever its dtype.
      special_tokens: which token is padding, and what targets start and end with.
      unused_fields: fields of a `model` config that change nothing in this
        architecture.
      own_arguments: attributes that a spec may give, such as recurrent(cell='lstm').
      has_decoder_beside_encoder: whether it has two stacks, of which the decoder may
        have fields of its own.
    """

    unused_fields: ClassVar[tuple[str, ...]] = ()
    own_arguments: ClassVar[tuple[str, ...]] = ()
    has_decoder_beside_encoder: ClassVar[bool] = False
    d_model: Size
    vocab_size: Size
    tie: Annotated[str, Choices(*TIES)] = 'all'
    scale_embeddings: bool = True
    output_bias: bool = False
    scale_logits: bool = False
    logit_cap: Annotated[float | None, Range(above=0)] = None
    dense: Dense = Dense()
    special_tokens: SpecialTokens = DEFAULT_TOKENS
    source_vocab_size: Annotated[int | None, Range(at_least=1)] = None

    if TYPE_CHECKING:
        # Flax makes modules hashable, by their attributes; its types do not say so.
        def __hash__(self) -> int: ...

    @classmethod
    def from_parts(cls, parts: 'Parts', vocab_size: int, **arguments: Any) -> Self:
        """The model made of the parts that a config describes.

        Args:
          parts: makes stacks and other parts on demand.
          vocab_size: of source and target.
          arguments: the architecture's own, from its spec.
        """
        raise NotImplementedError

    def __post_init__(self):
        super().__post_init__()
        if self.source_vocab_size is not None and self.tie in ('all', 'source_target'):
            raise ValueError(
                f'model.tie={self.tie} shares embeddings of source and target, which '
                'have a vocabulary each: set model.tie to decoder or none'
            )

    def setup(self):
        self.target_VD = self._table('embedding')
        self.source_VD = self.target_VD
        self.output_VD = self.target_VD
        if self.tie in ('decoder', 'none'):
            size = self.source_vocab_size
            self.source_VD = self._table('source_embedding', self.source_d_model, size)
        if self.tie in ('source_target', 'none'):
            self.output_VD = self._table('output')
        self.bias_V = None
        if self.output_bias:
            zeros = nn.initializers.zeros
            self.bias_V = self.param('output_bias', zeros, (self.vocab_size,))

    def _table(self, name, d_model=None, size=None):
        init = self.dense.kernel_init.embedding
        shape = (size or self.vocab_size, d_model or self.d_model)
        return self.param(name, init, *shape)

    @property
    def source_d_model(self) -> int:
        """The width of source embeddings."""
        return self.d_model

    def lr_multiplier(self, path: tuple[str, ...]) -> float:
        """The factor of a parameter's learning rate, which its initialisation gives.

        Args:
          path: the parameter's, such as ('encoder', 'layer_0', 'feed_forward', 'up',
            …).
        """
        return self.dense.kernel_init.lr_multiplier(path)

    @nn.nowrap
    def stacks(self) -> dict[str, Stack]:
        """The stacks of blocks that it is made of, by name; recurrence has none."""
        parts = vars(self).items()
        return {name: part for name, part in parts if isinstance(part, Stack)}

    @nn.nowrap
    def with_remat(self, remat: Remat) -> Self:
        """The same model, whose backward pass keeps less and computes more again.

        Args:
          remat: as `Stack.remat`. Parameters and results are those without it.

        Raises:
          ValueError: there is no such choice, or the model has no blocks to compute
            again.
        """
        if not self.stacks():
            if remat == NONE:
                return self
            raise ValueError(
                f'remat={remat} computes the blocks of a stack again, and '
                f'{type(self).__name__} has none: leave it at none'
            )
        return self._with_stacks(lambda stack: stack.clone(remat=remat))

    @property
    def scans_layers(self) -> bool:
        """Whether its layers are one loop, and their parameters stacked."""
        return any(isinstance(x, ScannedStack) for x in self.stacks().values())

    @property
    def layer_periods(self) -> dict[str, int]:
        """How many layers the pattern of each stack has, before it repeats."""
        return {name: len(stack.blocks) for name, stack in self.stacks().items()}

    @nn.nowrap
    def with_separate_layers(self) -> Self:
        """The same model whose layers are run one by one.

        Its variables are `layers.scanned_stack.unstack_layers` of this one's.
        """
        if not self.scans_layers:
            return self
        return self._with_stacks(lambda stack: stack.separate())

    @nn.nowrap
    def unshared(self, variables: Any) -> tuple[Self, Any]:
        """The same model whose layers share nothing, and its variables, with copies.

        Args:
          variables: {'params': …} of this model, whose layers are separate.
        """
        stacks = {name: x for name, x in self.stacks().items() if x.shared}
        if not stacks:
            return self, variables
        params = dict(variables['params'])
        for name, stack in stacks.items():
            params[name] = stack.of_all_layers(params[name])
        model = self._with_stacks(lambda stack: stack.clone(shared=False))
        return model, {**variables, 'params': params}

    @nn.nowrap
    def _with_stacks(self, change: Callable[[Stack], Stack]) -> Self:
        changed: dict[str, Any] = {
            name: change(stack) for name, stack in self.stacks().items()
        }
        return self.clone(**changed)

    @property
    def max_length(self) -> int | None:
        """How many tokens a sentence may have; None for any number."""
        return None

    def embed(self, table_VD: jax.Array, tokens_BT: jax.Array) -> jax.Array:
        """Tokens to vectors, float32 BTD; also of vectors BTV, which weigh its rows.

        Raises:
          ValueError: the vectors have not as many features as the table has rows.
        """
        table_VD = gather(table_VD, ('embedding',))
        if tokens_BT.ndim == 3:
            x_BTD = place(self._weigh(table_VD, tokens_BT), 'BTD')
        else:
            # By device, or else XLA sends the gradients of all tokens, and not their
            # sum.
            rows_of = functools.partial(jnp.take, axis=0)
            x_BTD = place(map_rows(rows_of, (table_VD,), (tokens_BT,)), 'BTD')
        if self.scale_embeddings:
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
        """The hidden states of a whole target before the output matrix: float32 BTD."""
        raise NotImplementedError

    def prefill(self, source_BS: jax.Array) -> DecodeState:
        """Reads the source once; the caches have no room for generated tokens yet."""
        raise NotImplementedError

    def step_hidden(
        self, x_BND: jax.Array, state: DecodeState, beam: BeamState
    ) -> tuple[jax.Array, tuple[CacheState, ...]]:
        """The embedded next token of each hypothesis → hidden state, new caches.

        The hypotheses of a sentence are queries of one row: the source is held and read
        once for all of them.
        """
        raise NotImplementedError

    def logit_factors(
        self, source: Tokens, inputs: Tokens
    ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        """What logits are made of: hidden states (BTD), output matrix (VD), bias (V).

        All are float32; the bias is None where there is none. A loss that never holds
        all logits takes these, and `logit_cap`.
        """
        padding = self.special_tokens.padding
        source = TokenBatch.from_tokens(source, padding)
        inputs = TokenBatch.from_inputs(inputs, padding)
        hidden_BTD = self._scale_logits(self.decode_hidden(source, inputs))
        return hidden_BTD, self.output_VD, self.bias_V

    def __call__(self, source: Tokens, inputs: Tokens) -> jax.Array:
        """Teacher-forced logits, float32 BTV: row t predicts the token after input t.

        Args:
          source: the source's tokens, or its vectors.
          inputs: the target's, shifted right behind a start token. Of tokens alone, the
            first of each row is taken as the start token, even if it is padding.
        """
        hidden_BTD, _, _ = self.logit_factors(source, inputs)
        return self._logits(hidden_BTD)

    def decode_step(
        self, token_BN: jax.Array, state: DecodeState, beam: BeamState
    ) -> tuple[jax.Array, DecodeState]:
        """The next token of each hypothesis → logits of the one after, float32 BNV."""
        x_BND = self.embed(self.target_VD, token_BN)
        hidden_BND, caches = self.step_hidden(x_BND, state, beam)
        logits_BNV = self._logits(self._scale_logits(hidden_BND))
        return logits_BNV, state._replace(caches=caches)

    def _scale_logits(self, hidden_BTD):
        scale = self.dense.kernel_init.logit_scale
        if self.scale_logits:
            scale *= self.d_model**-0.5
        if scale == 1:
            return hidden_BTD
        return hidden_BTD * scale

    def _logits(self, hidden_BTD):
        dtype = self.dense.dtype
        hidden_ND = hidden_BTD.reshape(-1, self.d_model).astype(dtype)
        table_VD = self.output_VD.astype(dtype)
        table_VD = gather(table_VD, ('output',))
        logits_NV = matmul(hidden_ND, table_VD.T)
        logits_NV = finish_logits(logits_NV, self.bias_V, self.logit_cap)
        return logits_NV.reshape(*hidden_BTD.shape[:-1], self.vocab_size)
