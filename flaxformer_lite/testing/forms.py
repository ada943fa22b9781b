"""Variants of a model: rounded, scanned, rematerialized, on several devices."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AxisType

from flaxformer_lite.jax_compat import jaxprs_in_params
from flaxformer_lite.layers.scanned_stack import stack_layers, unstack_layers
from flaxformer_lite.models.base import Model
from flaxformer_lite.sharding import ROW_AXES, state_shardings
from flaxformer_lite.testing import models, rows
from flaxformer_lite.testing.finding import Finding, from_differences
from flaxformer_lite.testing.models import ModelOutputs
from flaxformer_lite.training.train_step import TrainState, make_train_step

ON_DEVICES = 'several devices train like one'
_PRODUCTS = ('dot_general', 'conv_general_dilated')


def in_bfloat16(model: Model) -> Model:
    return model.clone(dtype=jnp.bfloat16)


def examine_scanned(model: Model, variables: Any) -> ModelOutputs:
    found = models.examine(model, stack_layers(variables, model.layer_periods))
    gradients = unstack_layers({'params': found.gradients}, model.layer_periods)
    return found._replace(gradients=gradients['params'])


class Product(NamedTuple):
    kind: str
    operands: frozenset[str]
    sums: str


def products(model: Model, variables: Any) -> set[Product]:
    batch = {name: x[0] for name, x in rows.both_batches().items()}

    def loss(params):
        return models.loss(model, variables, params, batch)

    gradient = jax.grad(loss, has_aux=True)
    traced = jax.make_jaxpr(gradient)(variables['params'])
    return {
        Product(
            equation.primitive.name,
            frozenset(str(x.aval.dtype) for x in equation.invars),
            _dtype_of_sums(equation),
        )
        for equation in _equations(traced.jaxpr)
        if equation.primitive.name in _PRODUCTS
    }


def _dtype_of_sums(product: Any) -> str:
    """Returns the stated accumulation dtype, or else the dtype of the result."""
    algorithm = product.params.get('precision')
    if isinstance(algorithm, jax.lax.DotAlgorithmPreset):
        return jnp.dtype(algorithm.accumulation_type).name
    return str(product.outvars[0].aval.dtype)


def _equations(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from _equations(inner)


def float32_sums(found: set[Product]) -> Finding:
    contract = 'products accumulate in float32'
    for product in sorted(found, key=str):
        if product.sums != 'float32':
            operands = ' and '.join(sorted(product.operands))
            detail = f'{product.kind} of {operands} accumulates in {product.sums}'
            return Finding(contract, False, detail)
    return Finding(contract, True)


def same_on_devices(model: Model, variables: Any, sizes: Mapping[str, int]) -> Finding:
    """Tests that a training step with dropout is the same on a mesh.

    Args:
      sizes: Numbers of devices by mesh axis of `sharding.AXES`.
    """
    axis_types = (AxisType.Auto,) * len(sizes)
    mesh = jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=axis_types)
    # With SGD the step is the gradient itself. Adam would amplify the smallest
    # gradients, including rounding errors, to the size of the learning rate.
    optimizer = optax.sgd(1.0)
    step = make_train_step(model, optimizer)
    state = TrainState.create(variables, optimizer)
    pairs = [*rows.PAIRS, rows.PAIR] * 2
    batch = rows.batch_of([[pair] for pair in pairs])
    key = jax.random.key(1)
    train = jax.jit(step, compiler_options=models.UNOPTIMISED)
    with models.exact_products():
        expected, _ = train(state, batch, key)
    with models.exact_products(), jax.set_mesh(mesh):
        row_axes = tuple(axis for axis in ROW_AXES if axis in sizes)
        by_row = jax.NamedSharding(mesh, jax.P(row_axes))
        placed = jax.device_put(state, state_shardings(state, mesh))
        divided = jax.device_put(batch, by_row)
        found, _ = train(placed, divided, key)
    return _same_parameters(*jax.device_get((found.params, expected.params)))


def _same_parameters(found: Any, expected: Any) -> Finding:
    found = models.by_path(found)
    expected = models.by_path(expected)
    differences = [
        (float(abs(found[path] - x).max()), f'the update of {path} changes by {{}}')
        for path, x in expected.items()
    ]
    return from_differences(ON_DEVICES, 1e-5, differences)
