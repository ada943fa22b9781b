"""Peak memory of a training process, next to XLA's figures for its step.

    python -m benchmarks.memory
    python -m benchmarks.memory --adapters

Each config, a changed `configs/wmt_small.py` on `grammar`, trains for three steps in
its own process. `--adapters` only compiles training steps of NLLB-200 600M's size.
"""

import argparse
import functools
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import turns
from benchmarks.variants import NO_RUN, name
from experiments.command_line import console

CONFIGS: tuple[dict[str, Any], ...] = (
    {},
    {'model.d_model': 256, 'model.d_ff': 1024},
    {'model.d_model': 512, 'model.d_ff': 2048, 'model.num_layers': 6},
    {'batch.tokens': 2048},
    {'batch.tokens': 4096, 'model.dtype': 'bfloat16'},
    {'model.architecture': 'recurrent'},
    {'model.architecture': 'decoder_only', 'batch.tokens': 4096},
    {'model.feed_forward': 'mixture'},
)
STEPS = 3
# NLLB-200 distilled 600M, and its trained parameters.
NLLB = {
    'd_model': 1024,
    'num_layers': 12,
    'num_heads': 16,
    'd_ff': 4096,
    'attention_bias': True,
    'positions': 'sinusoidal_t2t(offset=2)',
    'residual': 'pre_norm',
    'tie': 'all',
    'scan_layers': True,
    'dtype': 'bfloat16',
}
VOCABULARY = 256_206
DENSE = (None, 'lora(rank=8)', 'lora(rank=8, dora=True)', 'lora(rank=8, on="")')
ROWS, LENGTH = 16, 128


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--changes', type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument('--adapters', action='store_true')
    args = parser.parse_args()
    if args.adapters:
        rows = []
        for dense in DENSE:
            rows.append([dense or 'all parameters', *compiled(dense)])
            print(*rows[-1], file=sys.stderr, flush=True)
        head = ['trained', 'millions', 'state GB', 'step GB', 'sum GB', 'checkpoint MB']
        print(console.table(head, rows))
        return
    if args.changes is not None:
        print(json.dumps(work(args.changes)))
        return
    rows = []
    with tempfile.TemporaryDirectory() as cache:
        for changes in CONFIGS:
            found = measured(changes, cache)
            row = [name(changes), *found.values()]
            rows.append(row)
            print(*row, file=sys.stderr, flush=True)
    head = ['config', 'arrays MB', 'to work with MB', 'peak MB']
    print(console.table(head, rows))


def compiled(dense: str | None) -> list[str]:
    """Returns XLA's figures of a training step with Adam, which isn't run."""
    import jax
    import jax.numpy as jnp
    import optax

    from flaxformer_lite import adapters, config, init_state, make_train_step
    from flaxformer_lite.training import freezing
    from flaxformer_lite.training.batch import BATCH_ARRAYS

    model = config.build(NLLB | {'dense': dense}, VOCABULARY)
    optimizer = optax.adam(1e-4)
    key = jax.eval_shape(jax.random.key, 0)

    def init(key, frozen=frozenset()):
        return init_state(model, optimizer, key, frozen=frozen)

    frozen = adapters.frozen_paths(model, jax.eval_shape(init, key).params)
    state = jax.eval_shape(functools.partial(init, frozen=frozen), key)
    array = jax.ShapeDtypeStruct((ROWS, LENGTH), jnp.int32)
    step = jax.jit(make_train_step(model, optimizer, frozen=frozen), donate_argnums=0)
    program = step.lower(state, dict.fromkeys(BATCH_ARRAYS, array), key).compile()
    by_xla: Any = program.memory_analysis()
    extra = by_xla.output_size_in_bytes - by_xla.alias_size_in_bytes
    sizes = [by_xla.argument_size_in_bytes, by_xla.temp_size_in_bytes + extra]
    trained, _ = freezing.split(state.params, frozen)
    number = sum(x.size for x in jax.tree.leaves(trained))
    saved = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state.opt_state))
    saved += 4 * number
    gigabytes = [f'{size / 1e9:.2f}' for size in (*sizes, sum(sizes))]
    return [f'{number / 1e6:.2f}', *gigabytes, f'{saved / 1e6:.1f}']


def measured(changes: dict[str, Any], cache: str) -> dict[str, float]:
    """Measures a config in its own process, without cached programs."""
    shutil.rmtree(Path(cache) / 'programs', ignore_errors=True)
    environment = os.environ | {'FLAXFORMER_LITE_CACHE': cache}
    arguments = ['-m', 'benchmarks.memory', f'--changes={json.dumps(changes)}']
    done = subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def work(changes: dict[str, Any]) -> dict[str, float]:
    from experiments.runtime import memory

    memory.keep_freed()  # as every command does
    import jax

    from configs import wmt_small
    from experiments.command_line.screen import Screen
    from experiments.config import load
    from experiments.data.batches import Position
    from experiments.runtime import compilation, mesh
    from experiments.training import setup
    from flaxformer_lite.training.train_step import init_state, make_train_step

    file = wmt_small.get_config()
    load.fill(file)
    file.update_from_flattened_dict(changes)
    config = load.from_config_dict(file)
    made = setup.prepare(config, NO_RUN, Screen(sys.stderr))
    init = functools.partial(init_state, made.model, made.programs.update)
    state, key = jax.jit(init)(jax.random.key(0)), jax.random.key(1)
    step = make_train_step(made.model, made.programs.update)
    jitted = jax.jit(step, donate_argnums=0)
    batches = itertools.islice(made.batches.iterate(Position()), STEPS)
    placed = [jax.device_put(batch, mesh.make_mesh().rows()) for batch, _ in batches]
    program = compilation.compile_program(jitted, state, placed[0], key)
    for batch in placed:
        state, metrics = program(state, batch, key)
        jax.block_until_ready(metrics)
    by_xla: Any = program.memory_analysis()
    return {
        'arrays': by_xla.argument_size_in_bytes / 1e6,
        'to work with': by_xla.temp_size_in_bytes / 1e6,
        'peak': turns.peak_megabytes(),
    }


if __name__ == '__main__':
    main()
