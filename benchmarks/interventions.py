"""Speed of `generate` with and without an intervention, and of an earlier checkout.

    python -m benchmarks.interventions --before=PATH

`--before` is a checkout of an earlier commit.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import turns
from benchmarks.turns import Side

MODULE = 'benchmarks.interventions'
MODEL = dict(d_model=128, d_ff=512, num_layers=4, num_heads=4, residual='pre_norm')
ROWS, LENGTH, CALLS = 64, 24, 15
NAME = 'decoder/layer_1/cross_attention/z'


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--before', type=Path, help='checkout of an earlier commit')
    parser.add_argument('--beams', type=int, default=4, help='1: greedy')
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--worker', help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        print(json.dumps(work(args)))
        return
    names = ['before'] if args.before else []
    with tempfile.TemporaryDirectory() as cache:
        settings = {
            'JAX_COMPILATION_CACHE_DIR': cache,
            'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
        }
        sides = [
            Side(name, (f'--worker={name}',), settings) for name in [*names, 'now']
        ]
        results = turns.take(MODULE, sides, args.rounds)
    print(turns.table(results, 'CPU ms'))


def work(args: argparse.Namespace) -> dict[str, float]:
    if args.worker == 'before':
        sys.path.insert(0, str(args.before.resolve()))
    import jax
    import jax.numpy as jnp

    import flaxformer_lite

    model = flaxformer_lite.config.build(MODEL, vocab_size=4000)
    source_BS = jax.random.randint(jax.random.key(1), (ROWS, 12), 3, 4000, jnp.int32)
    inputs_BT = source_BS[:, :1]
    variables = jax.jit(model.init)(jax.random.key(0), source_BS, inputs_BT)
    strategy = flaxformer_lite.decoding.Greedy()
    if args.beams > 1:
        strategy = flaxformer_lite.decoding.BeamSearch(beams=args.beams)

    def call(**options: Any) -> tuple[float, float]:
        """Returns the CPU time and the wall time of a call, in ms."""
        began = time.process_time(), time.perf_counter()
        found = flaxformer_lite.generate(
            model, variables, source_BS, strategy, max_length=LENGTH, **options
        )
        jax.block_until_ready(found)
        ended = time.process_time(), time.perf_counter()
        return 1000 * (ended[0] - began[0]), 1000 * (ended[1] - began[1])

    call()  # compiles
    if args.worker == 'before':
        cpu, wall = zip(*(call() for _ in range(CALLS)), strict=True)
        return {'CPU ms': median(cpu), 'ms': median(wall)}
    half = flaxformer_lite.interventions.scale(0.5, heads=[3])
    options = {'interventions': {NAME: half}}
    call(**options)
    pairs = [call() + call(**options) for _ in range(CALLS)]
    cpu, wall, *_ = zip(*pairs, strict=True)
    return {
        'CPU ms': median(cpu),
        'ms': median(wall),
        'intervention / plain, CPU': median(x[2] / x[0] for x in pairs),
        'intervention / plain': median(x[3] / x[1] for x in pairs),
    }


if __name__ == '__main__':
    main()
