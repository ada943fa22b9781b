"""The memory of one device for large models, by compiling their steps and running none.

    python -m benchmarks.mesh_memory --chip=cpu
    python -m benchmarks.mesh_memory --chip=v5e

A training step (Adam, bfloat16, dropout, layers in one loop) is compiled for as many
devices as are asked for, which need not be there: CPU devices are simulated, and for a
TPU v5e it takes the package `libtpu`. The figures are XLA's own of the compiled
program: what a device holds of state and batch, and what a step sets aside beside them.
"""

import argparse
import json
import math
import os
import subprocess
import sys
from typing import Any

from experiments.command_line import console

# A model's size is nearly 28 d_model² (layers of one stack) + vocabulary · d_model.
MODELS: dict[str, dict[str, int]] = {
    'wmt_big': dict(d_model=1024, num_layers=6, num_heads=16),
    '1 billion': dict(d_model=2048, num_layers=8, num_heads=16),
    '3 billion': dict(d_model=3072, num_layers=11, num_heads=24),
    '10 billion': dict(d_model=5120, num_layers=14, num_heads=40),
}
VOCABULARY = 32_768
ROWS, LENGTH = 8, 256  # of the batch, for each device that divides rows
# The devices, and how they are divided: data, fsdp, tensor.
MESHES = ((8, 1, 1), (1, 8, 1), (1, 32, 1), (1, 8, 4), (4, 64, 1))
TOPOLOGIES = {8: 'v5e:2x4', 32: 'v5e:4x8', 256: 'v5e:16x16'}
REMAT = ('none', 'blocks')


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--chip', choices=('cpu', 'v5e'), default='cpu')
    parser.add_argument('--models', nargs='+', choices=MODELS, default=list(MODELS))
    parser.add_argument('--case', type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case is not None:
        print(json.dumps(compiled(args.chip, **args.case)))
        return
    rows = []
    for model in args.models:
        for mesh in MESHES:
            for remat in REMAT:
                case = dict(model=model, mesh=mesh, remat=remat)
                found = in_a_process(args.chip, case)
                row = [model, *mesh, remat, *found.values()]
                rows.append(row)
                print(*row, file=sys.stderr, flush=True)
    head = ['model', 'data', 'fsdp', 'tensor', 'remat', 'state GB', 'step GB', 'sum GB']
    print(console.table(head, rows))


def in_a_process(chip: str, case: dict[str, Any]) -> dict[str, Any]:
    """The figures of a case, of which an error leaves a word."""
    devices = math.prod(case['mesh'])
    flags = f'--xla_force_host_platform_device_count={devices if chip == "cpu" else 1}'
    environment = os.environ | {'XLA_FLAGS': flags, 'JAX_PLATFORMS': 'cpu'}
    command = [sys.executable, '-m', 'benchmarks.mesh_memory', f'--chip={chip}']
    command.append(f'--case={json.dumps(case)}')
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    if 'RESOURCE_EXHAUSTED' in done.stderr:
        return {'state': '', 'step': '', 'sum': 'more than there is'}
    raise RuntimeError(done.stderr)


def compiled(chip: str, model: str, mesh: list[int], remat: str) -> dict[str, str]:
    """Gigabytes of a device: the state, a step beside it, and their sum."""
    import jax
    import jax.numpy as jnp
    import optax
    from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

    from flaxformer_lite import build, init_state, make_train_step, sharding
    from flaxformer_lite.training.batch import BATCH_ARRAYS

    sizes = MODELS[model]
    made = build.model(
        sizes
        | dict(
            d_ff=4 * sizes['d_model'],
            dtype='bfloat16',
            residual='pre_norm',
            scan_layers=True,
        ),
        VOCABULARY,
    )
    optimizer = optax.adam(1e-4)
    key = jax.eval_shape(jax.random.key, 0)
    state = jax.eval_shape(lambda key: init_state(made, optimizer, key), key)
    devices = _devices(chip, math.prod(mesh)).reshape(mesh)
    placed_on = Mesh(devices, sharding.AXES, axis_types=(AxisType.Auto,) * 3)
    whole = NamedSharding(placed_on, PartitionSpec())
    rows = NamedSharding(placed_on, PartitionSpec(sharding.ROW_AXES))
    where = sharding.state_shardings(state, placed_on)

    def place(x: Any, sharding: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    count = ROWS * mesh[0] * mesh[1]
    batch = {
        name: jax.ShapeDtypeStruct((count, LENGTH), jnp.int32, sharding=rows)
        for name in BATCH_ARRAYS
    }
    step = jax.jit(
        make_train_step(made, optimizer, remat=remat),
        donate_argnums=0,
        out_shardings=(where, whole),
    )
    with jax.set_mesh(placed_on):
        lowered = step.lower(
            jax.tree.map(place, state, where), batch, place(key, whole)
        )
    memory = lowered.compile().memory_analysis()
    assert memory is not None
    held = memory.argument_size_in_bytes / 1e9
    beside = (
        memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes
    ) / 1e9
    return {
        'state': f'{held:.2f}',
        'step': f'{beside:.2f}',
        'sum': f'{held + beside:.2f}',
    }


def _devices(chip: str, count: int) -> Any:
    import jax
    import numpy as np
    from jax.experimental import topologies

    if chip == 'cpu':
        return np.array(jax.devices())
    topology = topologies.get_topology_desc(TOPOLOGIES[count], 'tpu')
    return np.array(topology.devices)


if __name__ == '__main__':
    main()
