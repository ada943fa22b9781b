"""Several seeds in one program beside one by one: training steps of a run a second.

    python -m benchmarks.seeds --seeds=8
    python -m benchmarks.seeds --config.model.d_model=48 --config.batch.tokens=384

Both are the runner's own programs, on the batches of `configs/wmt_small.py` with any
field overridden. They take turns; the ratio is the median of the rounds' ratios.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import jax

from experiments.command_line import flags
from experiments.command_line.screen import Screen
from experiments.command_line.stopping import Stop
from experiments.config import schema
from experiments.data.batches import Position
from experiments.runtime import malloc
from experiments.training import setup
from experiments.training.programs import Programs
from experiments.training.setup import RunSetup

WARM_UP = 2  # steps that are not timed


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--seeds', type=int, default=8)
    parser.add_argument('--steps', type=int, default=10, help='timed in each round')
    parser.add_argument('--rounds', type=int, default=3)
    args, overrides = parser.parse_known_args()
    config = flags.settings('configs/wmt_small.py', overrides).config
    with tempfile.TemporaryDirectory() as folder:
        runs = [
            (schema.with_seed(config, seed), Path(folder) / str(seed))
            for seed in range(args.seeds)
        ]
        setups = setup.prepare_seeds(runs, Screen(sys.stderr), Stop())
    alone = Timed(setups[:1])
    together = Timed(setups)
    ratios = []
    for _ in range(args.rounds):
        seconds_alone = alone.seconds(args.steps)
        seconds_together = together.seconds(args.steps)
        ratios.append(args.seeds * seconds_alone / seconds_together)
        print(
            f'one by one {1 / seconds_alone:.2f} steps/s, {args.seeds} at once '
            f'{args.seeds / seconds_together:.2f}, ratio {ratios[-1]:.2f}'
        )
    print(f'median of the ratios: {statistics.median(ratios):.2f}')


class Timed:
    """The training of some seeds by one program, timed."""

    def __init__(self, setups: list[RunSetup]):
        parts = Programs(setups[0], len(setups))
        shapes = setups[0].batches.shapes
        parts.compile_steps(shapes)
        keys = [jax.random.key(seed) for seed in range(len(setups))]
        self._state = parts.stack([parts.first_state(key) for key in keys])
        self._key = parts.stack(keys)
        batches = [next(s.batches.iterate(Position()))[0] for s in setups]
        self._batch = parts.place_batches(dict(enumerate(batches)))
        self._moves = [jax.numpy.ones(len(setups), bool)] if len(setups) > 1 else []
        self._program = parts.step(shapes[0]).result()
        self.seconds(WARM_UP)

    def seconds(self, steps: int) -> float:
        """The mean time of a step."""
        began = time.perf_counter()
        for _ in range(steps):
            arguments = (self._state, self._batch, self._key, *self._moves)
            self._state, _ = self._program(*arguments)
        jax.block_until_ready(self._state)
        return (time.perf_counter() - began) / steps


if __name__ == '__main__':
    malloc.use_huge_pages()
    main()
