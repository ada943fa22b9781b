"""Ready-made interventions: functions of an activation's value and place."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer

from flaxformer_lite.interventions.names import Interventions, Where, matches


class _Selection(NamedTuple):
    """The heads, tokens and steps to change, int32 vectors; None for all."""

    heads: jax.Array | None
    tokens: jax.Array | None
    steps: jax.Array | None

    @classmethod
    def of(cls, heads, tokens, steps) -> '_Selection':
        vectors = dict(heads=heads, tokens=tokens, steps=steps)
        return cls(*(_vector(name, numbers) for name, numbers in vectors.items()))

    def put(self, new: jax.Array, value: jax.Array, where: Where) -> jax.Array:
        axes = where.axes
        chosen = jnp.ones((1,) * len(axes), bool)
        if self.heads is not None:
            if 'H' not in axes:
                raise ValueError(f'heads: {where.name} has none. Leave heads out.')
            number_H = jnp.arange(value.shape[axes.index('H')])
            _check_below(len(number_H), self.heads, where.name)
            chosen &= _expand_axes(jnp.isin(number_H, self.heads), 'H', axes)
        if self.tokens is not None:
            if where.positions_BT is None:
                raise ValueError(
                    f'tokens: {where.name} has no positions. Leave tokens out.'
                )
            chosen &= _expand_axes(
                jnp.isin(where.positions_BT, self.tokens), 'BT', axes
            )
        if self.steps is not None:
            if where.step_BT is None:
                raise ValueError(
                    f'steps: {where.name} is an activation of the encoder, which runs '
                    'once. Leave steps out.'
                )
            chosen &= _expand_axes(jnp.isin(where.step_BT, self.steps), 'BT', axes)
        return jnp.where(chosen, new.astype(value.dtype), value)


def _vector(name: str, numbers: Any) -> jax.Array | None:
    if numbers is None:
        return None
    if not any(isinstance(x, Tracer) for x in jax.tree.leaves(numbers)):
        # Keeps them known within `jax.jit`.
        with jax.ensure_compile_time_eval():
            return _checked_vector(name, numbers)
    return _checked_vector(name, numbers)


def _checked_vector(name: str, numbers: Any) -> jax.Array:
    try:
        vector_N = jnp.atleast_1d(jnp.asarray(numbers))
        is_integer = jnp.issubdtype(vector_N.dtype, jnp.integer) or not vector_N.size
    except TypeError:  # text, for instance
        is_integer = False
    if not is_integer or min(_known(vector_N), default=0) < 0:
        raise ValueError(f'{name} must be integers of at least 0, not {numbers!r:.60}.')
    return vector_N.astype(jnp.int32)


def _known(vector_N: jax.Array) -> list[int]:
    """Returns the numbers of a vector, or none if it is traced.

    Within `jax.jit`, operations on known arrays are traced too, so compare numbers.
    """
    return [] if isinstance(vector_N, Tracer) else vector_N.tolist()


def _check_below(number: int, heads: jax.Array, activation: str) -> None:
    """Raises ValueError if a head does not exist. Traced heads are not checked."""
    if max(_known(heads), default=0) >= number:
        raise ValueError(
            f'heads: {activation} has the heads 0 to {number - 1}, not {_known(heads)}.'
        )


def check_heads(
    interventions: Interventions, count: Callable[[], Mapping[str, int]]
) -> None:
    """Raises ValueError if a ready-made intervention has a head that doesn't exist.

    Args:
      count: Returns the number of heads of each activation. Called only if needed.
    """
    for key, function in interventions.items():
        for chosen in getattr(function, 'args', ()):
            if isinstance(chosen, _Selection) and chosen.heads is not None:
                for name, number in count().items():
                    if matches(key, name):
                        _check_below(number, chosen.heads, name)


def _expand_axes(x: jax.Array, own: str, axes: str) -> jax.Array:
    """Inserts axes of size 1, so that x with the axes `own` broadcasts to `axes`."""
    missing = [i for i, axis in enumerate(axes) if axis not in own]
    return jnp.expand_dims(x, missing)


def set_to(x: Any, heads: Any = None, tokens: Any = None, steps: Any = None) -> Any:
    """Returns an intervention that replaces an activation by `x`.

        intervene({'decoder/layer_*/self_attention/z': set_to(0.0, heads=[3])})

    Args:
      x: A number, an array of the trailing axes, or one of all axes, as recorded with
        teacher forcing. While decoding, a whole array gives each step its token.
      heads, tokens, steps: Heads, positions and decoding steps to change; all by
        default. A head that doesn't exist raises ValueError, unless the numbers are
        an argument of your own `jax.jit` function and thus unknown.
    """
    return jax.tree_util.Partial(
        _replace_with, jnp.asarray(x), _Selection.of(heads, tokens, steps)
    )


def add(x: Any, heads: Any = None, tokens: Any = None, steps: Any = None) -> Any:
    """Returns an intervention that adds `x`, such as a steering vector.

        intervene({'decoder/layer_1/resid_post': add(0.1 * direction_D)})

    Args:
      x, heads, tokens, steps: As in `set_to`.
    """
    return jax.tree_util.Partial(
        _add, jnp.asarray(x), _Selection.of(heads, tokens, steps)
    )


def scale(x: Any, heads: Any = None, tokens: Any = None, steps: Any = None) -> Any:
    """Returns an intervention that multiplies by `x`; 0 removes a head.

        intervene({'encoder/layer_0/self_attention/z': scale(0.0, heads=[3])})

    Args:
      x, heads, tokens, steps: As in `set_to`.
    """
    return jax.tree_util.Partial(
        _scale, jnp.asarray(x), _Selection.of(heads, tokens, steps)
    )


def mean_ablate(
    value: jax.Array,
    valid_BT: jax.Array | None = None,
    heads: Any = None,
    tokens: Any = None,
    steps: Any = None,
) -> Any:
    """Returns an intervention that replaces an activation by its mean over tokens.

    Use it to remove what an activation says about its token, with a typical value.

        found = record(model, variables, batch)
        name = 'decoder/layer_1/mlp_out'
        action = mean_ablate(found.values[name], found.valid['decoder'])

    Args:
      value: A recorded activation whose first axes are rows and tokens.
      valid_BT: bool, False for padding, as in `Record.valid`. Defaults to all True.
      heads, tokens, steps: As in `set_to`.
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

        other = record(model, variables, other_batch)
        intervene({'decoder/layer_1/resid_post': from_record(other)})

    Args:
      other: A `Record` of the same number of rows, or of one row.
      heads, tokens, steps: As in `set_to`.
    """
    chosen = _Selection.of(heads, tokens, steps)
    return jax.tree_util.Partial(_from_record, dict(other.values), chosen)


def _replace_with(x, chosen, value, where):
    new, exists = _broadcast_like(x, value, where)
    return jnp.where(exists, chosen.put(new, value, where), value)


def _add(x, chosen, value, where):
    new, exists = _broadcast_like(x, value, where)
    return jnp.where(exists, chosen.put(value + new, value, where), value)


def _scale(x, chosen, value, where):
    new, exists = _broadcast_like(x, value, where)
    return jnp.where(exists, chosen.put(value * new, value, where), value)


def _from_record(values, chosen, value, where):
    if where.name not in values:
        raise ValueError(f'from_record: {where.name} was not recorded. Record it.')
    return _replace_with(values[where.name], chosen, value, where)


def _broadcast_like(x, value, where):
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
        index = _expand_axes(jnp.minimum(where.index_BT, tokens - 1), 'BT', where.axes)
        x = jnp.take_along_axis(x, index, axis)
    exists = _expand_axes(where.index_BT < tokens, 'BT', where.axes)
    return _broadcast(x, value, where), exists


def _is_step(where):
    return where.mask_BT is None and where.step_BT is not None


def _broadcast(x, value, where):
    try:
        return jnp.broadcast_to(x, value.shape)
    except ValueError:
        raise ValueError(
            f'{where.name}: the intervention has the shape {x.shape}, not '
            f'{value.shape}. While decoding, a key is a slot of the cache.'
        ) from None
