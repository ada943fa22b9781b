"""A stack of blocks: the encoder, the decoder (§3.1), or a decoder alone."""

import functools
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.core import Tracer

from flaxformer_lite.interception import interceptors
from flaxformer_lite.kv_cache import BeamState, CacheState, KeyValues
from flaxformer_lite.layers.blocks.base import Block
from flaxformer_lite.layers.dropout import LayerDrop
from flaxformer_lite.masks import AttentionContext, padding_known
from flaxformer_lite.ranges import Checked
from flaxformer_lite.remat import BLOCKS, NONE, Remat
from flaxformer_lite.sharding import place

_Method = TypeVar('_Method', bound=Callable[..., Any])


def _of_depths(method: _Method) -> _Method:
    """Has a method of a stack find the parameters of every layer, also if shared."""

    def run(self, *arguments):
        if self.shared:
            run = self._with_parameters(method, self.of_all_layers, self._of_a_period)
            return run(self, *arguments)
        return method(self, *arguments)

    wrapped: Any = functools.wraps(method)(run)
    return wrapped


class Stack(Checked, nn.Module):
    """Blocks, each with weights of its own, or of the layer a period before it.

    Attributes:
      blocks: the templates of the layers of a period, which repeats over the depth:
        layer i is a copy of number i mod n. Most stacks have one.
      num_layers: how many.
      positions: a module of `positions/`; its `embed` and `bias` are used here.
      embedding_norm: of the sum of embeddings and positions; `norms/identity` for none.
      dropout: of that sum (§5.4).
      layer_drop_rate: how often a whole layer is skipped while training.
      remat: what of a layer the backward pass computes again: nothing of it ('none'),
        all but its inputs ('blocks'), or what a policy of `jax.checkpoint_policies`
        does not save. It changes no result.
      shared: whether the layers of one template are one layer, whose parameters are
        used again (Dehghani et al. 2019, "Universal Transformers"; Lan et al. 2020,
        "ALBERT"; Takase and Kiyono 2021, "cycle"). It has the parameters of the first
        period alone. All else is each layer's own, caches and running statistics too.

    Raises:
      ValueError: there is no such `remat`.
    """

    # In a loop no compiler can find what is computed again among what was computed.
    in_a_loop: ClassVar[bool] = False

    blocks: tuple[Block, ...]
    num_layers: int
    positions: nn.Module
    embedding_norm: nn.Module
    dropout: nn.Module
    layer_drop_rate: float = 0.0
    remat: Remat = NONE
    shared: bool = False

    def setup(self):
        # Copies, for one template that is called several times would share its weights.
        each = range(self.num_layers)
        self.layer = [self.template(i).copy(name=None) for i in each]
        self.layer_drop = [LayerDrop(self.layer_drop_rate) for _ in each]
        self.final = self._final()

    @property
    def block(self) -> Block:
        """The first layer's template, for what is the same in all of them."""
        return self.blocks[0]

    @property
    def d_model(self) -> int:
        """The width of the residual stream."""
        return self.block.self_attention.sizes.d_model

    @property
    def num_positions(self) -> int | None:
        """The least `num_positions` of its positions, those of its layers included."""
        positions = [self.positions]
        for block in self.blocks:
            attentions = block.self_attention, block.cross_attention
            positions += [x.positions for x in attentions if x is not None]
        limits = [x.num_positions for x in positions]
        return min((x for x in limits if x is not None), default=None)

    @nn.nowrap
    def template(self, layer: int) -> Block:
        """The template of a layer, by its number."""
        return self.blocks[layer % len(self.blocks)]

    @nn.nowrap
    def _final(self) -> nn.Module:
        """The residual connection whose `final_norm` follows: the last layer's kind."""
        return self.template(self.num_layers - 1).residual.copy(name=None)

    @nn.nowrap
    def _with_parameters(
        self, function: Callable, read: Callable, write: Callable
    ) -> Callable:
        """The function of a module that sees read(its parameters).

        Those that it makes itself, at first, are kept as write(parameters).
        """

        def each(change):
            return lambda found: {name: change(tree) for name, tree in found.items()}

        mutable = self.is_initializing()
        return nn.map_variables(
            function, 'params', each(read), each(write), mutable=mutable
        )

    @nn.nowrap
    def of_all_layers(self, params: dict[str, Any]) -> dict[str, Any]:
        """The stack's own, with those of layer i mod n as those of layer i."""
        layers = {
            f'layer_{i}': params.get(f'layer_{i % len(self.blocks)}', {})
            for i in range(self.num_layers)
        }
        return params | layers

    @nn.nowrap
    def _of_a_period(self, params: dict[str, Any]) -> dict[str, Any]:
        others = {f'layer_{i}' for i in range(len(self.blocks), self.num_layers)}
        return {name: tree for name, tree in params.items() if name not in others}

    @_of_depths
    def cross_kv(
        self, encoded_BSD: jax.Array, positions_BS: jax.Array
    ) -> tuple[KeyValues, ...]:
        """Each layer's keys and values of the source, projected once a sentence."""
        return tuple(
            layer.project_source(encoded_BSD, positions_BS) for layer in self.layer
        )

    @_of_depths
    def init_cache(
        self, prefix: tuple[KeyValues, ...], valid_BS: jax.Array
    ) -> tuple[CacheState, ...]:
        """A cache for each layer that begins with the keys and values of a prefix."""
        return tuple(
            layer.init_cache(kept, valid_BS)
            for layer, kept in zip(self.layer, prefix, strict=True)
        )

    def empty_cache(self, batch: int) -> tuple[CacheState, ...]:
        """A cache for each layer that begins with nothing."""
        x_B0D = jnp.zeros((batch, 0, self.d_model))
        positions_B0 = jnp.zeros((batch, 0), jnp.int32)
        nothing = self._kept(x_B0D, positions_B0)
        return self.init_cache(nothing, jnp.zeros((batch, 0), bool))

    @_of_depths
    def _kept(self, x_BTD, positions_BT):
        return tuple(layer.keep(x_BTD, positions_BT) for layer in self.layer)

    def __call__(
        self,
        x_BTD: jax.Array,
        context: AttentionContext,
        encoder_kv: tuple[KeyValues, ...] | None = None,
        caches: tuple[CacheState, ...] | None = None,
        beam: BeamState | None = None,
    ) -> tuple[jax.Array, tuple[CacheState, ...]]:
        """Runs all layers.

        Args:
          x_BTD: embedded tokens.
          context: their positions and masks; the positional bias is filled in here.
          encoder_kv: what `cross_kv` returned, in a decoder.
          caches: what `init_cache`, `empty_cache` or the call before returned. Without
            them the tokens attend to each other. With them T is the number of
            hypotheses and each token is the next of one of them.
          beam: the step and the visible slots; with `caches`.

        Returns:
          The output, float32 BTD, and each layer's cache; without caches, each layer's
          keys and values.
        """
        x_BTD = self.positions.embed(x_BTD, context.positions_BT)
        with padding_known(context.valid_BT):
            x_BTD = self.embedding_norm(x_BTD)
        x_BTD = self.dropout(x_BTD)
        context = self._with_bias(context)
        self._sow_stream(context, x_BTD)
        x_BTD, caches = self._run_layers(x_BTD, context, encoder_kv, caches, beam)
        with padding_known(context.valid_BT):
            x_BTD = self.final.final_norm(x_BTD)
        return x_BTD, caches

    @_of_depths
    def _run_layers(self, x_BTD, context, encoder_kv, caches, beam):
        trains = caches is None
        run_layer = self._run_layer(trains)
        is_plain = run_layer is _call and self._is_unobserved()
        if is_plain and isinstance(x_BTD, Tracer):
            run_layer = _traced_once()
        new_caches = []
        for i in range(self.num_layers):
            y_BTD, cache = run_layer(
                self.layer[i],
                x_BTD,
                context,
                None if encoder_kv is None else encoder_kv[i],
                None if caches is None else caches[i],
                beam,
            )
            x_BTD = place(self.layer_drop[i](x_BTD, y_BTD), 'BTD')
            self._sow_stream(context, x_BTD)
            new_caches.append(cache)
        return x_BTD, tuple(new_caches)

    @nn.nowrap
    def separate(self) -> 'Stack':
        """The stack of the same layers that are run one by one: itself."""
        return self

    @nn.nowrap
    def _run_layer(self, trains: bool) -> Callable:
        """A function (layer, arguments…) that calls a layer, as `remat` says.

        A layer with a cache, which has no backward pass, is only called.
        """
        if self.remat == NONE or not trains:
            return _call
        policy = None
        if self.remat != BLOCKS:
            policy = getattr(jax.checkpoint_policies, self.remat)
        return nn.remat(_call, policy=policy, prevent_cse=not self.in_a_loop)

    @nn.nowrap
    def _is_unobserved(self) -> bool:
        """Whether layers give nothing but their results, and no interceptor asks which
        of them is called: then they differ in their arrays alone.
        """
        scope = self.scope
        assert scope is not None
        gives_results_alone = not scope.mutable and not scope.rngs
        return gives_results_alone and not interceptors()

    def _with_bias(self, context: AttentionContext) -> AttentionContext:
        keys_BS = context.key_positions_BS
        if keys_BS is None:
            keys_BS = context.positions_BT
        bias_BHTS = self.positions.bias(context.positions_BT, keys_BS)
        return context._replace(bias_BHTS=bias_BHTS)

    def _sow_stream(self, context, x_BTD):
        """Gives `introspection` the tokens' positions and their vectors' lengths."""
        if self.is_mutable_collection('intermediates'):
            self.put_variable('intermediates', 'positions', context.positions_BT)
            self.put_variable('intermediates', 'valid', context.valid_BT)
            self.sow('intermediates', 'norms', jnp.linalg.norm(x_BTD, axis=-1))


def _call(layer, x_BTD, context, *arguments):
    # Here and not in a block: one that forgot it would count padding.
    with padding_known(context.valid_BT):
        return layer(x_BTD, context, *arguments)


def _traced_once() -> Callable:
    """As `_call`, for layers of like shapes, which are traced once for all of them.

    A search is traced for each size of its batch and of its cache, and so takes half as
    long; so does an evaluation's loss. The trace is for one call of one stack alone:
    what is around a call, such as `ops.choose.use_reference`, is part of it.
    """

    @functools.partial(jax.jit, static_argnums=0)
    def apply(layer, variables, x_BTD, context, *arguments):
        with padding_known(context.valid_BT):
            return layer.apply(variables, x_BTD, context, *arguments)

    def call(layer, *arguments):
        return apply(*layer.unbind(), *arguments)

    return call
