"""From the command to the end of the first training step, with empty and with full
caches.

    python -m benchmarks.start --config=configs/wmt_small.py

All flags but its own go to experiments.run. Cold: nothing is there of what the project
caches, the tokenizer, the tokenised text and compiled programs. Warm: they are there,
and the run is new.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from experiments.command_line import console

LIMIT = 600  # seconds, after which something must be wrong


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--rounds', type=int, default=3)
    args, flags = parser.parse_known_args()
    seconds: dict[str, list[float]] = {'cold': [], 'warm': []}
    for _ in range(args.rounds):
        with tempfile.TemporaryDirectory() as folder:
            for name, times in seconds.items():
                times.append(
                    first_step(flags, Path(folder) / 'cache', Path(folder) / name)
                )
    rows = [[name, median(times), *sorted(times)] for name, times in seconds.items()]
    print(console.table(['cache', 'median s', *[''] * args.rounds], rows))


def first_step(flags: list[str], cache: Path, workdir: Path) -> float:
    """Seconds from the command until the metrics of step 1 are written; then it is
    stopped."""
    command = [sys.executable, '-m', 'experiments.run', *flags]
    command += [f'--workdir={workdir}', '--config.train.log_every=1']
    environment = os.environ | {'FLAXFORMER_LITE_CACHE': str(cache)}
    metrics = workdir / 'metrics.jsonl'
    began = time.time()
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL
    ) as process:
        try:
            while not (metrics.exists() and metrics.read_bytes().count(b'\n')):
                if process.poll() is not None or time.time() - began > LIMIT:
                    sys.exit(
                        f'{" ".join(command)}: ended or hung before the first step'
                    )
                time.sleep(0.01)
        finally:
            process.kill()
    return json.loads(metrics.read_bytes().split(b'\n')[0])['time'] - began


if __name__ == '__main__':
    main()
