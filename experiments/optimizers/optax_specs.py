"""Optimizers from specs: optax's `lion(b1=0.95)`, `contrib.muon`, `my_parts.mine`."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.errors import UserError, user_errors
from experiments.optimizers import soap
from experiments.optimizers.normalized import normalized_adam
from flaxformer_lite import testing
from flaxformer_lite.config.spec import Component, Spec
from flaxformer_lite.validation import did_you_mean, quote

CONTRIB = 'contrib.'
# Unsupported: these need more than a gradient (the loss itself, per-example gradients,
# another optimizer), ignore the schedule, or keep state that checkpoints can't store.
_UNSUPPORTED = frozenset(
    'lbfgs rprop sm3 optimistic_adam contrib.momo contrib.momo_adam contrib.sophia '
    'contrib.dpsgd contrib.schedule_free contrib.cocob contrib.galore'.split()
)


def findings(spec: Spec) -> list[testing.Finding]:
    """Returns violated contracts of an optimizer, at a constant learning rate."""
    with user_errors('optimizer.name: '):
        component = Component.of(spec)
    component = resolve(component)
    return testing.optimizer_findings(lambda: make(component, _RATE))


def resolve(component: Component) -> Component:
    """Finds an optimizer of optax or of a user's module, and tries an update.

    A dotted name is a function or class of a user's module. It is called with
    `learning_rate`, and with `mask` if it accepts that.
    """
    name = component.name
    of_optax = makers()
    if '.' not in name.removeprefix(CONTRIB) and name not in of_optax:
        raise UserError(
            f'optimizer.name must be one of {", ".join(of_optax)}, not '
            f'{quote(component.text)}{did_you_mean(name, of_optax)}'
        )
    component = dataclasses.replace(component, given=of_optax.get(name))
    with user_errors('optimizer.name: '):
        if not component.accepted(learning_rate=_RATE):
            raise ValueError(f'{name} must take learning_rate, a schedule')
        component.check(_SHARED_ARGUMENTS)
    try:
        update = make(component, _RATE)
        if not isinstance(update, optax.GradientTransformation):
            raise UserError(
                f'optimizer.name: {name} returned {update!r:.40}. Return an '
                'optax.GradientTransformation.'
            )
        _trace_update(update)
    except Exception as error:  # optax and JAX raise various errors for wrong types
        if name not in of_optax:
            raise
        reason = ' '.join(str(error).split())
        raise UserError(f'optimizer.name={name}: optax rejects it: {reason}') from None
    return component


def make(
    component: Component, schedule: optax.Schedule, has_output: bool = True
) -> optax.GradientTransformation:
    """Builds an optimizer from `resolve`; `has_output` as in `normalized_adam`."""
    own = {'learning_rate': schedule, 'has_output': has_output}
    given = component.accepted(**_SHARED_ARGUMENTS | own)
    return component.cls(**given, **component.arguments)


@functools.cache
def makers() -> dict[str, Callable[..., optax.GradientTransformation]]:
    """Returns optimizers by name: optax's, then our own."""
    found: dict[str, Any] = {}
    for prefix, module in (('', optax), (CONTRIB, optax.contrib)):
        for name, function in sorted(vars(module).items()):
            if name.startswith(('_', 'scale_by_')) or not inspect.isfunction(function):
                continue
            if 'learning_rate' in inspect.signature(function).parameters:
                found[prefix + name] = function
    found |= {'normalized_adam': normalized_adam, 'soap': soap.soap}
    return {name: maker for name, maker in found.items() if name not in _UNSUPPORTED}


def decays(params: Any) -> Any:
    """Returns True for parameters with weight decay: `soap.NAMES`.

    These have many entries, can overfit, and have the least effect at 0.
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, w: path[-1].key in soap.NAMES, params
    )


def _dimensions(params: Any) -> Any:
    """Returns the axes of dense kernels, which Muon orthogonalises; Adam does the rest.

    Optax's default omits attention projections, whose heads have their own axis, and
    includes embeddings.
    """

    def of_leaf(path, x):
        axes = soap.matrix_axes([entry.key for entry in path], x.ndim)
        return axes and optax.contrib.MuonDimensionNumbers(*axes)

    return jax.tree_util.tree_map_with_path(of_leaf, params)


_RATE = optax.constant_schedule(1e-3)  # learning rate of trial updates
# Arguments that an optimizer gets if it takes them.
_SHARED_ARGUMENTS = {
    'learning_rate': _RATE,
    'has_output': True,
    'mask': decays,
    'weight_decay_mask': decays,
    'muon_weight_dimension_numbers': _dimensions,
}


def _trace_update(update: Any) -> None:
    matrix = jax.ShapeDtypeStruct((2, 2), jnp.float32)
    vector = jax.ShapeDtypeStruct((2,), jnp.float32)
    params = {'kernel': matrix, 'bias': vector}
    jax.eval_shape(lambda p: update.update(p, update.init(p), p), params)
