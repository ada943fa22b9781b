"""Contracts of learning-rate schedules and optimizers."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from flaxformer_lite.config.spec import Spec
from flaxformer_lite.testing.finding import (
    Finding,
    from_condition,
    from_counterexamples,
)
from flaxformer_lite.training import learning_rates

D_MODEL, STEPS = 64, 1000
_UPDATES = 3


def schedule_findings(
    schedule: Spec, d_model: int = D_MODEL, steps: int = STEPS
) -> list[Finding]:
    """Tests the contracts of a schedule over a training run of `steps` steps.

    Raises:
      ValueError: The schedule is unknown.
    """
    rate = learning_rates.make(schedule, d_model, steps)
    counts = [steps * i // 100 for i in range(101)]
    traced = jax.jit(jax.vmap(rate))(jnp.asarray(counts, jnp.int32)).tolist()
    eager = [jnp.asarray(rate(count)).item() for count in counts]
    # Compilers may reorder operations, which changes the rounding.
    rounding = 1e-5 * max(map(abs, eager))
    wrong = []
    differs = []
    for count, x, y in zip(counts, traced, eager, strict=True):
        example = f'the rate of step {count:,} is {x:g}'
        if not -1e-9 <= x < float('inf'):
            wrong.append(example)
        if not abs(x - y) <= rounding:
            differs.append(f'{example} traced and {y:g} untraced')
    return [
        from_counterexamples('rates are finite and not negative', wrong),
        from_counterexamples('tracing gives the same rates', differs),
    ]


def optimizer_findings(
    make: Callable[[], optax.GradientTransformation],
) -> list[Finding]:
    """Tests the contracts of the optimizer that `make` returns, on a small tree."""
    params = {
        'kernel': jnp.linspace(-1.0, 1.0, 12).reshape(3, 4),
        'bias': jnp.ones(4),
    }
    state, updates = _run_updates(make(), params)
    second = _run_updates(make(), params)
    has_param_shapes = jax.tree.map(jnp.shape, updates) == jax.tree.map(
        jnp.shape, params
    )
    finite = all(jnp.isfinite(x).all() for x in jax.tree.leaves(updates))
    arrays = all(isinstance(x, jax.Array) for x in jax.tree.leaves(state))
    first = jax.eval_shape(make().init, params)
    is_stable_structure = jax.tree.structure(first) == jax.tree.structure(state)
    both = _with_key_data((state, updates)), _with_key_data(second)
    is_deterministic = jax.tree.all(jax.tree.map(lambda x, y: (x == y).all(), *both))
    return [
        from_condition(
            'updates have the tree of the parameters',
            has_param_shapes,
            'the trees differ',
        ),
        from_condition(
            'updates are finite', finite, 'NaN or infinity with zero gradients'
        ),
        from_condition(
            'the state is a fixed tree of arrays',
            arrays and is_stable_structure,
            'it changes',
        ),
        from_condition(
            'updates are deterministic', bool(is_deterministic), 'they differ'
        ),
    ]


def _run_updates(update: optax.GradientTransformation, params: Any) -> Any:
    """Returns the state and updates after several gradients; the last are 0."""
    step = jax.jit(update.update)
    state = update.init(params)
    updates = params
    for i in range(_UPDATES):
        scale = _UPDATES - 1 - i
        gradients = jax.tree.map(functools.partial(jnp.multiply, scale), params)
        updates, state = step(gradients, state, params)
    return state, updates


def _with_key_data(tree: Any) -> Any:

    def leaf_data(x: Any) -> Any:
        is_key = jnp.issubdtype(jnp.asarray(x).dtype, jax.dtypes.prng_key)
        if is_key:
            return jax.random.key_data(x)
        return x

    return jax.tree.map(leaf_data, tree)
