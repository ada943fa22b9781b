"""How long it takes to build and describe a model: each variant in a config, the slowest first.

    python -m benchmarks.describe --config=configs/wmt_big.py

Nothing is compiled. JAX forgets between two of them what it has traced; imports are done before.
Medians of three.
"""

import statistics
import time

import jax

from benchmarks.variants import name, variants
from experiments.command_line import console, flags
from experiments.costs.ledger import ledger


def main() -> None:
    _, settings = flags.parse(flags.Parser(__doc__))
    settings.config.optimizer.schedule = (
        'cosine(peak=1e-3)'  # one that suits all of them
    )
    ledger(settings.config)  # what is read and made once in a process
    rows = []
    for changes in variants():
        times = []
        for _ in range(3):
            config = settings.config.copy_and_resolve_references()
            config.model.update(changes)
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
