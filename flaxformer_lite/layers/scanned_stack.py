"""A stack whose layers are one loop, so that its program does not grow with its depth.

Its parameters are those of `Stack` with the layers in an axis of their own, as
`stack_layers` has them.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.kv_cache import LayersCache
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


class ScannedStack(Stack):
    """The same blocks as in a `Stack`, run by `nn.scan`.

    Where `Stack` has a tuple with keys and values or a cache of each layer, this has a
    tuple of one, for all of them: arrays with the layers in the axis behind that of the
    sentences. Dropout draws other numbers than in a `Stack`, and as independent ones.
    """

    in_a_loop: ClassVar[bool] = True

    def setup(self):
        self.layers = self.block.copy(name=None)
        self.layer_drop = LayerDrop(self.layer_drop_rate)
        self.final = self.block.residual.copy(name=None)

    def cross_kv(self, encoded_BSD, positions_BS):
        def project(layer, encoded_BSD, positions_BS):
            return layer.cross_attention.project_kv(encoded_BSD, positions_BS)

        return (self._of_each(project, None)(self.layers, encoded_BSD, positions_BS),)

    def init_cache(self, prefix, valid_BS):
        def init_cache(layer, kv, valid_BS):
            return layer.self_attention.core_attention.init_cache(kv, valid_BS)

        caches = self._of_each(init_cache, 1)(self.layers, *prefix, valid_BS)
        return (LayersCache(caches),)

    def _self_kv(self, x_BTD, positions_BT):
        def project(layer, x_BTD, positions_BT):
            return layer.self_attention.project_kv(x_BTD, positions_BT)

        return (self._of_each(project, None)(self.layers, x_BTD, positions_BT),)

    @nn.nowrap
    def _of_each(self, function: Callable, axis: int | None) -> Callable:
        """A function (layer, x, y) for all layers: results have them in their axis 1.

        Args:
          function: of one layer.
          axis: that of the layers in x; None where it is the same for all. y is.
        """
        in_axes: Any = (axis, None)
        return nn.vmap(
            function,
            variable_axes=_OF_A_LAYER,
            split_rngs={'params': True},
            in_axes=in_axes,
            out_axes=1,
            axis_size=self.num_layers,
        )

    def _run_layers(self, x_BTD, context, encoder_kv, caches, beam):
        run_layer = self._run_layer(trains=caches is None)

        def step(layer, x_BTD, encoder_kv, cache, keep, context, beam):
            y_BTD, cache = run_layer(layer, x_BTD, context, encoder_kv, cache, beam)
            if keep is not None:
                y_BTD = jnp.where(keep, y_BTD, x_BTD)
            return place(y_BTD, 'BTD'), cache

        in_axes: Any = (1, 1, 0, nn.broadcast, nn.broadcast)
        scan = nn.scan(
            step,
            variable_axes=_OF_A_LAYER,
            split_rngs={'params': True, 'dropout': True},
            in_axes=in_axes,
            out_axes=1,
            length=self.num_layers,
        )
        kv = None if encoder_kv is None else encoder_kv[0]
        cache = None if caches is None else caches[0].caches
        keep = self.layer_drop.keep(self.num_layers)
        x_BTD, new = scan(self.layers, x_BTD, kv, cache, keep, context, beam)
        return x_BTD, (new if caches is None else LayersCache(new),)

    @nn.nowrap
    def separate(self) -> Stack:
        """The stack of the same layers that are run one by one."""
        attributes = ('block', 'num_layers', 'positions', 'embedding_norm', 'dropout')
        attributes += ('layer_drop_rate', 'remat')
        return Stack(**{name: getattr(self, name) for name in attributes})


def stack_layers(variables: Any) -> Any:
    """Variables of a model with layers one by one → of the same one that scans them.

    `encoder/layer_0/…`, `encoder/layer_1/…`, … become `encoder/layers/…`, with the
    layers in the first axis.
    """
    if not isinstance(variables, Mapping):
        return variables
    stacked = {}
    layers: dict[str, dict[int, Any]] = {}
    for name, tree in variables.items():
        kind, _, number = name.rpartition('_')
        if kind in _STACKED and number.isdigit():
            layers.setdefault(_STACKED[kind], {})[int(number)] = tree
        else:
            stacked[name] = stack_layers(tree)
    for name, trees in layers.items():
        in_order = [trees[i] for i in sorted(trees)]
        stacked[name] = jax.tree.map(lambda *leaves: jnp.stack(leaves), *in_order)
    return stacked


def unstack_layers(variables: Any) -> Any:
    """The inverse of `stack_layers`; variables without such layers stay as they are."""
    if not isinstance(variables, Mapping):
        return variables
    separate = {}
    for name, tree in variables.items():
        kinds = [kind for kind, all_of_them in _STACKED.items() if all_of_them == name]
        if not kinds:
            separate[name] = unstack_layers(tree)
            continue
        for i in range(len(jax.tree.leaves(tree)[0])):
            separate[f'{kinds[0]}_{i}'] = jax.tree.map(lambda x, i=i: x[i], tree)
    return separate
