"""Every variant in the small model: time per step, memory, parameters and dev loss.

    python -m benchmarks.variants --data='text(path="…", source="en", target="de")'
        --steps=250
    python -m benchmarks.variants --only=modern --steps=60 --rounds=3

Each variant trains in its own process, on the same batches. `modern` are the arms of
`configs/sweeps/modern.py`. On a GPU, take a larger config, such as `wmt_base_bf16`.
`--variant` measures the fields of a JSON object alone.
"""

import argparse
import functools
import importlib
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from benchmarks import turns
from benchmarks.turns import Side
from configs.sweeps import modern
from experiments.config import load
from experiments.config.schema import ExperimentConfig
from experiments.runtime import memory

OTHERS = (
    {'num_kv_heads': 1},
    {'projections': False},
    {'block': 'parallel'},
    {'dropout_kind': 'tokens'},
    {'head_dropout': 0.1},
    {'layer_drop': 0.1},
    {'scale_embeddings': False},
    {'tie': 'decoder'},
    {'tie': 'none'},
)
# The base's own variants, and those that need a GPU.
_BASE = {
    ('architecture', 'encoder_decoder'),
    ('attention', 'softmax'),
    ('attention', 'flash'),
    ('positions', 'sinusoidal'),
    ('norm', 'layer'),
    ('residual', 'pre_norm'),
    ('feed_forward', 'relu'),
    ('init', 'xavier'),
    ('block', 'sequential'),
}

MODEL = 'model.'  # the section of the fields above
NO_RUN = Path('nowhere')  # no run to resume


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--config', default='wmt_small', help='a file of configs/')
    parser.add_argument(
        '--data', default='grammar', help='a data source, like config.data'
    )
    parser.add_argument('--steps', type=int, default=2000)
    parser.add_argument(
        '--only',
        type=_only,
        default='',
        help='fields, comma-separated, or modern; empty: all',
    )
    parser.add_argument('--rounds', type=int, default=1, help='runs of each variant')
    parser.add_argument('--variant', type=json.loads, metavar='JSON')
    args = parser.parse_args()
    if args.variant is not None:
        print(json.dumps(work(args)))
        return
    if args.only == 'modern':
        found = modern_parts(args.config)
    else:
        found = {name(v): v for v in variants(args.only)}
    sides = [Side(title, (f'--variant={json.dumps(v)}',)) for title, v in found.items()]
    results = turns.take('benchmarks.variants', sides, args.rounds)
    print(turns.table(results, 'tokens/s', 'CPU ms a step'))


def _only(text: str) -> str:
    from flaxformer_lite.config.variants import FOLDERS

    unknown = set(text.split(',')) - {'', *FOLDERS}
    if unknown and text != 'modern':
        raise argparse.ArgumentTypeError(
            f'unknown {", ".join(sorted(unknown))}. Pass modern, or fields of '
            f'{", ".join(sorted(FOLDERS))}.'
        )
    return text


def name(variant: dict[str, Any]) -> str:
    changes = [
        f'{field.removeprefix(MODEL)}={value}' for field, value in variant.items()
    ]
    return ', '.join(changes) or 'as it is'


def variants(only: str = '') -> list[dict[str, Any]]:
    from flaxformer_lite.config.variants import FOLDERS, names

    found: list[dict[str, Any]] = [{}]
    for field in only.split(',') if only else FOLDERS:
        if '.' not in field:  # they use the same files
            found += [
                {field: name} for name in names(field) if (field, name) not in _BASE
            ]
    found += [] if only else OTHERS
    return [
        {MODEL + field: value for field, value in variant.items()} for variant in found
    ]


def modern_parts(name: str) -> dict[str, dict[str, Any]]:
    """Returns the arms of the sweep `modern` at the width of a config."""
    return modern.parts(_config_dict(name).model.d_model)


def _config_dict(name: str) -> ConfigDict:
    return importlib.import_module(f'configs.{name}').get_config()


def config_of(
    name: str, data: str, steps: int, variant: dict[str, Any]
) -> ExperimentConfig:
    config = _config_dict(name)
    load.fill(config)
    changes = {
        'data': data,
        'train.steps': steps,
        'optimizer.schedule': 'cosine(peak=2e-3, warmup=0.15)',
        'model.residual': 'pre_norm',
    }
    load.override(config, changes | variant)
    return load.from_config_dict(config)


def work(args: argparse.Namespace) -> dict[str, float]:
    memory.keep_freed()  # as every command does
    import jax

    from experiments.command_line.screen import Screen
    from experiments.data.batches import Position
    from experiments.data.prefetch import prefetch
    from experiments.runtime import compilation, mesh
    from experiments.training import result, setup
    from experiments.training.metrics import Progress
    from flaxformer_lite.training.train_step import init_state, make_train_step

    compilation.use_cache()
    config = config_of(args.config, args.data, args.steps, args.variant)
    made = setup.prepare(config, NO_RUN, Screen(sys.stderr))
    init = functools.partial(init_state, made.model, made.programs.update)
    state, key = jax.jit(init)(jax.random.key(0)), jax.random.key(1)
    step = make_train_step(made.model, made.programs.update)
    jitted = jax.jit(step, donate_argnums=0)
    programs, figures, flops = {}, Progress(text=''), 0.0
    seconds = 0.0  # of the CPU
    start = time.process_time()
    for batch, after in itertools.islice(
        prefetch(made.batches.iterate(Position())), args.steps
    ):
        batch, shape = (
            jax.device_put(batch, mesh.make_mesh().rows()),
            batch['labels'].shape,
        )
        if shape not in programs:
            figures.settle()
            began = time.process_time()
            programs[shape] = compilation.compile_program(jitted, state, batch, key)
            seconds -= time.process_time() - began
            figures.start_clock()
        state, metrics = programs[shape](state, batch, key)
        figures.add(0, after, metrics)
        flops += programs[shape].cost_analysis()['flops']
    figures.settle()
    seconds += time.process_time() - start
    peak = turns.peak_megabytes()
    by_xla = [program.memory_analysis() for program in programs.values()]
    dev = made.evaluator.loss(state.variables, made.dev[1])
    return {
        'parameters': result.count_parameters(state.params),
        'ms a step': 1000 * figures.seconds / args.steps,
        'GFLOP a step': flops / 1e9 / args.steps,
        'CPU ms a step': 1000 * seconds / args.steps,
        'tokens/s': figures.tokens / figures.seconds,
        'tokens': figures.tokens,
        'arrays MB': max(x.argument_size_in_bytes for x in by_xla) / 1e6,
        'to work with MB': max(x.temp_size_in_bytes for x in by_xla) / 1e6,
        'peak MB': peak,
        'dev loss': dev['loss'],
    }


if __name__ == '__main__':
    sys.exit(main())
