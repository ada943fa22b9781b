"""Waits of training steps for their batches, with a device much faster than this one.

    python -m benchmarks.feeding --step_ms=6.4

Uses the runner's batches and prefetching, and a step that only sleeps. A step waits if
its batch isn't on the device when it is requested. On two cores a step of `wmt_small`
with 4,096 tokens takes 640 ms; the default is a hundred times shorter.
"""

import argparse
import contextlib
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from experiments.command_line import console
from experiments.data.batches import Batches, Position
from experiments.data.corpus import Corpus, RaggedArray
from experiments.data.prefetch import prefetch
from experiments.runtime import mesh


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--step_ms', type=float, default=6.4)
    parser.add_argument('--pairs', type=int, default=1_000_000)
    parser.add_argument('--tokens', type=int, default=4096)
    parser.add_argument('--windows', type=int, default=4)
    args = parser.parse_args()
    batches = Batches(
        made_up(args.pairs), tokens=args.tokens, max_length=128, packed=True
    )
    began = time.process_time()
    waits = simulate(batches, args.step_ms / 1000, args.windows)
    processor = (time.process_time() - began) / len(waits) * 1000
    # The first batches are made before training, during compilation.
    waits = np.array(waits[1:]) * 1000
    late = waits[waits > 0]
    facts = {
        'steps': len(waits),
        'of a window': round(len(waits) / args.windows),
        'processor time of a step, ms': processor,
        'waited': len(late),
        'longest wait, ms': late.max(initial=0),
        'all waits, share of the time': late.sum() / (len(waits) * args.step_ms),
    }
    print(console.facts(facts))


def made_up(pairs: int) -> Corpus:
    """Returns pairs of random ids with the lengths of typical sentences."""
    rng = np.random.default_rng(0)
    sides = []
    for _ in range(2):
        lengths = np.clip(rng.lognormal(3.1, 0.5, pairs), 1, 127).astype(np.int64)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        tokens = rng.integers(4, 8000, offsets[-1], np.uint16)
        sides.append(RaggedArray(tokens, offsets))
    return Corpus(*sides)


def simulate(batches: Batches, step: float, windows: int) -> list[float]:
    """Returns the seconds that each step waits for its batch."""
    devices = mesh.make_mesh()

    def placed() -> Iterator[tuple[Any, Position]]:
        for batch, after in batches.iterate(Position(), devices.own_rows):
            yield devices.put_rows(batch), after

    waits = []
    with contextlib.closing(prefetch(placed())) as source:
        position = Position()
        while position[:2] < (0, windows):
            began = time.perf_counter()
            batch, position = next(source)
            jax.block_until_ready(batch)
            waits.append(time.perf_counter() - began)
            time.sleep(step)
    return waits


if __name__ == '__main__':
    main()
