"""The hooks that call a function for each named activation of a model."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.interventions.names import Where
from flaxformer_lite.interventions.places import Places
from flaxformer_lite.layers.blocks.base import Block
from flaxformer_lite.layers.multi_head_attention import MultiHeadAttention
from flaxformer_lite.layers.scanned_stack import ScannedStack, unstack_layers
from flaxformer_lite.layers.stack import Stack
from flaxformer_lite.masks import TokenBatch
from flaxformer_lite.models.base import Model
from flaxformer_lite.training.batch import check_variables

# Sublayers of a layer, with the names of their outputs.
_OUTPUTS = {
    'self_attention': 'attn_out',
    'cross_attention': 'cross_attn_out',
    'feed_forward': 'mlp_out',
}


class Hooks:
    """Calls `take(value, where)` for each activation that `wants` names.

    Args:
      wants: name → whether to take this activation.
      take: Returns the value to use instead.
      keep: Called with the value that the model uses.
    """

    def __init__(
        self,
        wants: Callable[[str], bool],
        take: Callable[[jax.Array, Where], jax.Array],
        places: Places | None = None,
        keep: Callable[[jax.Array, Where], None] = lambda value, where: None,
    ):
        self._wants = wants
        self._take_value = take
        self._keep_value = keep
        self._places = places or Places()
        self._running: set[tuple[int, str]] = set()
        self._in_layer = False

    def intercept(self, of, args, kwargs, context) -> Any:
        """The interceptor for `nn.intercept_methods`."""
        module, method = context.module, context.method_name
        hook = self._hook(module, method)
        call = id(module), method
        # A method that calls that of its base class is intercepted twice.
        if hook is None or call in self._running:
            return of(*args, **kwargs)
        self._running.add(call)
        try:
            return hook(module, of, args, kwargs)
        finally:
            self._running.discard(call)

    def _hook(self, module: nn.Module, method: str) -> Callable | None:
        if isinstance(module, Model):
            return {
                'decode_hidden': self._decode_hidden,
                'decode_step': self._decode_step,
                '__call__': self._model,
            }.get(method)
        if isinstance(module, Stack):
            return self._stack if method == '__call__' else None
        if isinstance(module, Block):
            return self._block if method == '__call__' else None
        return self._hook_in_layer(module.path, method)

    def _hook_in_layer(self, path: tuple[str, ...], method: str) -> Callable | None:
        if len(path) == 3:
            if path[2].startswith('residual_') and method == 'after':
                return self._residual
            if path[2] == 'feed_forward' and method == 'activation':
                return self._activation
            if path[2] in _OUTPUTS and method == '__call__':
                return self._sublayer
            return {
                'project_kv': self._keys_and_values,
                'attend_by_head': self._heads,
            }.get(method)
        if len(path) == 4:
            return {
                ('core_attention', 'weights'): self._weights,
                ('out_proj', '__call__'): self._out_proj,
                ('down', '__call__'): self._down,
            }.get((path[3], method))
        return None

    def _take(self, name, value, axes='BTD', where=None, mask=None):
        if not self._wants(name):
            return value
        where = where or self._places.current or self._places.of_rows(value)
        where = where._replace(name=name, axes=axes)
        new = self._take_value(value, where)
        if mask is not None and new is not value:
            new = jnp.where(mask, new, 0)
        self._keep_value(new, where)
        return new

    def _decode_hidden(self, module, of, args, kwargs):
        with self._places.in_target(args[1]):
            return of(*args, **kwargs)

    def _model(self, module, of, args, kwargs):
        inputs = kwargs['inputs'] if 'inputs' in kwargs else args[1]
        inputs = TokenBatch.from_inputs(inputs, module.special_tokens.padding)
        logits_BTV = of(*args, **kwargs)
        where = self._places.of_inputs(logits_BTV, inputs)
        return self._take('logits', logits_BTV, 'BTV', where=where)

    def _decode_step(self, module, of, args, kwargs):
        _, _, beam = args
        logits_BNV, state = of(*args, **kwargs)
        where = self._places.of_step(logits_BNV, beam)
        return self._take('logits', logits_BNV, 'BTV', where=where), state

    def _stack(self, module, of, args, kwargs):
        if isinstance(module, ScannedStack):
            raise ValueError(
                'interventions: the model scans its layers. Use '
                'model.with_separate_layers() and its variables.'
            )
        x_BTD, context, *others = args
        beam = others[2] if len(others) > 2 else kwargs.get('beam')
        name = '/'.join(module.path)
        with self._places.in_stack(name, x_BTD, context, beam):
            x_BTD = self._take(f'{name}/embed', x_BTD)
            y_BTD, caches = of(x_BTD, context, *others, **kwargs)
            return self._take(f'{name}/ln_final', y_BTD), caches

    def _block(self, module, of, args, kwargs):
        name = '/'.join(module.path)
        x_BTD, *others = args
        x_BTD = self._take(f'{name}/resid_pre', x_BTD)
        self._in_layer = True
        try:
            x_BTD, cache = of(x_BTD, *others, **kwargs)
        finally:
            self._in_layer = False
        return self._take(f'{name}/resid_post', x_BTD), cache

    def _residual(self, module, of, args, kwargs):
        *layer, name = module.path
        x_BTD = of(*args, **kwargs)
        streams = module.parent.streams_between()
        number = int(name.removeprefix('residual_')) - 1
        if number < len(streams):
            x_BTD = self._take('/'.join((*layer, streams[number])), x_BTD)
        return x_BTD

    def _sublayer(self, module, of, args, kwargs):
        *layer, name = module.path
        return self._take('/'.join((*layer, _OUTPUTS[name])), of(*args, **kwargs))

    def _activation(self, module, of, args, kwargs):
        *layer, _ = module.path
        return of(self._take('/'.join((*layer, 'mlp_pre')), args[0], 'BTF'))

    def _down(self, module, of, args, kwargs):
        *layer, feed_forward, _ = module.path
        if feed_forward != 'feed_forward':
            return of(*args, **kwargs)
        return of(self._take('/'.join((*layer, 'mlp_post')), args[0], 'BTF'))

    def _keys_and_values(self, module, of, args, kwargs):
        kv = of(*args, **kwargs)
        x_BSD, positions_BS = args
        if x_BSD.shape[1] == 0:  # of a cache's shape
            return kv
        name = '/'.join(module.path)
        where = None if self._in_layer else self._places.of_source(x_BSD, positions_BS)
        if positions_BS is None:  # the source in merged attention
            name = name.replace('self_attention', 'cross_attention')
        key_BSGK = jnp.moveaxis(kv.key_BGKS, -1, 1)
        value_BSGU = jnp.moveaxis(kv.value_BGUS, -1, 1)
        key_BSGK = self._take(f'{name}/k', key_BSGK, 'BTHK', where=where)
        value_BSGU = self._take(f'{name}/v', value_BSGU, 'BTHU', where=where)
        return kv.replace(
            key_BGKS=jnp.moveaxis(key_BSGK, 1, -1),
            value_BGUS=jnp.moveaxis(value_BSGU, 1, -1),
        )

    def _heads(self, module, of, args, kwargs):
        name = '/'.join(module.path)
        q_BTHK, *others = args
        q_BTHK = self._take(f'{name}/q', q_BTHK, 'BTHK')
        return self._take(f'{name}/z', of(q_BTHK, *others, **kwargs), 'BTHU')

    def _weights(self, module, of, args, kwargs):
        name = '/'.join(module.path[:-1])
        scores_BGTS, mask_BGTS = args
        parent = module.parent
        group_size = 1
        if isinstance(parent, MultiHeadAttention):
            group_size = parent.sizes.num_heads // scores_BGTS.shape[1]

        def take(of_scores, x_BGTS, mask_BHTS=None):
            name_of_scores = f'{name}/{of_scores}'
            x_BHTS = _unfold(x_BGTS, group_size)
            x_BHTS = self._take(name_of_scores, x_BHTS, 'BHTS', mask=mask_BHTS)
            return _fold(x_BHTS, group_size)

        weights_BGTS = of(take('scores', scores_BGTS), mask_BGTS)
        # A changed pattern must not read padding, later tokens or other hypotheses.
        mask_BGTS = jnp.broadcast_to(mask_BGTS, weights_BGTS.shape)
        return take('pattern', weights_BGTS, _unfold(mask_BGTS, group_size))

    def _out_proj(self, module, of, args, kwargs):
        name = '/'.join(module.path[:-1]) + '/result'
        (z_BTHU,) = args
        y_BTD = of(z_BTHU)
        if not self._wants(name):
            return y_BTD
        # An adapter's matrices add to the kernel.
        kernel_HUD = module.merge(module.variables['params'])['kernel']
        result_BTHD = jnp.einsum(
            'bthu,hud->bthd',
            z_BTHU.astype(module.dtype),
            kernel_HUD.astype(module.dtype),
            preferred_element_type=jnp.float32,
        )
        # Adding only the change keeps the output's bits if the result is unchanged.
        change_BTHD = self._take(name, result_BTHD, 'BTHD') - result_BTHD
        return y_BTD + change_BTHD.sum(2)


def _unfold(x_BGTS, group_size):
    """Reshapes (B, H / r, T · r, S) to (B, H, T, S)."""
    if group_size == 1:
        return x_BGTS
    b, g, folded, s = x_BGTS.shape
    x_BGTRS = x_BGTS.reshape(b, g, folded // group_size, group_size, s)
    return jnp.swapaxes(x_BGTRS, 2, 3).reshape(b, g * group_size, -1, s)


def _fold(x_BHTS, group_size):
    if group_size == 1:
        return x_BHTS
    b, h, t, s = x_BHTS.shape
    x_BGRTS = x_BHTS.reshape(b, h // group_size, group_size, t, s)
    return jnp.swapaxes(x_BGRTS, 2, 3).reshape(b, h // group_size, -1, s)


def with_separate_layers(model: Model, variables: Any) -> tuple[Model, Any]:
    """Unrolls scanned layers and copies shared ones, so each layer has its own path."""
    check_variables(variables)
    if model.scans_layers:
        variables = unstack_layers(variables)
        model = model.with_separate_layers()
    return model.unshared(variables)
