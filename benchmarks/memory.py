"""Peak memory of a training process, next to XLA's figures for its step.

    python -m benchmarks.memory

Each config, a changed `configs/wmt_small.py` on `grammar`, trains for three steps in
its own process.
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
from benchmarks.training import HUGE
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--changes', type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
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


def measured(changes: dict[str, Any], cache: str) -> dict[str, float]:
    """Measures a config in its own process, without cached programs."""
    shutil.rmtree(Path(cache) / 'programs', ignore_errors=True)
    environment = os.environ | HUGE | {'FLAXFORMER_LITE_CACHE': cache}
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
    init = functools.partial(init_state, made.model, made.programs.optimizer)
    state, key = jax.jit(init)(jax.random.key(0)), jax.random.key(1)
    step = make_train_step(made.model, made.programs.optimizer)
    jitted = jax.jit(step, donate_argnums=0)
    batches = itertools.islice(made.batches.iterate(Position()), STEPS)
    placed = [jax.device_put(batch, mesh.make_mesh().rows()) for batch, _ in batches]
    program = compilation.compiled(jitted, state, placed[0], key)
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
