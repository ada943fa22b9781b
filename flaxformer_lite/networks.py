"""Base classes of models and encoders: the fields that describe their layers."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike

from flaxformer_lite import validation
from flaxformer_lite.assembly import (
    Layers,
    check_sizes,
    complete_patterns,
    copy,
    set_field,
)
from flaxformer_lite.attention.base import Attention
from flaxformer_lite.attention.softmax import Softmax
from flaxformer_lite.feed_forward.base import FeedForward
from flaxformer_lite.feed_forward.relu import ReLU
from flaxformer_lite.init.base import Init
from flaxformer_lite.layers.blocks.base import Block
from flaxformer_lite.layers.blocks.sequential import Sequential
from flaxformer_lite.layers.dense.base import Dense
from flaxformer_lite.layers.dropout import Dropout
from flaxformer_lite.layers.stack import Stack
from flaxformer_lite.masks import AttentionContext
from flaxformer_lite.norms.base import Norm
from flaxformer_lite.norms.layer import LayerNorm
from flaxformer_lite.positions.base import Positions
from flaxformer_lite.positions.none import NoPositions
from flaxformer_lite.positions.sinusoidal import Sinusoidal
from flaxformer_lite.remat import NONE, Remat
from flaxformer_lite.residual.base import Residual
from flaxformer_lite.residual.post_norm import PostNorm
from flaxformer_lite.sizes import DEPTH, HEADS, WIDTH, Role, Sizes
from flaxformer_lite.validation import Checked, FrozenDataclass, Rate, check, naming


class DropoutRates(FrozenDataclass):
    """Dropout of all parts of a model (§5.4).

    Attributes:
      sublayers: Rate of the outputs of sublayers, and of embeddings.
      heads: Rate of whole attention heads.
      layers: Rate of whole layers (Fan et al. 2020, "LayerDrop").
      whole_tokens: Whether `sublayers` drops whole vectors instead of elements.

    Examples:
      >>> DropoutRates(0.1, layers=0.2).layers
      0.2
    """

    sublayers: Rate = 0.1
    heads: Rate = 0.0
    layers: Rate = 0.0
    whole_tokens: bool = False

    def of_sublayers(self, **settings: Any) -> Dropout:
        """Returns the dropout of sublayers as a module."""
        shared_axes = (-1,) if self.whole_tokens else ()
        return Dropout(self.sublayers, shared_axes, **settings)

    def of_heads(self) -> Dropout:
        """Returns the dropout of heads y_BTHU as a module."""
        return Dropout(self.heads, shared_axes=(1, 3), parent=None)


class Projections(FrozenDataclass):
    """Projections of queries, keys, values and the output of attention (§3.2.2).

    Attributes:
      bias: Whether they have biases. The paper's have none.
      self_attention: False leaves out those of self-attention, whose heads then are
        slices of `d_model`.
    """

    bias: bool = False
    self_attention: bool = True


class DecoderOverrides(FrozenDataclass):
    """Fields of an encoder-decoder that differ in the decoder.

    A field that is None has the model's value.

    Attributes:
      continuous_positions: Whether target positions continue those of the source (Zhang
        et al. 2025, "RedLLM").
      merged_attention: Whether self-attention also covers the source and replaces
        cross-attention (Zhang et al. 2025, "T5Gemma 2").

    Examples:
      >>> DecoderOverrides(num_layers=2, positions=NoPositions()).num_layers
      2
    """

    num_layers: Annotated[int | None, DEPTH] = None
    d_model: Annotated[int | None, WIDTH] = None
    num_heads: Annotated[int | None, HEADS] = None
    num_kv_heads: Annotated[int | None, HEADS] = None
    d_k: Annotated[int | None, WIDTH] = None
    d_v: Annotated[int | None, WIDTH] = None
    d_ff: Annotated[int | None, WIDTH] = None
    attention: Attention | Sequence[Attention] | None = None
    positions: Positions | Sequence[Positions] | None = None
    norm: Norm | Sequence[Norm] | None = None
    residual: Residual | Sequence[Residual] | None = None
    feed_forward: FeedForward | Sequence[FeedForward] | None = None
    block: Block | Sequence[Block] | None = None
    share_layers: Annotated[int | None, DEPTH] = None
    continuous_positions: bool = False
    merged_attention: bool = False

    def __post_init__(self):
        complete_patterns(self)
        super().__post_init__()


class CrossOverrides(FrozenDataclass):
    """Fields of an encoder-decoder that differ in cross-attention.

    Attributes:
      num_heads, num_kv_heads, d_k, d_v: None inherits the decoder's value.
      attention: None inherits the encoder's attention, or softmax if that is local.
      positions: Positions that act on queries and keys.
    """

    num_heads: Annotated[int | None, HEADS] = None
    num_kv_heads: Annotated[int | None, HEADS] = None
    d_k: Annotated[int | None, WIDTH] = None
    d_v: Annotated[int | None, WIDTH] = None
    attention: Attention | Sequence[Attention] | None = None
    positions: Positions | Sequence[Positions] = NoPositions()

    def __post_init__(self):
        complete_patterns(self)
        super().__post_init__()


class Network(Checked, nn.Module, kw_only=True):
    """Base class of models and encoders.

    Attributes:
      d_model: Width of embeddings and of the residual stream.
      num_layers: Number of layers of each stack.
      dropout: Dropout rate of sublayers and embeddings (§5.4), or `DropoutRates`.
      initializer: Initializer of matrices and embeddings. Defaults to that of the
        residual connection, mostly Xavier.
      dense: Template of all matrices, such as `LoRA()`. The network sets its dtype
        and initializer.
      dtype: Dtype of the operands of matrix products. Sums are float32.
    """

    d_model: Annotated[int, WIDTH] = 512
    num_layers: Annotated[int, DEPTH] = 6
    dropout: Rate | DropoutRates = 0.1
    initializer: Init | None = None
    dense: Dense = Dense()
    dtype: DTypeLike = jnp.float32

    def __post_init__(self):
        self._complete()
        super().__post_init__()

    @nn.nowrap
    def _complete(self) -> None:
        """Checks the fields, and completes those that depend on others."""
        if not isinstance(self.dropout, DropoutRates):
            check('dropout', Rate, self.dropout)
            set_field(self, 'dropout', DropoutRates(self.dropout))
        check('dense', Dense, self.dense)
        check('initializer', Init | None, self.initializer)
        set_field(self, 'dense', self._template())

    @property
    def dropout_rates(self) -> DropoutRates:
        """The rates of `dropout`, which may be given as one number."""
        assert isinstance(self.dropout, DropoutRates)  # completed from a rate
        return self.dropout

    @nn.nowrap
    def _template(self) -> Dense:
        """Returns the template of matrices outside of stacks."""
        return self.dense_of(Sizes(d_model=self.d_model), Residual.default_init)

    @nn.nowrap
    def dense_of(self, sizes: Sizes, default: type[Init]) -> Dense:
        """Returns the template of the matrices of a stack, given its sizes."""
        with naming('initializer'):
            init = dataclasses.replace(self.initializer or default(), sizes=sizes)
        return copy(self.dense, dtype=self.dtype, kernel_init=init)


class LayeredNetwork(Network, kw_only=True):
    """Network with stacks of Transformer layers.

    A field of a component also takes a list of n components, a pattern over layers:
    layer i uses entry i mod n. The network sets the sizes and matrices of components,
    and norm and dropout of residual connections that have none of their own.

    Attributes:
      num_heads: Number of query heads, h.
      num_kv_heads: Number of key and value heads. Defaults to `num_heads`. Fewer give
        grouped-query attention (Ainslie et al. 2023).
      d_k, d_v: Width of a query and key, and of a value. Default to `d_model //
        num_heads`.
      d_ff: Inner width of the feed-forward network.
      attention: Attention (§3.2.1).
      positions: Positions (§3.5).
      norm: Normalization (§3.1).
      residual: Residual connection (§3.1).
      feed_forward: Feed-forward network (§3.3).
      block: The order of a layer's sublayers.
      projections: Which projections attention has (§3.2.2).
      norm_embeddings: Whether to normalize embeddings after adding positions.
      share_layers: Number of layers with parameters of their own, which later layers
        reuse in turn. Defaults to all.
      scan_layers: Whether layers run in a loop, so that compile time doesn't grow with
        depth. Their parameters then have a leading layer axis.
      remat: Rematerialization policy of `Stack.remat`.
      roles: Role of each stack.
    """

    roles: ClassVar[dict[str, Role]] = {}

    num_heads: Annotated[int, HEADS] = 8
    num_kv_heads: Annotated[int | None, HEADS] = None
    d_k: Annotated[int | None, WIDTH] = None
    d_v: Annotated[int | None, WIDTH] = None
    d_ff: Annotated[int, WIDTH] = 2048
    attention: Attention | Sequence[Attention] = Softmax()
    positions: Positions | Sequence[Positions] = Sinusoidal()
    norm: Norm | Sequence[Norm] = LayerNorm()
    residual: Residual | Sequence[Residual] = PostNorm()
    feed_forward: FeedForward | Sequence[FeedForward] = ReLU()
    block: Block | Sequence[Block] = Sequential()
    projections: Projections = Projections()
    norm_embeddings: bool = False
    share_layers: Annotated[int | None, DEPTH] = None
    scan_layers: bool = False
    remat: Remat = NONE

    @nn.nowrap
    def _complete(self):
        complete_patterns(self)
        validation.check_attributes(self)
        check_sizes(self)
        super()._complete()
        stacks = {name: Layers(self, role).stack() for name, role in self.roles.items()}
        set_field(self, '_stacks', stacks)

    @nn.nowrap
    def _template(self):
        *_, role = self.roles.values()
        return Layers(self, role).dense()

    @nn.nowrap
    def stacks(self) -> dict[str, Stack]:
        """Returns the templates of the stacks by name, which don't need variables."""
        stacks: dict[str, Stack] = vars(self)['_stacks']
        return dict(stacks)

    @nn.nowrap
    def bound_stack(self, name: str) -> Stack:
        """Returns a stack as a module of this network, for `setup`."""
        return self.stacks()[name].copy(name=name)


class EntityEncoder(LayeredNetwork, kw_only=True):
    """Permutation-equivariant encoder of entities that attend to each other.

    Source: Zambaldi et al. 2019. Use it for sets, such as the objects that an agent
    sees.

    Examples:
      >>> import flaxformer_lite as fl
      >>> encoder = fl.EntityEncoder(d_model=8, num_layers=1, num_heads=2)
      >>> features_BTF, present_BT = jnp.ones((1, 3, 5)), jnp.ones((1, 3), bool)
      >>> variables = encoder.init(jax.random.key(0), features_BTF, present_BT)
      >>> encoder.apply(variables, features_BTF, present_BT).shape
      (1, 3, 8)
    """

    roles = {'encoder': 'encoder_only'}
    positions: Positions | Sequence[Positions] = NoPositions()

    def setup(self):
        self.embedding = self.dense.copy(features=(self.d_model,), name=None)
        self.encoder_stack = self.bound_stack('encoder')

    def __call__(self, features_BTF: jax.Array, present_BT: jax.Array) -> jax.Array:
        """Encodes sets of up to T entities.

        Args:
          present_BT: bool, False for absent entities.

        Returns:
          float32 BTD, with zeros for absent entities.
        """
        context = AttentionContext(
            positions_BT=jnp.zeros(present_BT.shape, jnp.int32),
            mask_BHTS=present_BT[:, None, None],
            valid_BT=present_BT,
        )
        y_BTD, _ = self.encoder_stack(self.embedding(features_BTF), context)
        return jnp.where(present_BT[..., None], y_BTD, 0.0)
