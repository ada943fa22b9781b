"""Named activations: `tap` is the one line where a module names one.

    x_BTD = tap(self, 'resid_mid', x_BTD)

`tap` returns x. Observers see it and may replace it: `record` and `intervene` are such
observers. Without an observer, `tap` does nothing. Only the attention weights of a
recurrent decoder are read otherwise: `nn.scan` lets nothing but sown values out.
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, Protocol

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite.interception import InterceptorKey, interceptor_keys
from flaxformer_lite.kv_cache import BeamState
from flaxformer_lite.masks import AttentionContext, TokenBatch
from flaxformer_lite.shapes import fold_groups, unfold_groups

_Arguments = ParamSpec('_Arguments')


class Where(NamedTuple):
    """The place of an activation.

    While decoding, the axis T holds the N hypotheses of a sentence instead of tokens.

    Attributes:
      axes: A letter per axis: B rows, T tokens, H heads, S keys, and others.
      step_BT: int32, the decoding step that reads the token; -1 for source tokens, None
        in an encoder.
      positions_BT: int32 position of each token, or None if unknown.
      mask_BT: bool, False for padding; None while decoding or if unknown.
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


class Observer(Protocol):
    """A function (value, where) → value of the activations that `wants` names."""

    def wants(self, name: str) -> bool: ...

    def __call__(self, value: jax.Array, where: Where) -> jax.Array: ...


# Context variables, because a tap is many modules below the call that is observed. As
# arguments, both would appear in the signature of every module.
_observers: contextvars.ContextVar[tuple[Observer, ...]] = contextvars.ContextVar(
    'observers', default=()
)
_place: contextvars.ContextVar[Where | None] = contextvars.ContextVar(
    'place', default=None
)


def tap(
    module: nn.Module, name: str, x: jax.Array, axes: str = 'BTD', mask: Any = None
) -> jax.Array:
    """Returns x, or the value that observers replace it by.

    Args:
      name: Path relative to that of the module, such as 'z' or '../pattern'.
      axes: As in `Where`. For 'BHTS', x may have the folded queries of `fold_groups`;
        observers see those of each head.
      mask: bool, broadcastable to x. A replaced x is 0 where it is False.

    Examples:
      >>> class Double(nn.Module):
      ...     def __call__(self, x_BTD):
      ...         return tap(self, 'doubled', 2 * x_BTD)

      >>> from flaxformer_lite.interventions import add, intervene
      >>> with intervene({'doubled': add(1.0)}):
      ...     Double().apply({}, jnp.ones((1, 1, 2)))
      Array([[[3., 3.]]], dtype=float32)
    """
    name, observers = _find(module, name)
    if not observers or not x.size:
        return x
    place = _place.get() or _tokens((len(x), x.shape[axes.index('T')]))
    where = place._replace(name=name, axes=axes)
    group_size = x.shape[2] // place.index_BT.shape[1] if axes == 'BHTS' else 1
    value = found = _by_head(unfold_groups, x, group_size)
    for observer in observers:
        new = observer(found, where)
        if mask is not None and new is not found:
            mask_BHTS = jnp.broadcast_to(mask, x.shape)
            new = jnp.where(_by_head(unfold_groups, mask_BHTS, group_size), new, 0)
        found = new
    return x if found is value else _by_head(fold_groups, found, group_size)


def is_tapped(module: nn.Module, name: str) -> bool:
    """Returns whether an observer wants an activation that is costly to compute."""
    return bool(_find(module, name)[1])


def _find(module, name):
    """Returns the whole name, and the observers that want it."""
    if not _observers.get():
        return name, []
    path = list(module.path)
    for part in name.split('/'):
        path = path[:-1] if part == '..' else [*path, part]
    name = '/'.join(path)
    # Not `any`, which stops early: `wants` also records the name in each observer.
    return name, [observer for observer in _observers.get() if observer.wants(name)]


def _by_head(fold, x_BGTS, group_size):
    if group_size == 1:
        return x_BGTS
    return jnp.swapaxes(fold(jnp.swapaxes(x_BGTS, 1, 2), group_size), 1, 2)


@contextlib.contextmanager
def _context(variable, value):
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def observed_by(observer: Observer) -> contextlib.AbstractContextManager[None]:
    """Context in which taps call an observer, after those of outer contexts."""
    return _context(_observers, (*_observers.get(), observer))


def unobserved() -> contextlib.AbstractContextManager[None]:
    """Context of a transformation that values can't leave, such as `nn.scan`."""
    return _context(_observers, ())


def is_observed() -> bool:
    return bool(_observers.get())


def trace_keys() -> tuple[InterceptorKey, ...]:
    """Returns cache keys of the active observers and Flax interceptors.

    Reuse a compiled program or a trace only if the keys are equal.
    """
    return *map(InterceptorKey, _observers.get()), *interceptor_keys()


def _as_context_manager(
    place: Callable[_Arguments, Where],
) -> Callable[_Arguments, contextlib.AbstractContextManager[None]]:
    """Makes a function of a place return the context that sets the place.

    Only observers read the place, so programs without one have no operations for it.
    """

    @functools.wraps(place)
    def context(*args, **kwargs):
        if not is_observed():
            return contextlib.nullcontext()
        return _context(_place, place(*args, **kwargs))

    return context


@_as_context_manager
def at_source(source: TokenBatch) -> Where:
    """Context of source tokens outside of a stack."""
    shape = source.positions_BT.shape
    return _tokens(shape, source.positions_BT, source.valid_BT)


@_as_context_manager
def at_target(inputs: TokenBatch) -> Where:
    """Context of target tokens with teacher forcing, around that of the stack."""
    positions_BT = inputs.positions_BT
    return _tokens(positions_BT.shape, positions_BT, inputs.valid_BT, positions_BT)


@_as_context_manager
def at_step(beam: BeamState, shape: tuple[int, ...]) -> Where:
    """Context of hypotheses BN, around that of the stack."""
    step_BN = jnp.broadcast_to(beam.step, shape)
    return _tokens(shape, step_BN, None, step_BN)._replace(index_BT=step_BN)


@_as_context_manager
def in_stack(
    is_encoder: bool, context: AttentionContext, beam: BeamState | None
) -> Where:
    """Context of the tokens that a stack reads."""
    positions_BT = context.positions_BT
    shape = positions_BT.shape
    place = _tokens(shape, positions_BT, context.valid_BT)
    if is_encoder:
        return place
    if beam is not None:
        assert context.key_positions_BS is not None
        step_BN = jnp.broadcast_to(beam.step, shape)
        # The source precedes the target in a decoder-only model.
        source_length = context.key_positions_BS.shape[1] - beam.visible_BNS.shape[2]
        return place._replace(step_BT=step_BN, index_BT=step_BN + source_length)
    target = _place.get()
    step_BT = None if target is None else target.step_BT
    if step_BT is None:  # only a prompt
        step_BT = positions_BT[:, :0]
    source_length = shape[1] - step_BT.shape[1]
    padding = [(0, 0), (source_length, 0)]
    return place._replace(step_BT=jnp.pad(step_BT, padding, constant_values=-1))


def _tokens(shape, positions_BT=None, mask_BT=None, step_BT=None):
    index_BT = jnp.broadcast_to(jnp.arange(shape[1])[None], shape)
    row_B = jnp.arange(shape[0])
    return Where('', '', step_BT, positions_BT, mask_BT, index_BT, row_B)
