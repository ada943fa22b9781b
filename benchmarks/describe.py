"""Time to build and describe a model: each variant in a config, the slowest first.

    python -m benchmarks.describe --config=configs/wmt_big.py

It doesn't compile. JAX's trace caches are cleared before each run, and imports are done
in advance. Times are medians of three.
"""

import dataclasses
import statistics
import time

import jax

from benchmarks.variants import name, variants
from experiments.command_line import console, flags
from experiments.config.schema import OptimizerConfig
from experiments.costs.ledger import ledger


def main() -> None:
    _, settings = flags.parse(flags.Parser(__doc__))
    # A schedule that suits all variants.
    optimizer = OptimizerConfig(schedule='cosine(peak=1e-3)')
    base = dataclasses.replace(settings.config, optimizer=optimizer)
    ledger(base)  # reads and creates what is cached once per process
    rows = []
    for changes in variants():
        times = []
        for _ in range(3):
            model = dataclasses.replace(base.model, **changes)
            config = dataclasses.replace(base, model=model)
            jax.clear_caches()
            start = time.perf_counter()
            ledger(config)
            times.append(time.perf_counter() - start)
        rows.append((statistics.median(times), name(changes)))
    shown = [
        [label, f'{seconds:.2f}'] for seconds, label in sorted(rows, reverse=True)[:5]
    ]
    print(console.table(['variant', 'seconds'], shown))


if __name__ == '__main__':
    flags.main(main)
