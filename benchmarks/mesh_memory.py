"""Memory per device for large models, from compiling their steps without running them.

    python -m benchmarks.mesh_memory --chip=v5e --devices 32 256
    python -m benchmarks.mesh_memory --chip=v5e --mesh 1 8 1 --layers=2 --collectives

Compiles a training step (Adam, bfloat16, dropout) for simulated CPU devices, or a TPU
v5e with the package `libtpu`. `--collectives` prints the FLOPs and the communication
between devices, counting a loop's body once.
"""

import argparse
import json
import math
import os
import re
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh

from experiments.command_line import console
from experiments.runtime.mesh import DeviceMesh, attach_shardings
from flaxformer_lite import config, init_state, make_train_step
from flaxformer_lite.models.base import Model
from flaxformer_lite.sharding import AXES
from flaxformer_lite.training.batch import BATCH_ARRAYS

# A model has about 28 d_model² (layers of one stack) + vocabulary · d_model parameters.
MODELS: dict[str, dict[str, int]] = {
    'wmt_base': dict(d_model=512, num_layers=6, num_heads=8),
    'wmt_big': dict(d_model=1024, num_layers=6, num_heads=16),
    '1 billion': dict(d_model=2048, num_layers=8, num_heads=16),
    '3 billion': dict(d_model=3072, num_layers=11, num_heads=24),
    '10 billion': dict(d_model=5120, num_layers=14, num_heads=40),
}
VOCABULARY = 32_768
ROWS, LENGTH = 8, 256  # of the batch, for each device that divides rows
# The devices along the axes data, fsdp, tensor.
MESHES = ((8, 1, 1), (1, 8, 1), (1, 32, 1), (1, 8, 4), (1, 64, 1), (4, 64, 1))
TOPOLOGIES = {8: 'v5e:2x4', 32: 'v5e:4x8', 64: 'v5e:8x8', 256: 'v5e:16x16'}
REMAT = ('none', 'blocks')
FIGURES = ('state GB', 'step GB', 'sum GB')
BYTES = {'bf16': 2, 'f32': 4, 's32': 4, 'u32': 4, 'pred': 1}
_COLLECTIVE = re.compile(
    r' = (.*?) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)'
    r'(?:-start)?\(.*?channel_id=(\d+)'
)
_SHAPE = re.compile(r'\b([a-z]+\d*)\[([\d,]*)\]')


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--chip', choices=('cpu', 'v5e'), default='cpu')
    parser.add_argument('--models', nargs='+', choices=MODELS, default=list(MODELS)[1:])
    parser.add_argument('--devices', nargs='+', type=int, default=list(TOPOLOGIES))
    parser.add_argument('--mesh', nargs=3, type=int, help='a single mesh')
    parser.add_argument('--rows', type=int, default=ROWS, help='of a device')
    parser.add_argument('--length', type=int, default=LENGTH)
    parser.add_argument('--layers', type=int, help="by default the model's")
    parser.add_argument('--remat', nargs='+', choices=REMAT, default=list(REMAT))
    parser.add_argument(
        '--separate_layers', action='store_true', help='by default one loop of them'
    )
    parser.add_argument('--collectives', action='store_true')
    parser.add_argument('--limit', type=float, default=300, help='seconds of a case')
    parser.add_argument('--case', type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case is not None:
        print(json.dumps(figures(args.chip, args.case)))
        return
    rows = []
    for case in cases(args):
        found = in_a_process(args.chip, case, args.limit)
        row = [case['model'], *case['sizes'], case['remat'], *found]
        rows.append(row)
        print(*row, file=sys.stderr, flush=True)
    heads = ['of a device'] if args.collectives else FIGURES
    print(console.table(['model', *AXES, 'remat', *heads], rows))


def cases(args: argparse.Namespace) -> list[dict[str, Any]]:
    found = []
    for model in args.models:
        for sizes in [args.mesh] if args.mesh else MESHES:
            for remat in args.remat:
                if math.prod(sizes) in args.devices:
                    case = dict(model=model, sizes=sizes, remat=remat)
                    case['rows'] = args.rows
                    case['length'] = args.length
                    case['layers'] = args.layers
                    case['scan_layers'] = not args.separate_layers
                    case['collectives'] = args.collectives
                    found.append(case)
    return found


def in_a_process(chip: str, case: dict[str, Any], limit: float) -> list[str]:
    devices = math.prod(case['sizes'])
    flags = f'--xla_force_host_platform_device_count={devices if chip == "cpu" else 1}'
    environment = os.environ | {'XLA_FLAGS': flags, 'JAX_PLATFORMS': 'cpu'}
    command = [sys.executable, '-m', 'benchmarks.mesh_memory', f'--chip={chip}']
    command.append(f'--case={json.dumps(case)}')
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=limit
        )
    except subprocess.TimeoutExpired:
        return _missing(case, f'not within {limit:.0f} s')
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    if 'RESOURCE_EXHAUSTED' in done.stderr:
        return _missing(case, 'more than there is')
    raise RuntimeError(done.stderr)


def _missing(case: dict[str, Any], why: str) -> list[str]:
    return [why] if case['collectives'] else ['', '', why]


def figures(chip: str, case: dict[str, Any]) -> list[str]:
    """Returns gigabytes per device: state, additional memory of a step, and their sum.

    With `collectives`, returns its FLOPs and collectives instead.
    """
    devices = _devices(chip, case['sizes'])
    mesh = Mesh(devices, AXES, axis_types=(AxisType.Auto,) * len(AXES))
    model = _model(case['model'], case['layers'], case['scan_layers'])
    shape = case['rows'], case['length']
    program = compiled(DeviceMesh(mesh), model, case['remat'], shape)
    if case['collectives']:
        tera = program.cost_analysis()['flops'] / 1e12
        return [f'{tera:.3f} TFLOPs, {collectives(program.as_text() or "")}']
    memory = program.memory_analysis()
    assert memory is not None
    state = memory.argument_size_in_bytes
    step = memory.temp_size_in_bytes
    step += memory.output_size_in_bytes - memory.alias_size_in_bytes
    return [f'{size / 1e9:.2f}' for size in (state, step, state + step)]


def collectives(text: str) -> str:
    found: dict[tuple[str, str], list[int]] = {}
    for line in text.splitlines():
        match = _COLLECTIVE.search(line)
        if not match:
            continue
        result, kind, channel = match.groups()
        # All computations of an asynchronous gather name its channel.
        which = channel if kind == 'all-gather' else line
        found[kind, which] = [
            BYTES[dtype] * math.prod(int(size) for size in axes.split(',') if size)
            for dtype, axes in _SHAPE.findall(result)
        ]
    parts = []
    for kind in sorted({kind for kind, _ in found}):
        sizes = [sum(sizes) for (of, _), sizes in found.items() if of == kind]
        parts.append(f'{len(sizes)} {kind} of {sum(sizes) / 1e6:.1f} MB')
    return ', '.join(parts) or 'none'


def compiled(
    devices: DeviceMesh, model: Model, remat: str, shape: tuple[int, int]
) -> jax.stages.Compiled:
    optimizer = optax.adam(1e-4)
    key = jax.eval_shape(jax.random.key, 0)
    state = jax.eval_shape(lambda key: init_state(model, optimizer, key), key)
    rows, length = shape
    array = jax.ShapeDtypeStruct((rows * devices.row_shards, length), jnp.int32)
    everywhere = devices.everywhere()
    arguments = (
        attach_shardings(state, devices.state(state)),
        attach_shardings(dict.fromkeys(BATCH_ARRAYS, array), devices.rows()),
        attach_shardings(key, everywhere),
    )
    step = jax.jit(
        make_train_step(model, optimizer, remat=remat),
        donate_argnums=0,
        out_shardings=(devices.state(state), everywhere),
    )
    with jax.set_mesh(devices.mesh):
        return step.lower(*arguments).compile()


def model_fields(name: str) -> dict[str, Any]:
    sizes = MODELS[name]
    others = dict(dtype='bfloat16', residual='pre_norm', scan_layers=True)
    return sizes | {'d_ff': 4 * sizes['d_model']} | others


def _model(name: str, layers: int | None, scan_layers: bool) -> Model:
    fields = model_fields(name) | {'scan_layers': scan_layers}
    if layers is not None:
        fields['num_layers'] = layers
    return config.build(fields, VOCABULARY)


def _devices(chip: str, sizes: list[int]) -> np.ndarray:
    if chip == 'cpu':
        devices = jax.devices()
    else:
        name = TOPOLOGIES[math.prod(sizes)]
        devices = topologies.get_topology_desc(name, 'tpu').devices
    return np.array(devices).reshape(sizes)


if __name__ == '__main__':
    main()
