"""Milliseconds on a TPU v5e by XLA's own estimate, without running the programs.

    python -m benchmarks.v5e --work=step --layers=1 --dtype=bfloat16
    python -m benchmarks.v5e --work=projections

`step` is a training step of `wmt_base` with `--layers` layers, on 96 rows of 256 tokens
and eight chips. `projections` is query, key and value of 12 such rows, forward and
backward, as three products and as one. XLA writes its estimated cycles of each
operation into the compiled program. This needs the package `libtpu`, but no TPU.
Compiling a step takes minutes.
"""

import argparse
import os
import re
from collections.abc import Iterator
from typing import Any

CLOCK = 1.5e6  # cycles per millisecond
ROWS, LENGTH, VOCABULARY = 96, 256, 37_000
# `ENTRY %main (x: f32[3]) -> f32[3] {`, at the start of a line.
_HEAD = re.compile(r'(ENTRY )?%?([\w.-]+) \(.*\{\s*$')
_CYCLES = re.compile(r'estimated_cycles":"(\d+)"')
_TRIPS = re.compile(r'known_trip_count[^0-9]*(\d+)')
_CALLED = re.compile(r'\b(?:body|to_apply)=%?([\w.-]+)')
_BRANCHES = re.compile(r'\bbranch_computations=\{([^}]*)\}')


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--work', choices=('step', 'projections'), required=True)
    parser.add_argument('--layers', type=int, default=1)
    parser.add_argument('--dtype', choices=('float32', 'bfloat16'), default='bfloat16')
    args = parser.parse_args()
    # Set before libtpu starts, which would otherwise query the machine for its chips.
    os.environ.update(
        TPU_SKIP_MDS_QUERY='1',
        TPU_ACCELERATOR_TYPE='v5litepod-8',
        TPU_WORKER_HOSTNAMES='localhost',
        JAX_PLATFORMS='cpu',
    )
    if args.work == 'step':
        programs = {'step': step(args.layers, args.dtype)}
    else:
        programs = projections()
    for name, program in programs.items():
        print(f'{name}: {milliseconds(program.as_text() or ""):.3f} ms')


def milliseconds(text: str) -> float:
    """Returns the sum over a program's operations, times the iterations of loops.

    A conditional counts its longest branch, which updates parameters.
    """
    lines, entry = _lines_by_computation(text)
    return sum(_cycles(lines, entry)) / CLOCK


def _lines_by_computation(text: str) -> tuple[dict[str, list[str]], str]:
    """Returns the lines of each computation, and the name of the entry."""
    lines: dict[str, list[str]] = {}
    body: list[str] = []
    entry = ''
    for line in text.splitlines():
        head = _HEAD.match(line)
        if not head:
            body.append(line)
            continue
        body = lines[head[2]] = []
        if head[1]:
            entry = head[2]
    return lines, entry


def _cycles(lines: dict[str, list[str]], name: str) -> Iterator[int]:
    for line in lines.get(name, []):
        expected = _CYCLES.search(line)
        if expected:
            yield int(expected[1])
        branches = _BRANCHES.search(line)
        if branches:
            names = re.findall(r'[\w.-]+', branches[1])
            yield max(sum(_cycles(lines, branch)) for branch in names)
        elif re.search(r'\b(while|call)\(', line):
            trips = _TRIPS.search(line)
            for called in _CALLED.findall(line):
                yield sum(_cycles(lines, called)) * (int(trips[1]) if trips else 1)


def step(layers: int, dtype: str) -> Any:
    """Compiles the training step."""
    import jax
    import jax.numpy as jnp
    import optax
    from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

    from flaxformer_lite import build, init_state, make_train_step, sharding
    from flaxformer_lite.training.batch import BATCH_ARRAYS

    mesh = Mesh(
        _chips().reshape(8, 1, 1), sharding.AXES, axis_types=(AxisType.Auto,) * 3
    )
    model = build.model(dict(num_layers=layers, dtype=dtype), VOCABULARY)
    optimizer = optax.adam(1e-3, b1=0.9, b2=0.98, eps=1e-9)
    key = jax.eval_shape(lambda: jax.random.key(0))
    state = jax.eval_shape(lambda key: init_state(model, optimizer, key), key)
    whole = NamedSharding(mesh, PartitionSpec())
    rows = NamedSharding(mesh, PartitionSpec(sharding.ROW_AXES))
    where = sharding.state_shardings(state, mesh)

    def place(x: Any, sharding: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    array = jax.ShapeDtypeStruct((ROWS, LENGTH), jnp.int32, sharding=rows)
    jitted = jax.jit(
        make_train_step(model, optimizer),
        donate_argnums=0,
        out_shardings=(where, whole),
    )
    with jax.set_mesh(mesh):
        placed = jax.tree.map(place, state, where)
        batch = dict.fromkeys(BATCH_ARRAYS, array)
        return jitted.lower(placed, batch, place(key, whole)).compile()


def projections() -> dict[str, Any]:
    """Compiles the gradients of query, key and value, as three products and as one."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from flaxformer_lite.ops.matmul import matmul

    whole = NamedSharding(Mesh(_chips()[:1], ('chip',)), PartitionSpec())
    rows, d_model, heads, d_k = ROWS // 8, 512, 8, 64

    def array(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=whole)

    def project(x_BTD: jax.Array, kernel: jax.Array) -> jax.Array:
        x_ND = x_BTD.reshape(-1, d_model).astype(jnp.bfloat16)
        return matmul(x_ND, kernel.reshape(d_model, -1).astype(jnp.bfloat16))

    def gradients(
        x_BTD: jax.Array, kernels: list[jax.Array], g: list[jax.Array]
    ) -> Any:
        def weighted(x_BTD: jax.Array, kernels: list[jax.Array]) -> jax.Array:
            y = jnp.concatenate([project(x_BTD, kernel) for kernel in kernels], 1)
            query, key, value = (
                y_NF.reshape(rows, LENGTH, heads, d_k).astype(jnp.bfloat16)
                for y_NF in jnp.split(y, 3, 1)
            )
            taken = query, jnp.moveaxis(key, 1, -1), jnp.moveaxis(value, 1, -1)
            products = [x * y for x, y in zip(taken, g, strict=True)]
            return sum((x.sum() for x in products), jnp.zeros(()))

        return jax.grad(weighted, (0, 1))(x_BTD, kernels)

    g = [array(rows, LENGTH, heads, d_k), *[array(rows, heads, d_k, LENGTH)] * 2]
    x_BTD = array(rows, LENGTH, d_model)
    found = {}
    for name, count in (('three products', 3), ('one product', 1)):
        kernels = [array(d_model, 3 // count * heads * d_k)] * count
        found[name] = jax.jit(gradients).lower(x_BTD, kernels, g).compile()
    return found


def _chips() -> Any:
    import numpy as np
    from jax.experimental import topologies

    return np.array(topologies.get_topology_desc('v5e:2x4', 'tpu').devices)


if __name__ == '__main__':
    main()
