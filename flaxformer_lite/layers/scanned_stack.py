"""A stack whose layers are one loop, so that its program does not grow with its depth.

Where layers differ by a pattern, a turn of the loop runs a period of them.

Its parameters are those of `Stack` with the layers in an axis of their own, as
`stack_layers` has them.
"""

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.kv_cache import LayersCache
from flaxformer_lite.layers.blocks.base import Block
from flaxformer_lite.layers.dropout import LayerDrop
from flaxformer_lite.layers.stack import Stack
from flaxformer_lite.sharding import place

# What each layer has of its own; in the arrays of all layers the first axis is theirs.
_OF_A_LAYER: dict[Any, Any] = {
    'params': 0,
    'batch_stats': 0,
    'losses': 0,
    'metrics': 0,
    'ablation_masks': 0,
}
# What the layers of a `Stack` are called, without their numbers, and what all of them
# are here.
_STACKED = {'layer': 'layers', 'layer_drop': 'layer_drop'}


class _Turn(nn.Module):
    """Layers that differ, of which a turn of the loop runs one after the other."""

    blocks: tuple[Block, ...]

    def setup(self):
        self.layer = [block.copy(name=None) for block in self.blocks]


def _layers(turn: nn.Module) -> list[Any]:
    """The layers of a turn, which are one or the list of a `_Turn`."""
    if isinstance(turn, _Turn):
        return turn.layer
    return [turn]


class ScannedStack(Stack):
    """The same blocks as in a `Stack`, run by `nn.scan`.

    Where `Stack` has a tuple with keys and values or a cache of each layer, this has a
    tuple with those of each layer of a period, for all turns of the loop: arrays with
    the turns in the axis behind that of the sentences. Most stacks have a period of
    one, and each layer is a turn; layers that are shared are read in every turn.
    Dropout draws other numbers than in a `Stack`, and as independent ones.
    """

    in_a_loop: ClassVar[bool] = True

    def setup(self):
        self.layers = self._turn()
        self.layer_drop = LayerDrop(self.layer_drop_rate)
        self.final = self._final()

    @nn.nowrap
    def _turn(self) -> nn.Module:
        if len(self.blocks) == 1:
            return self.block.copy(name=None)
        return _Turn(tuple(block.copy(parent=None) for block in self.blocks))

    @property
    def num_turns(self) -> int:
        """The turns of the loop."""
        return self.num_layers // len(self.blocks)

    def cross_kv(self, encoded_BSD, positions_BS):
        def project(turn, encoded_BSD, positions_BS):
            return tuple(
                layer.project_source(encoded_BSD, positions_BS)
                for layer in _layers(turn)
            )

        return self._of_each(project, None)(self.layers, encoded_BSD, positions_BS)

    def init_cache(self, prefix, valid_BS):
        def init_cache(turn, prefix, valid_BS):
            return tuple(
                layer.init_cache(kept, valid_BS)
                for layer, kept in zip(_layers(turn), prefix, strict=True)
            )

        caches = self._of_each(init_cache, 1)(self.layers, prefix, valid_BS)
        return tuple(map(LayersCache, caches))

    def _kept(self, x_BTD, positions_BT):
        def project(turn, x_BTD, positions_BT):
            return tuple(layer.keep(x_BTD, positions_BT) for layer in _layers(turn))

        return self._of_each(project, None)(self.layers, x_BTD, positions_BT)

    @nn.nowrap
    def _of_each(self, function: Callable, axis: int | None) -> Callable:
        """A function (turn, x, y) for all turns: results have them in their axis 1.

        Args:
          function: of one turn.
          axis: that of the turns in x; None where it is the same for all. y is.
        """
        in_axes: Any = (axis, None)
        variable_axes = dict(_OF_A_LAYER)
        if self.shared:
            function = self._of_one_turn(function)
            variable_axes['params'] = None
        return nn.vmap(
            function,
            variable_axes=variable_axes,
            # Flax counts the keys of a layer by what it was first called with.
            split_rngs={'params': not self.shared, 'dropout': True},
            in_axes=in_axes,
            out_axes=1,
            axis_size=self.num_turns,
        )

    @nn.nowrap
    def _of_one_turn(self, function: Callable) -> Callable:
        """Has a function of a turn read parameters that are all turns'.

        They have an axis of turns, as those of other stacks, of length 1.
        """

        def alone(params):
            return jax.tree.map(lambda x: x[0], params)

        def stacked(params):
            return jax.tree.map(lambda x: x[None], params)

        return self._with_parameters(function, alone, stacked)

    def _run_layers(self, x_BTD, context, encoder_kv, caches, beam):
        run_layer = self._run_layer(trains=caches is None)

        def step(turn, x_BTD, encoder_kv, caches, keep, context, beam):
            new_caches = []
            for i, layer in enumerate(_layers(turn)):
                y_BTD, cache = run_layer(
                    layer,
                    x_BTD,
                    context,
                    None if encoder_kv is None else encoder_kv[i],
                    None if caches is None else caches[i],
                    beam,
                )
                if keep is not None:
                    y_BTD = jnp.where(keep[i], y_BTD, x_BTD)
                x_BTD = place(y_BTD, 'BTD')
                new_caches.append(cache)
            return x_BTD, tuple(new_caches)

        in_axes: Any = (1, 1, 0, nn.broadcast, nn.broadcast)
        variable_axes = dict(_OF_A_LAYER)
        if self.shared:
            step = self._of_one_turn(step)
            del variable_axes['params']
        scan = nn.scan(
            step,
            variable_axes=variable_axes,
            variable_broadcast='params' if self.shared else False,
            split_rngs={'params': not self.shared, 'dropout': True},
            in_axes=in_axes,
            out_axes=1,
            length=self.num_turns,
        )
        old = None if caches is None else tuple(cache.caches for cache in caches)
        keep = self.layer_drop.keep(self.num_layers)
        if keep is not None:
            keep = keep.reshape(self.num_turns, -1, *keep.shape[1:])
        x_BTD, new = scan(self.layers, x_BTD, encoder_kv, old, keep, context, beam)
        return x_BTD, new if caches is None else tuple(map(LayersCache, new))

    @nn.nowrap
    def separate(self) -> Stack:
        """The stack of the same layers that are run one by one."""
        attributes = ('blocks', 'num_layers', 'positions', 'embedding_norm', 'dropout')
        attributes += ('layer_drop_rate', 'remat', 'shared')
        return Stack(**{name: getattr(self, name) for name in attributes})


def stack_layers(variables: Any, periods: Mapping[str, int] | None = None) -> Any:
    """Variables of a model with layers one by one → of the same one that scans them.

    `encoder/layer_0/…`, `encoder/layer_1/…`, … become `encoder/layers/…`, with the
    layers in the first axis. With a period of 2, layers 0, 2, … become
    `encoder/layers/layer_0/…` and layers 1, 3, … become `encoder/layers/layer_1/…`.

    Args:
      variables: a tree of dictionaries.
      periods: the layers of a turn by stack, as `Model.layer_periods` has them; 1 where
        none is given.
    """
    return _stack(variables, '', periods or {})


def _stack(tree: Any, name: str, periods: Mapping[str, int]) -> Any:
    if not isinstance(tree, Mapping):
        return tree
    stacked = {}
    layers: dict[str, dict[int, Any]] = {}
    for key, value in tree.items():
        kind, _, number = key.rpartition('_')
        if kind in _STACKED and number.isdigit():
            layers.setdefault(kind, {})[int(number)] = value
        else:
            stacked[key] = _stack(value, key, periods)
    for kind, trees in layers.items():
        period = periods.get(name, 1) if kind == 'layer' else 1
        stacked[_STACKED[kind]] = _stack_turns(trees, period)
    return stacked


def _stack_turns(trees: Mapping[int, Any], period: int) -> Any:
    """The layers of a stack by number, with the turns of the loop in the first axis."""
    turns = {}
    for i in range(period):
        # In some collections only some layers of a turn have variables.
        same = [trees[layer] for layer in sorted(trees) if layer % period == i]
        if same:
            turns[f'layer_{i}'] = jax.tree.map(lambda *x: jnp.stack(x), *same)
    if period == 1:
        return turns['layer_0']
    return turns


def unstack_layers(variables: Any, periods: Mapping[str, int] | None = None) -> Any:
    """The inverse of `stack_layers`; variables without such layers stay as they are.

    Args:
      variables: a tree of dictionaries.
      periods: as `stack_layers` takes them. Where none are given they are read off the
        variables, among which has to be something of every layer of a turn.
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
            for i, same in _by_place_in_turn(value).items():
                separate |= _unstack_axis('layer', same, i, periods[name])
        elif key == 'layer_drop':
            separate |= _unstack_axis('layer_drop', value, 0, 1)
        else:
            separate[key] = _unstack(value, key, periods)
    return separate


def _unstack_axis(kind: str, tree: Any, first: int, period: int) -> dict[str, Any]:
    separate = {}
    for turn in range(len(jax.tree.leaves(tree)[0])):
        name = f'{kind}_{first + turn * period}'
        separate[name] = jax.tree.map(operator.itemgetter(turn), tree)
    return separate


def _by_place_in_turn(layers: Mapping[str, Any]) -> dict[int, Any]:
    """Which layer of a turn → its variables, of a tree `layers`."""
    kinds = {key: key.rpartition('_') for key in layers}
    if all(kind == 'layer' and n.isdigit() for kind, _, n in kinds.values()):
        return {int(kinds[key][2]): tree for key, tree in layers.items()}
    return {0: layers}


def periods_of(variables: Any) -> dict[str, int]:
    """The layers of a turn by stack, of stacked variables: see `stack_layers`."""
    periods: dict[str, int] = {}
    for stack, layers in _stacked_in(variables, ''):
        period = 1 + max(_by_place_in_turn(layers))
        periods[stack] = max(periods.get(stack, 1), period)
    return periods


def _stacked_in(tree: Any, name: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if not isinstance(tree, Mapping):
        return
    for key, value in tree.items():
        if key == 'layers':
            yield name, value
        else:
            yield from _stacked_in(value, key)
