"""Time from the command to the end of the first training step, or of the run.

    python -m benchmarks.start --whole --config=configs/wmt_small.py

Measures with empty (cold) and full (warm) caches. Other flags are passed to
experiments.run.
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

LIMIT = 600  # seconds after which the command has failed


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument(
        '--whole', action='store_true', help='until the run has ended and is scored'
    )
    args, flags = parser.parse_known_args()
    measure = whole_run if args.whole else first_step
    seconds: dict[str, list[float]] = {'cold': [], 'warm': []}
    for _ in range(args.rounds):
        with tempfile.TemporaryDirectory() as folder:
            for name, times in seconds.items():
                times.append(
                    measure(flags, Path(folder) / 'cache', Path(folder) / name)
                )
    rows = [[name, median(times), *sorted(times)] for name, times in seconds.items()]
    print(console.table(['cache', 'median s', *[''] * args.rounds], rows))


def first_step(flags: list[str], cache: Path, workdir: Path) -> float:
    """Returns seconds from the command to the metrics of step 1, then stops it."""
    command = _command(flags, workdir) + ['--config.train.log_every=1']
    metrics = workdir / 'metrics.jsonl'
    began = time.time()
    with subprocess.Popen(
        command, env=_environment(cache), stdout=subprocess.DEVNULL
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


def whole_run(flags: list[str], cache: Path, workdir: Path) -> float:
    began = time.time()
    subprocess.run(
        _command(flags, workdir),
        env=_environment(cache),
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return time.time() - began


def _command(flags: list[str], workdir: Path) -> list[str]:
    return [sys.executable, '-m', 'experiments.run', *flags, f'--workdir={workdir}']


def _environment(cache: Path) -> dict[str, str]:
    return os.environ | {'FLAXFORMER_LITE_CACHE': str(cache)}


if __name__ == '__main__':
    main()
