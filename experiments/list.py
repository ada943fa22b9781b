"""Lists the runs in folders: progress, score, and time since the last change.

python -m experiments.list [runs/] [--watch]
"""

# PYTHON_ARGCOMPLETE_OK
if __name__ == '__main__':
    from experiments.command_line import command

    command.run('experiments.list')

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from experiments import errors, storage
from experiments.command_line import console, flags
from experiments.errors import UserError
from experiments.runs import directory, metrics_log, reading
from experiments.runs.reading import Run

_INTERVAL = 2.0  # seconds between updates
_CLEAR = '\033[H\033[J'  # clears a terminal


def main() -> None:
    parser = flags.Parser(__doc__)
    parser.add_argument(
        'folders',
        nargs='*',
        type=Path,
        default=[directory.RUNS],
        help='runs, or directories of runs; default: runs/',
    )
    parser.add_argument(
        '--watch',
        action='store_true',
        help='refresh every two seconds until Ctrl-C',
    )
    args = parser.parse_args()
    print(listing(args.folders))
    while args.watch:
        time.sleep(_INTERVAL)
        found = listing(args.folders)
        if sys.stdout.isatty():
            print(_CLEAR, end='', file=console.exact(sys.stdout))
        print(found, flush=True)


def listing(folders: Sequence[Path]) -> str:
    """Returns a table of the runs, the most recently changed first."""
    paths = [path for folder in folders for path in reading.runs_in(folder)]
    if not paths:
        names = ', '.join(map(str, folders))
        is_there = any(map(storage.exists, folders))
        problem = 'no run found' if is_there else 'no such directory'
        raise UserError(f'{names}: {problem}. Pass a directory of runs, such as runs/.')
    rows = sorted(map(_row, dict.fromkeys(paths)), key=lambda row: row[0])
    ages = [[_age(seconds), *cells] for seconds, *cells in rows]
    return console.table(['age', 'status', 'step', 'steps', 'score', 'run'], ages)


def _row(path: Path) -> tuple[float, str, int | None, int | None, str, Path]:
    names = [directory.CONFIG, metrics_log.NAME, directory.RESULT]
    files = [path / name for name in names]
    moved = [file.stat().st_mtime for file in files if file.exists()]
    age = time.time() - max(moved)
    try:
        run = reading.read_run(path)
    except UserError as error:
        return age, f'damaged: {errors.line(error)}', None, None, '', path
    step = run.result.get('step')
    steps = run.config.get('train.steps') or None
    return age, run.status, step, steps, _score(run), path


def _score(run: Run) -> str:
    metric = run.metrics[0]
    for name, scores in reversed(run.evaluations.items()):
        if scores.get(metric) is not None:
            return f'{name} {metric} {console.score(scores[metric])}'
    return '-'


def _age(seconds: float) -> str:
    """Formats an age: `0:42`, `2:03:10`, or `3 d` from one day on."""
    days = int(seconds // 86_400)
    return f'{days} d' if days else console.duration(seconds)
