"""Sides that take turns in their own processes: medians, and ratios within a round."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any, NamedTuple

from experiments.command_line import console


class Side(NamedTuple):
    """One of the compared sides: the arguments of its process, and its variables."""

    name: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = {}


Results = dict[str, list[dict[str, Any]]]


def take(module: str, sides: Iterable[Side], rounds: int) -> Results:
    """Runs the sides' processes in rounds.

    A child's peak memory starts at its parent's, so keep this process small.
    """
    sides = list(sides)
    results: Results = {side.name: [] for side in sides}
    for number in range(rounds):
        for side in sides:
            result = run(module, side)
            results[side.name].append(result)
            shown = '  '.join(
                f'{key} {console.cell(value)}' for key, value in result.items()
            )
            print(
                f'round {number + 1}/{rounds}  {side.name}: {shown}',
                file=sys.stderr,
                flush=True,
            )
    return results


def run(module: str, side: Side) -> dict[str, Any]:
    command = [sys.executable, '-m', module, *sys.argv[1:], *side.arguments]
    done = subprocess.run(
        command,
        env=os.environ | side.environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def table(results: Results, *rates: str) -> str:
    first = next(iter(results.values()))
    keys = list(dict.fromkeys(key for rows in results.values() for key in rows[0]))
    lines = []
    for name, rows in results.items():
        pairs = list(zip(first, rows, strict=True))
        ratios = [
            median(ours[rate] / theirs[rate] for ours, theirs in pairs)
            for rate in rates
        ]
        values = [median(r[k] for r in rows) if k in rows[0] else None for k in keys]
        lines.append([name, *(f'{ratio:.2f}' for ratio in ratios), *values])
    names = [f'ratio of {rate}' for rate in rates]
    return console.table(['side', *names, *keys], lines)


def peak_megabytes() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == 'darwin' else 1024) / 1e6
