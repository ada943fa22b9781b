"""Stacks of blocks: encoder, decoder (§3.1), or decoder-only."""

import functools
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.core import Tracer

from flaxformer_lite.kv_cache import BeamState, CacheState, KeyValues
from flaxformer_lite.layer_scope import (
    LayerOutputs,
    LayerScope,
    running_layer,
)
from flaxformer_lite.layers.blocks.base import Block
from flaxformer_lite.layers.dropout import LayerDrop
from flaxformer_lite.masks import AttentionContext, TokenBatch, padding_known
from flaxformer_lite.remat import BLOCKS, NONE, Remat
from flaxformer_lite.sharding import place
from flaxformer_lite.taps import at_source, in_stack, tap, trace_keys
from flaxformer_lite.validation import Checked

_Method = TypeVar('_Method', bound=Callable[..., Any])


def _with_tied_params(method: _Method) -> _Method:
    """Makes a method of a stack see parameters for every layer, even if shared."""

    def run(self, *arguments):
        if self.shared:
            run = self._with_parameters(method, self.of_all_layers, self._period_params)
            return run(self, *arguments)
        return method(self, *arguments)

    wrapped: Any = functools.wraps(method)(run)
    return wrapped


class Stack(Checked, nn.Module):
    """Stack of blocks with separate or shared parameters.

    Attributes:
      blocks: Templates of the layers of one period. Layer i is a copy of template
        i mod n, where n is the number of templates.
      positions: A module of `positions/`.
      embedding_norm: Norm of the sum of embeddings and positions.
      dropout: Dropout after `embedding_norm` (§5.4).
      layer_drop_rate: Probability of skipping a layer in training.
      remat: Rematerialization: 'none', 'blocks' to save only the inputs of each layer,
        or a policy in `jax.checkpoint_policies`.
      shared: Whether layers with the same template share parameters (Dehghani et al.
        2019, "Universal Transformers"; Lan et al. 2020, "ALBERT"; Takase and Kiyono
        2021, "cycle"). Running statistics stay per layer.

    Raises:
      ValueError: `remat` is unknown.
    """

    # Inside `lax.scan`, XLA cannot undo rematerialization by common-subexpression
    # elimination.
    is_scanned: ClassVar[bool] = False

    blocks: tuple[Block, ...]
    num_layers: int
    positions: nn.Module
    embedding_norm: nn.Module
    dropout: nn.Module
    layer_drop_rate: float = 0.0
    remat: Remat = NONE
    shared: bool = False

    def setup(self):
        # Copies, because calling one template several times would share its weights.
        each = range(self.num_layers)
        self.layer = [self.template(i).copy(name=None) for i in each]
        self.layer_drop = [LayerDrop(self.layer_drop_rate) for _ in each]
        self.initial = self.block.residual.copy(name=None)
        self.final = self._final()

    @property
    def block(self) -> Block:
        """Template of the first layer, for attributes common to all layers."""
        return self.blocks[0]

    @property
    def d_model(self) -> int:
        return self.block.self_attention.sizes.d_model

    @property
    def num_positions(self) -> int | None:
        """Smallest `num_positions` among the positions of the stack and its layers."""
        positions = [self.positions]
        for block in self.blocks:
            attentions = block.self_attention, block.cross_attention
            positions += [x.positions for x in attentions if x is not None]
        limits = [x.num_positions for x in positions]
        return min((x for x in limits if x is not None), default=None)

    @nn.nowrap
    def template(self, layer: int) -> Block:
        return self.blocks[layer % len(self.blocks)]

    @nn.nowrap
    def _final(self) -> nn.Module:
        return self.template(self.num_layers - 1).residual.copy(name=None)

    @nn.nowrap
    def _with_parameters(
        self, function: Callable, read: Callable, write: Callable
    ) -> Callable:
        """Wraps a module's function so that it sees `read(parameters)`.

        Parameters created during initialization are stored as `write(parameters)`.
        """

        def each(change):
            return lambda found: {name: change(tree) for name, tree in found.items()}

        mutable = self.is_initializing()
        return nn.map_variables(
            function, 'params', each(read), each(write), mutable=mutable
        )

    @nn.nowrap
    def of_all_layers(self, params: dict[str, Any]) -> dict[str, Any]:
        """Returns parameters in which layer i uses those of layer i mod n."""
        layers = {
            f'layer_{i}': params.get(f'layer_{i % len(self.blocks)}', {})
            for i in range(self.num_layers)
        }
        return params | layers

    @nn.nowrap
    def _period_params(self, params: dict[str, Any]) -> dict[str, Any]:
        others = {f'layer_{i}' for i in range(len(self.blocks), self.num_layers)}
        return {name: tree for name, tree in params.items() if name not in others}

    @_with_tied_params
    def cross_kv(
        self,
        encoded_BSD: jax.Array | tuple[jax.Array, ...],
        source: TokenBatch,
    ) -> tuple[KeyValues, ...]:
        """Projects the source's keys and values for each layer, once per sentence.

        Args:
          encoded_BSD: The encoder's output, or one array for each layer of this stack.
        """
        if not isinstance(encoded_BSD, tuple):
            encoded_BSD = (encoded_BSD,) * self.num_layers
        with at_source(source):
            return tuple(
                layer.project_source(x_BSD, source.positions_BT)
                for layer, x_BSD in zip(self.layer, encoded_BSD, strict=True)
            )

    @_with_tied_params
    def init_cache(
        self, prefix: tuple[KeyValues, ...], valid_BS: jax.Array
    ) -> tuple[CacheState, ...]:
        return tuple(
            layer.init_cache(kept, valid_BS)
            for layer, kept in zip(self.layer, prefix, strict=True)
        )

    def empty_cache(self, batch: int) -> tuple[CacheState, ...]:
        x_B0D = jnp.zeros((batch, 0, self.d_model))
        positions_B0 = jnp.zeros((batch, 0), jnp.int32)
        prefix = self._keep_layers(x_B0D, positions_B0)
        return self.init_cache(prefix, jnp.zeros((batch, 0), bool))

    @_with_tied_params
    def _keep_layers(self, x_BTD, positions_BT):
        return tuple(layer.keep(x_BTD, positions_BT) for layer in self.layer)

    def __call__(
        self,
        x_BTD: jax.Array,
        context: AttentionContext,
        encoder_kv: tuple[KeyValues, ...] | None = None,
        caches: tuple[CacheState, ...] | None = None,
        beam: BeamState | None = None,
        outputs: LayerOutputs | None = None,
    ) -> tuple[jax.Array, tuple[CacheState, ...]]:
        """Runs all layers.

        Args:
          context: Positions and masks. The stack adds the positional bias.
          encoder_kv: Result of `cross_kv`, in a decoder.
          caches: Result of `init_cache` or the previous call.
          beam: Step and visible slots; required with `caches`.
          outputs: Receives the outputs of the layers.

        Returns:
          The output, float32 BTD, and each layer's cache, or its keys and values
          without caches.
        """
        is_encoder = self.block.self_attention.sizes.role.startswith('encoder')
        with in_stack(is_encoder, context, beam):
            x_BTD = tap(self, 'embed', x_BTD)
            x_BTD = self.positions.embed(x_BTD, context.positions_BT)
            with padding_known(context.valid_BT):
                x_BTD = self.dropout(self.embedding_norm(x_BTD))
                x_BTD = self.initial.initial_stream(x_BTD)
            context = self._with_bias(context)
            arguments = context, encoder_kv, caches, beam, outputs
            x_BTD, caches = self._run_layers(x_BTD, *arguments)
            return tap(self, 'ln_final', self.normalize(x_BTD, context)), caches

    def normalize(self, x_BTD: jax.Array, context: AttentionContext) -> jax.Array:
        """Returns the output of the stack for a residual stream of any layer."""
        with padding_known(context.valid_BT):
            return self.final.final_norm(x_BTD)

    def end_with(
        self,
        layer: Block,
        outputs: LayerOutputs,
        context: AttentionContext,
        encoder_kv: KeyValues | None,
    ) -> jax.Array:
        """Returns the output of the stack if another layer replaced the last.

        Args:
          layer: A module of the caller.
          outputs: Those of a call of the stack.
        """
        scope = LayerScope(self.num_layers - 1, outputs.published)
        run_layer = self._run_layer(trains=True)
        context = self._with_bias(context)
        arguments = outputs.streams[-2], context, encoder_kv, None, None
        y_BTD, _, _ = run_layer(layer, scope, *arguments)
        return self.normalize(y_BTD, context)

    @_with_tied_params
    def _run_layers(self, x_BTD, context, encoder_kv, caches, beam, outputs):
        trains = caches is None
        run_layer = self._run_layer(trains)
        can_share_trace = run_layer is _call and self._is_unobserved()
        if can_share_trace and isinstance(x_BTD, Tracer):
            run_layer = _cache_traces()
        new_caches = []
        published = earlier = {}
        streams = [x_BTD]
        for i in range(self.num_layers):
            earlier = published
            y_BTD, cache, published = run_layer(
                self.layer[i],
                LayerScope(i, earlier),
                x_BTD,
                context,
                None if encoder_kv is None else encoder_kv[i],
                None if caches is None else caches[i],
                beam,
            )
            x_BTD = place(self.layer_drop[i](x_BTD, y_BTD), 'BTD')
            streams.append(x_BTD)
            new_caches.append(cache)
        if outputs is not None:
            outputs.streams += streams
            outputs.published |= earlier
        return x_BTD, tuple(new_caches)

    @nn.nowrap
    def separate(self) -> 'Stack':
        """Returns the equivalent stack that runs its layers one by one."""
        return self

    @nn.nowrap
    def _run_layer(self, trains: bool) -> Callable:
        """Returns a function that calls a layer, with `remat` applied.

        Layers with a cache have no backward pass, so `remat` does not apply to them.
        """
        if self.remat == NONE or not trains:
            return _call
        policy = None
        if self.remat != BLOCKS:
            policy = getattr(jax.checkpoint_policies, self.remat)
        return nn.remat(_call, policy=policy, prevent_cse=not self.is_scanned)

    @nn.nowrap
    def _is_unobserved(self) -> bool:
        """Returns True if layers can share a trace: no state, RNG or observer."""
        scope = self.scope
        assert scope is not None
        is_pure = not scope.mutable and not scope.rngs
        return is_pure and not trace_keys()

    def _with_bias(self, context: AttentionContext) -> AttentionContext:
        keys_BS = context.key_positions_BS
        if keys_BS is None:
            keys_BS = context.positions_BT
        bias_BHTS = self.positions.bias(context.positions_BT, keys_BS)
        return context._replace(bias_BHTS=bias_BHTS)


def _call(layer, scope, x_BTD, context, *arguments):
    """Returns the layer's output, its cache, and what it and earlier layers publish."""
    # The stack, not its blocks, masks padding, because a user's block might forget it.
    with padding_known(context.valid_BT), running_layer(scope) as published:
        x_BTD = tap(layer, 'resid_pre', x_BTD)
        y_BTD, cache = layer(x_BTD, context, *arguments)
        return tap(layer, 'resid_post', y_BTD), cache, published


def _cache_traces() -> Callable:
    """Returns a `_call` that traces layers with equal shapes only once.

    A trace serves one call of one stack, because it captures context such as
    `ops.choose.use_reference`.
    """

    @functools.partial(jax.jit, static_argnums=0)
    def apply(layer, variables, scope, x_BTD, context, *arguments):
        return _call(layer.bind(variables), scope, x_BTD, context, *arguments)

    def call(layer, *arguments):
        return apply(*layer.unbind(), *arguments)

    return call
