"""Stack that scans over its layers, so that program size does not grow with depth."""

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.kv_cache import LayersCache
from flaxformer_lite.layer_scope import LayerScope, Published
from flaxformer_lite.layers.blocks.base import Block
from flaxformer_lite.layers.dropout import LayerDrop
from flaxformer_lite.layers.stack import Stack
from flaxformer_lite.sharding import place
from flaxformer_lite.taps import is_observed

# Per-layer collections and their layer axis.
_VARIABLE_AXES: dict[Any, Any] = {
    'params': 0,
    'batch_stats': 0,
    'losses': 0,
    'metrics': 0,
}


class _Period(nn.Module):
    blocks: tuple[Block, ...]

    def setup(self):
        self.layer = [block.copy(name=None) for block in self.blocks]


def _layers(period: nn.Module) -> list[Any]:
    if isinstance(period, _Period):
        return period.layer
    return [period]


class ScannedStack(Stack):
    """A `Stack` that runs its blocks with `nn.scan`, one period of them per iteration.

    Parameters have a leading layer axis (see `stack_layers`). Tuples of caches, or of
    keys and values, have one entry per layer of a period, with the iterations in axis
    1, after the batch.
    """

    is_scanned: ClassVar[bool] = True

    def setup(self):
        self.layers = self._make_period()
        self.layer_drop = LayerDrop(self.layer_drop_rate)
        self.initial = self.block.residual.copy(name=None)
        self.final = self._final()

    @nn.nowrap
    def _make_period(self) -> nn.Module:
        if len(self.blocks) == 1:
            return self.block.copy(name=None)
        return _Period(tuple(block.copy(parent=None) for block in self.blocks))

    @property
    def num_periods(self) -> int:
        return self.num_layers // len(self.blocks)

    def cross_kv(self, encoded_BSD, source):
        period = len(self.blocks)
        each, axis = (encoded_BSD,) * period, None
        if isinstance(encoded_BSD, tuple):
            each = tuple(jnp.stack(encoded_BSD[i::period]) for i in range(period))
            axis = 0

        def project(period, each, positions_BS):
            return tuple(
                layer.project_source(x_BSD, positions_BS)
                for layer, x_BSD in zip(_layers(period), each, strict=True)
            )

        return self._map_periods(project, axis)(self.layers, each, source.positions_BT)

    def init_cache(self, prefix, valid_BS):
        def init_cache(period, prefix, valid_BS):
            return tuple(
                layer.init_cache(kept, valid_BS)
                for layer, kept in zip(_layers(period), prefix, strict=True)
            )

        caches = self._map_periods(init_cache, 1)(self.layers, prefix, valid_BS)
        return tuple(map(LayersCache, caches))

    def _keep_layers(self, x_BTD, positions_BT):
        def project(period, x_BTD, positions_BT):
            return tuple(layer.keep(x_BTD, positions_BT) for layer in _layers(period))

        return self._map_periods(project, None)(self.layers, x_BTD, positions_BT)

    @nn.nowrap
    def _map_periods(self, function: Callable, axis: int | None) -> Callable:
        """Maps `function(turn, x, y)` over all iterations; results have them in axis 1.

        `axis` is that of the iterations in x, or None to pass the same x.
        """
        in_axes: Any = (axis, None)
        variable_axes = dict(_VARIABLE_AXES)
        if self.shared:
            function = self._read_shared_period(function)
            variable_axes['params'] = None
        return nn.vmap(
            function,
            variable_axes=variable_axes,
            # Includes dropout, because Flax counts a layer's RNG keys by the call that
            # created it.
            split_rngs={'params': not self.shared, 'dropout': True},
            in_axes=in_axes,
            out_axes=1,
            axis_size=self.num_periods,
        )

    @nn.nowrap
    def _read_shared_period(self, function: Callable) -> Callable:
        """Makes a function of one iteration read the parameters shared by all.

        They are stored with an iteration axis of length 1, as in other stacks.
        """

        def unstacked(params):
            return jax.tree.map(lambda x: x[0], params)

        def stacked(params):
            return jax.tree.map(lambda x: x[None], params)

        return self._with_parameters(function, unstacked, stacked)

    def _run_layers(self, x_BTD, context, encoder_kv, caches, beam, outputs):
        if is_observed():
            raise ValueError(
                'interventions: the model scans its layers. Use model, variables = '
                'interventions.with_separate_layers(model, variables).'
            )
        run_layer = self._run_layer(trains=caches is None)

        def step(period, carry, first, encoder_kv, caches, keep, context, beam):
            x_BTD, published, earlier = carry
            new_caches = []
            streams = []
            for i, layer in enumerate(_layers(period)):
                earlier = published
                y_BTD, cache, published = run_layer(
                    layer,
                    LayerScope(first + i, earlier),
                    x_BTD,
                    context,
                    None if encoder_kv is None else encoder_kv[i],
                    None if caches is None else caches[i],
                    beam,
                )
                if keep is not None:
                    y_BTD = jnp.where(keep[i], y_BTD, x_BTD)
                x_BTD = place(y_BTD, 'BTD')
                streams.append(x_BTD)
                new_caches.append(cache)
            _check_declared(published, carry[1])
            kept = None if outputs is None else tuple(streams)
            return (x_BTD, published, earlier), (tuple(new_caches), kept)

        in_axes: Any = (0, 1, 1, 0, nn.broadcast, nn.broadcast)
        variable_axes = dict(_VARIABLE_AXES)
        if self.shared:
            step = self._read_shared_period(step)
            del variable_axes['params']
        scan = nn.scan(
            step,
            variable_axes=variable_axes,
            variable_broadcast='params' if self.shared else False,
            split_rngs={'params': not self.shared, 'dropout': True},
            in_axes=in_axes,
            out_axes=1,
            length=self.num_periods,
        )
        old = None if caches is None else tuple(cache.caches for cache in caches)
        keep = self.layer_drop.mask(self.num_layers)
        if keep is not None:
            keep = keep.reshape(self.num_periods, -1, *keep.shape[1:])
        # The index of the first layer of each period.
        first = jnp.arange(0, self.num_layers, len(self.blocks))
        others = encoder_kv, old, keep, context, beam
        published = self._initial_published(*x_BTD.shape[:2])
        # The last entry holds values published before the last layer.
        carry = x_BTD, published, published
        (y_BTD, _, earlier), (new, streams) = scan(self.layers, carry, first, *others)
        if outputs is not None:
            assert streams is not None
            iterations = range(self.num_periods)
            each = (y[:, i] for i in iterations for y in streams)
            outputs.streams += [x_BTD, *each]
            outputs.published |= earlier
        return y_BTD, new if caches is None else tuple(map(LayersCache, new))

    @nn.nowrap
    def _initial_published(self, batch: int, length: int) -> dict[str, Published]:
        shapes = {}
        for block in self.blocks:
            shapes |= block.publishes(batch, length)
        no = jnp.zeros((), bool)
        return {
            name: Published(jnp.zeros(x.shape, x.dtype), no)
            for name, x in shapes.items()
        }

    @nn.nowrap
    def separate(self) -> Stack:
        attributes = ('blocks', 'num_layers', 'positions', 'embedding_norm', 'dropout')
        attributes += ('layer_drop_rate', 'remat', 'shared')
        return Stack(**{name: getattr(self, name) for name in attributes})


def _check_declared(published: dict[str, Any], declared: dict[str, Any]) -> None:
    for name in published:
        if name not in declared:
            raise ValueError(
                f'{name!r} is published by a layer of a scan, but not declared. Return '
                'its shape from Block.publishes, or set scan_layers=False.'
            )


def stack_layers(variables: Any, periods: Mapping[str, int] | None = None) -> Any:
    """Converts variables of separate layers to those of a model that scans them.

    `encoder/layer_0/…`, `encoder/layer_1/…`, … become `encoder/layers/…`, with the
    layers in the first axis. With a period of 2, even layers become
    `encoder/layers/layer_0/…` and odd ones `encoder/layers/layer_1/…`.

    Args:
      periods: Layers per iteration of each stack, as in `Model.layer_periods`. Defaults
        to 1.

    Examples:
      >>> layers = {f'layer_{i}': {'bias': jnp.full(3, i)} for i in range(2)}
      >>> stacked = stack_layers({'params': {'encoder': layers}})
      >>> stacked['params']['encoder']['layers']['bias'].tolist()
      [[0, 0, 0], [1, 1, 1]]
    """
    return _stack(variables, '', periods or {})


def _stack(tree: Any, name: str, periods: Mapping[str, int]) -> Any:
    if not isinstance(tree, Mapping):
        return tree
    stacked = {}
    layers: dict[int, Any] = {}
    for key, value in tree.items():
        kind, _, number = key.rpartition('_')
        if kind == 'layer' and number.isdigit():
            layers[int(number)] = value
        else:
            stacked[key] = _stack(value, key, periods)
    if layers:
        stacked['layers'] = _stack_periods(layers, periods.get(name, 1))
    return stacked


def _stack_periods(trees: Mapping[int, Any], period: int) -> Any:
    iterations = {}
    for i in range(period):
        # In some collections, only some layers of a period have variables.
        same = [trees[layer] for layer in sorted(trees) if layer % period == i]
        if same:
            iterations[f'layer_{i}'] = jax.tree.map(lambda *x: jnp.stack(x), *same)
    if period == 1:
        return iterations['layer_0']
    return iterations


def unstack_layers(variables: Any, periods: Mapping[str, int] | None = None) -> Any:
    """Inverts `stack_layers`; returns variables without stacked layers unchanged.

    Args:
      periods: As in `stack_layers`. The default infers them, which requires variables
        of every layer of a period.
    """
    if periods is None:
        periods = periods_of(variables)
    return _unstack(variables, '', periods)


def _unstack(tree: Any, name: str, periods: Mapping[str, int]) -> Any:
    if not isinstance(tree, Mapping):
        return tree
    separate = {}
    for key, value in tree.items():
        if key == 'layers':
            for i, same in _by_period_position(value).items():
                separate |= _unstack_axis(same, i, periods[name])
        else:
            separate[key] = _unstack(value, key, periods)
    return separate


def _unstack_axis(tree: Any, first: int, period: int) -> dict[str, Any]:
    separate = {}
    for iteration in range(len(jax.tree.leaves(tree)[0])):
        name = f'layer_{first + iteration * period}'
        separate[name] = jax.tree.map(operator.itemgetter(iteration), tree)
    return separate


def _by_period_position(layers: Mapping[str, Any]) -> dict[int, Any]:
    kinds = {key: key.rpartition('_') for key in layers}
    if all(kind == 'layer' and n.isdigit() for kind, _, n in kinds.values()):
        return {int(kinds[key][2]): tree for key, tree in layers.items()}
    return {0: layers}


def periods_of(variables: Any) -> dict[str, int]:
    periods: dict[str, int] = {}
    for stack, layers in _find_stacked(variables, ''):
        period = 1 + max(_by_period_position(layers))
        periods[stack] = max(periods.get(stack, 1), period)
    return periods


def _find_stacked(tree: Any, name: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if not isinstance(tree, Mapping):
        return
    for key, value in tree.items():
        if key == 'layers':
            yield name, value
        else:
            yield from _find_stacked(value, key)
