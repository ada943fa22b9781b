"""Named activations, and functions that change them while a model runs.

Names are paths such as 'decoder/layer_1/self_attention/z'. A layer of a stack has:

| name | axes | TransformerLens |
|---|---|---|
| resid_pre | BTD | hook_resid_pre |
| resid_mid | BTD | hook_resid_mid: after self-attention |
| resid_mid_cross | BTD | hook_resid_mid_cross: after cross-attention |
| resid_post | BTD | hook_resid_post |
| attn_out, cross_attn_out, mlp_out | BTD | hook_attn_out, hook_mlp_out |
| self_attention/q, k, v | BTHK | attn.hook_q, hook_k, hook_v |
| self_attention/scores | BHTS | attn.hook_attn_scores, before the mask |
| self_attention/pattern | BHTS | attn.hook_pattern: the weights |
| self_attention/z | BTHU | attn.hook_z: each head before the output projection |
| self_attention/result | BTHD | attn.hook_result: each head's term of the output |
| cross_attention/… | | the same, for cross-attention |
| mlp_pre, mlp_post | BTF | mlp.hook_pre, mlp.hook_post: around the activation |

A stack has `decoder/embed` and `decoder/ln_final`, its input and output (BTD), and the
model has `logits` (BTV). A component has the names that it computes: `blockwise` and
`flash` have no scores and no pattern, and the parallel block has no stream between its
sublayers. A recurrent model has only `logits`.
"""

import contextlib
import fnmatch
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

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


class Where(NamedTuple):
    """The place of an activation.

    While decoding, the axis T holds the N hypotheses of a sentence instead of tokens.

    Attributes:
      name: the activation's name.
      axes: a letter per axis: B rows, T tokens, H heads, S keys, and others.
      step_BT: int32, the decoding step that reads the token, with or without a cache;
        -1 for source tokens. None in an encoder.
      positions_BT: int32, position of each token. None if unknown.
      mask_BT: bool, False for padding. None if unknown, as while decoding.
      index_BT: int32, index of the token in its row with teacher forcing.
      row_B: int32, index of each row in the batch.
    """

    name: str
    axes: str
    step_BT: jax.Array | None
    positions_BT: jax.Array | None
    mask_BT: jax.Array | None
    index_BT: jax.Array
    row_B: jax.Array

    @property
    def layer(self) -> int | None:
        """Number of the layer; None outside of layers."""
        parts = self.name.split('/')
        if len(parts) > 1 and parts[1].startswith('layer_'):
            return int(parts[1].removeprefix('layer_'))
        return None


# (value, where) → a value of the same shape.
Intervention = Callable[[jax.Array, Where], jax.Array]
Interventions = Mapping[str, Intervention]


class _Chosen(NamedTuple):
    """The heads, tokens and steps to change, int32 vectors; None for all."""

    heads: jax.Array | None
    tokens: jax.Array | None
    steps: jax.Array | None

    @classmethod
    def of(cls, heads, tokens, steps) -> '_Chosen':
        def vector(numbers):
            if numbers is None:
                return None
            return jnp.atleast_1d(jnp.asarray(numbers, jnp.int32))

        return cls(vector(heads), vector(tokens), vector(steps))

    def put(self, new: jax.Array, value: jax.Array, where: Where) -> jax.Array:
        """Returns `value`, replaced by `new` where it is chosen."""
        axes = where.axes
        chosen = jnp.ones((1,) * len(axes), bool)
        if self.heads is not None:
            if 'H' not in axes:
                raise ValueError(f'heads: {where.name} has none. Leave heads out.')
            number_H = jnp.arange(value.shape[axes.index('H')])
            chosen &= _along(jnp.isin(number_H, self.heads), 'H', axes)
        if self.tokens is not None:
            if where.positions_BT is None:
                raise ValueError(
                    f'tokens: {where.name} has no positions. Leave it out.'
                )
            chosen &= _along(jnp.isin(where.positions_BT, self.tokens), 'BT', axes)
        if self.steps is not None:
            if where.step_BT is None:
                raise ValueError(f'steps: {where.name} is of the source. Leave it out.')
            chosen &= _along(jnp.isin(where.step_BT, self.steps), 'BT', axes)
        return jnp.where(chosen, new.astype(value.dtype), value)


def _along(x: jax.Array, own: str, axes: str) -> jax.Array:
    """Inserts axes of size 1, so that x with the axes `own` broadcasts to `axes`."""
    missing = [i for i, axis in enumerate(axes) if axis not in own]
    return jnp.expand_dims(x, missing)


def set_to(x: Any, heads: Any = None, tokens: Any = None, steps: Any = None) -> Any:
    """Returns an intervention that replaces an activation by `x`.

        intervene({'decoder/layer_*/self_attention/z': set_to(0.0, heads=[3])})

    Args:
      x: a number, an array of the trailing axes, or one of all axes, as recorded with
        teacher forcing. While decoding, a whole array gives each step its token.
      heads: numbers of the heads to change. Defaults to all.
      tokens: positions of the tokens to change. Defaults to all.
      steps: decoding steps to change. Defaults to all.
    """
    return jax.tree_util.Partial(
        _set_to, jnp.asarray(x), _Chosen.of(heads, tokens, steps)
    )


def add(x: Any, heads: Any = None, tokens: Any = None, steps: Any = None) -> Any:
    """Returns an intervention that adds `x`, such as a steering vector.

    Args: as `set_to`.
    """
    return jax.tree_util.Partial(_add, jnp.asarray(x), _Chosen.of(heads, tokens, steps))


def scale(x: Any, heads: Any = None, tokens: Any = None, steps: Any = None) -> Any:
    """Returns an intervention that multiplies by `x`.

    Args: as `set_to`.
    """
    return jax.tree_util.Partial(
        _scale, jnp.asarray(x), _Chosen.of(heads, tokens, steps)
    )


def mean_ablate(
    value: jax.Array,
    valid_BT: jax.Array | None = None,
    heads: Any = None,
    tokens: Any = None,
    steps: Any = None,
) -> Any:
    """Returns an intervention that replaces an activation by its mean over tokens.

    Args:
      value: a recorded activation whose first axes are rows and tokens.
      valid_BT: bool, False for padding, as in `Record.valid`. Defaults to all True.
      heads, tokens, steps: as `set_to`.
    """
    if valid_BT is None:
        valid_BT = jnp.ones(value.shape[:2], bool)
    valid = valid_BT.reshape(*valid_BT.shape, *(1,) * (value.ndim - 2))
    mean = jnp.where(valid, value, 0).sum((0, 1)) / valid_BT.sum()
    return set_to(mean, heads, tokens, steps)


def from_record(
    other: Any, heads: Any = None, tokens: Any = None, steps: Any = None
) -> Any:
    """Returns an intervention that takes the values of another run: patching.

    Args:
      other: a `Record` of the same number of rows, or of one row.
      heads, tokens, steps: as `set_to`.
    """
    chosen = _Chosen.of(heads, tokens, steps)
    return jax.tree_util.Partial(_from_record, dict(other.values), chosen)


def _set_to(x, chosen, value, where):
    new, exists = _like(x, value, where)
    return jnp.where(exists, chosen.put(new, value, where), value)


def _add(x, chosen, value, where):
    new, exists = _like(x, value, where)
    return jnp.where(exists, chosen.put(value + new, value, where), value)


def _scale(x, chosen, value, where):
    new, exists = _like(x, value, where)
    return jnp.where(exists, chosen.put(value * new, value, where), value)


def _from_record(values, chosen, value, where):
    if where.name not in values:
        raise ValueError(f'from_record: {where.name} was not recorded. Record it.')
    return _set_to(values[where.name], chosen, value, where)


def _like(x, value, where):
    """Returns x in the shape of `value`, and where it exists, broadcastable."""
    if x.ndim < value.ndim:
        if x.shape != value.shape[value.ndim - x.ndim :]:
            x = _broadcast(x, value, where)
        return jnp.broadcast_to(x, value.shape), True
    axis = where.axes.index('T')
    if len(x) > 1:
        x = x[where.row_B]
    tokens = x.shape[axis]
    if tokens != value.shape[axis] or _is_step(where):
        x = jnp.broadcast_to(x, (len(value), *x.shape[1:]))
        index = _along(jnp.minimum(where.index_BT, tokens - 1), 'BT', where.axes)
        x = jnp.take_along_axis(x, index, axis)
    exists = _along(where.index_BT < tokens, 'BT', where.axes)
    return _broadcast(x, value, where), exists


def _is_step(where):
    """Returns whether the axis T holds hypotheses."""
    return where.mask_BT is None and where.step_BT is not None


def _broadcast(x, value, where):
    try:
        return jnp.broadcast_to(x, value.shape)
    except ValueError:
        raise ValueError(
            f'{where.name}: the intervention has the shape {x.shape}, not '
            f'{value.shape}. While decoding, a key is a slot of the cache.'
        ) from None


def intervene(
    interventions: Interventions, row_B: jax.Array | None = None
) -> contextlib.AbstractContextManager[None]:
    """Context in which models apply functions to their activations.

        with intervene({'decoder/layer_1/mlp_out': add(0.1 * direction_D)}):
            logits = model.apply(variables, source, inputs)

    `record`, `patch`, `log_probs` and `loss_sums` also work in it. `generate` takes
    `interventions` as an argument. Inside a function that you compile with `jax.jit`,
    open the context in the function and pass the interventions as an argument. Other
    values then reuse the program. A function of your own has its arrays as arguments if
    it is `jax.tree_util.Partial(function, *arrays)`.

    Args:
      interventions: functions (value, where) → value, by name. '*' matches any part
        of a name between slashes, as in 'decoder/layer_*/self_attention/z'. If several
        names match, their functions apply in alphabetical order of the names.
      row_B: index of each row in the batch, if a call has only some of the rows.

    Raises:
      ValueError: a model was called in the context, and a name matched no activation.
    """
    return _Intervened(interventions, row_B).open()


class _Intervened:
    """Applies interventions and checks that each name matched an activation."""

    def __init__(self, interventions: Interventions, row_B=None, source_length=0):
        self._interventions = interventions
        self._hooks = Hooks(self._wants, self._take, row_B, source_length)
        self._seen: dict[str, None] = {}
        self._used: set[str] = set()

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        with nn.intercept_methods(self._hooks.intercept):
            yield
        self.check()

    def check(self) -> None:
        for name in self._interventions:
            if self._seen and name not in self._used:
                known = ', '.join(self._seen)
                raise ValueError(
                    f'interventions: {name!r} is no activation here. Choose from '
                    f'{known}.'
                )

    def _wants(self, name: str, is_alias: bool) -> bool:
        if not is_alias:
            self._seen[name] = None
        return any(matches(key, name, is_alias) for key in self._interventions)

    def _take(self, value: jax.Array, where: Where) -> jax.Array:
        is_alias = where.name not in self._seen
        for key in sorted(self._interventions):
            if not matches(key, where.name, is_alias):
                continue
            self._used.add(key)
            new = self._interventions[key](value, where)
            if new.shape != value.shape:
                raise ValueError(
                    f'{where.name}: the intervention must return the shape '
                    f'{value.shape}, not {new.shape}.'
                )
            value = new.astype(value.dtype)
        return value


def matches(key: str, name: str, is_alias: bool = False) -> bool:
    """Returns whether an activation has the name `key`, in which '*' is any part.

    Aliases, the names of earlier versions, match only themselves.
    """
    if is_alias:
        return key == name
    keys, parts = key.split('/'), name.split('/')
    pairs = zip(keys, parts, strict=False)
    return len(keys) == len(parts) and all(fnmatch.fnmatchcase(b, a) for a, b in pairs)


def as_pytree(interventions: Interventions) -> dict[str, Any]:
    """Returns interventions that `jax.jit` accepts as an argument."""

    def wrap(function: Any) -> Any:
        if jax.tree_util.all_leaves([function]):
            return jax.tree_util.Partial(function)
        return function

    return {name: wrap(function) for name, function in interventions.items()}


def with_separate_layers(model: Model, variables: Any) -> tuple[Model, Any]:
    """Unrolls scanned layers and copies shared ones, so each layer has its own path."""
    check_variables(variables)
    if model.scans_layers:
        variables = unstack_layers(variables)
        model = model.with_separate_layers()
    return model.unshared(variables)


class InterventionState(NamedTuple):
    """Decoding state of a model with interventions.

    Attributes:
      model: the model's state.
      row_B: index of each row in the batch.
    """

    model: Any
    row_B: jax.Array

    def allocate(self, hypotheses: int, tokens: int) -> 'InterventionState':
        """Extends the caches, as `DecodeState.allocate`."""
        return self._replace(model=self.model.allocate(hypotheses, tokens))


def decode_functions(
    model: Model,
    variables: Any,
    interventions: Interventions,
    source_BS: jax.Array,
    row_B: jax.Array,
) -> tuple[Callable, InterventionState]:
    """Returns the step and the initial state of decoding with interventions."""
    # The indices of a decoder's tokens start after the source if it reads both.
    offset = 0 if 'encoder' in model.stacks() else source_BS.shape[1]
    prefill = _Intervened(interventions, row_B, offset)
    with nn.intercept_methods(prefill._hooks.intercept):
        state = model.apply(variables, source_BS, method='prefill')

    def decode_step(token_BN, state, beam):
        found = _Intervened(interventions, state.row_B, offset)
        with nn.intercept_methods(found._hooks.intercept):
            logits_BNV, new = model.apply(
                variables, token_BN, state.model, beam, method='decode_step'
            )
        found._used |= prefill._used
        found._seen = prefill._seen | found._seen
        found.check()
        return logits_BNV, InterventionState(new, state.row_B)

    return decode_step, InterventionState(state, row_B)


class Hooks:
    """Calls `take(value, where)` for each activation that `wants` names.

    Args:
      wants: (name, is_alias) → whether to take this activation.
      take: returns the value to use instead.
      row_B: as `intervene`.
      source_length: number of tokens before the target in a decoder-only model.
    """

    def __init__(
        self,
        wants: Callable[[str, bool], bool],
        take: Callable[[jax.Array, Where], jax.Array],
        row_B: jax.Array | None = None,
        source_length: int = 0,
    ):
        self._wants = wants
        self._take_value = take
        self._row_B = row_B
        self._source_length = source_length
        self._running: set[tuple[int, str]] = set()
        # Known inside of `decode_hidden`, a stack and a layer.
        self._target: TokenBatch | None = None
        self._where: Where | None = None
        self._in_layer = False
        self._source_mask_BS: jax.Array | None = None

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

    def _take(self, name, value, axes='BTD', is_alias=False, where=None):
        if not self._wants(name, is_alias):
            return value
        where = where or self._where or self._unknown(value)
        return self._take_value(value, where._replace(name=name, axes=axes))

    def _unknown(self, value, positions_BT=None, mask_BT=None) -> Where:
        """Returns a place without a name and a step."""
        batch, length = value.shape[:2]
        index_BT = jnp.broadcast_to(jnp.arange(length)[None], (batch, length))
        return Where('', '', None, positions_BT, mask_BT, index_BT, self._rows(batch))

    def _rows(self, batch):
        return jnp.arange(batch) if self._row_B is None else self._row_B

    def _decode_hidden(self, module, of, args, kwargs):
        self._target = args[1]
        try:
            return of(*args, **kwargs)
        finally:
            self._target = None

    def _model(self, module, of, args, kwargs):
        inputs = kwargs['inputs'] if 'inputs' in kwargs else args[1]
        inputs = TokenBatch.from_inputs(inputs, module.special_tokens.padding)
        logits_BTV = of(*args, **kwargs)
        positions_BT = inputs.positions_BT
        where = self._unknown(logits_BTV, positions_BT, inputs.valid_BT)
        where = where._replace(step_BT=positions_BT)
        return self._take('logits', logits_BTV, 'BTV', where=where)

    def _decode_step(self, module, of, args, kwargs):
        token_BN, _, beam = args
        logits_BNV, state = of(*args, **kwargs)
        step_BN = jnp.broadcast_to(beam.step, token_BN.shape)
        where = self._unknown(logits_BNV, step_BN)
        where = where._replace(step_BT=step_BN, index_BT=step_BN)
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
        self._where = self._in_stack(name, x_BTD, context, beam)
        if name == 'encoder':
            self._source_mask_BS = context.valid_BT
        try:
            x_BTD = self._take(f'{name}/embed', x_BTD)
            y_BTD, caches = of(x_BTD, context, *others, **kwargs)
            return self._take(f'{name}/ln_final', y_BTD), caches
        finally:
            self._where = None

    def _in_stack(self, name, x_BTD, context, beam) -> Where:
        where = self._unknown(x_BTD, context.positions_BT, context.valid_BT)
        if name == 'encoder':
            return where
        shape = x_BTD.shape[:2]
        if beam is not None:
            step_BT = jnp.broadcast_to(beam.step, shape)
            return where._replace(
                step_BT=step_BT, index_BT=step_BT + self._source_length
            )
        if self._target is None:
            return where._replace(step_BT=jnp.full(shape, -1))
        step_BT = self._target.positions_BT
        source_length = shape[1] - step_BT.shape[1]
        padding = [(0, 0), (source_length, 0)]
        return where._replace(step_BT=jnp.pad(step_BT, padding, constant_values=-1))

    def _block(self, module, of, args, kwargs):
        name = '/'.join(module.path)
        x_BTD, *others = args
        x_BTD = self._take(f'{name}/resid_pre', x_BTD)
        x_BTD = self._take(f'{name}/before', x_BTD, is_alias=True)
        self._in_layer = True
        try:
            x_BTD, cache = of(x_BTD, *others, **kwargs)
        finally:
            self._in_layer = False
        return self._take(f'{name}/resid_post', x_BTD), cache

    def _residual(self, module, of, args, kwargs):
        *layer, name = module.path
        x_BTD = self._take('/'.join(module.path), of(*args, **kwargs), is_alias=True)
        streams = module.parent.streams_between()
        number = int(name.removeprefix('residual_')) - 1
        if number < len(streams):
            x_BTD = self._take('/'.join((*layer, streams[number])), x_BTD)
        return x_BTD

    def _sublayer(self, module, of, args, kwargs):
        *layer, name = module.path
        y_BTD = of(*args, **kwargs)
        y_BTD = self._take('/'.join((*layer, _OUTPUTS[name])), y_BTD)
        return self._take('/'.join(module.path), y_BTD, is_alias=True)

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
        where = self._where
        if not self._in_layer:
            where = self._unknown(x_BSD, positions_BS, self._source_mask_BS)
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
        z_BTHU = self._take(f'{name}/z', of(q_BTHK, *others, **kwargs), 'BTHU')
        for i in range(z_BTHU.shape[2]):
            alias = f'{name}/head_{i}'
            if self._wants(alias, True):
                x_BTU = self._take(alias, z_BTHU[:, :, i], 'BTU', is_alias=True)
                z_BTHU = z_BTHU.at[:, :, i].set(x_BTU)
        return z_BTHU

    def _weights(self, module, of, args, kwargs):
        name = '/'.join(module.path[:-1])
        scores_BGTS, mask_BGTS = args
        parent = module.parent
        group_size = 1
        if isinstance(parent, MultiHeadAttention):
            group_size = parent.sizes.num_heads // scores_BGTS.shape[1]

        def take(of_scores, x_BGTS):
            x_BHTS = _unfold(x_BGTS, group_size)
            return _fold(self._take(f'{name}/{of_scores}', x_BHTS, 'BHTS'), group_size)

        return take('pattern', of(take('scores', scores_BGTS), mask_BGTS))

    def _out_proj(self, module, of, args, kwargs):
        name = '/'.join(module.path[:-1]) + '/result'
        (z_BTHU,) = args
        y_BTD = of(z_BTHU)
        if not self._wants(name, False):
            return y_BTD
        kernel_HUD = module.get_variable('params', 'kernel').astype(module.dtype)
        result_BTHD = jnp.einsum(
            'bthu,hud->bthd',
            z_BTHU.astype(module.dtype),
            kernel_HUD,
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
    """Inverts `_unfold`."""
    if group_size == 1:
        return x_BHTS
    b, h, t, s = x_BHTS.shape
    x_BGRTS = x_BHTS.reshape(b, h // group_size, group_size, t, s)
    return jnp.swapaxes(x_BGRTS, 2, 3).reshape(b, h // group_size, -1, s)
