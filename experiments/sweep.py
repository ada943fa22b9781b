"""Makes the runs of a sweep: a question, its arms and seeds, as a file says them.

The same command again goes on with what is not finished yet.

python -m experiments.sweep --config=configs/sweeps/table3_small.py --workers=2
"""

import argparse
import contextlib
import sys
import time
from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import Any, NoReturn

from experiments.command_line import console, flags
from experiments.command_line.screen import Screen
from experiments.command_line.stopping import Stop, Stopped
from experiments.runtime import malloc
from experiments.sweeps import launch, outcome, schema
from experiments.sweeps.progress import Progress
from experiments.sweeps.schema import Cell, Sweep


def main() -> None:
    args = _parser().parse_args()
    sweep = schema.load(args.config)
    cells = schema.cells(sweep)
    stop = Stop()
    with (
        stop.listening(),
        contextlib.closing(Screen()) as screen,
    ):
        try:
            stop.wait_for(lambda: _check(cells, here=args.workers == 1))
            if args.dry_run:
                print(stop.wait_for(lambda: _plan(sweep, cells, args.workers)))
                return
            if args.launcher == 'slurm':
                print(_submit(sweep, cells, args))
                return
            errors = _make(sweep, cells, args.workers, screen, stop)
        except Stopped as stopped:
            screen.close()
            _leave(str(stopped), stop)
    print(_summary(sweep, cells))
    _exit(cells, errors)


def _parser() -> flags.Parser:
    parser = flags.Parser(__doc__)
    parser.add_argument(
        '--config', required=True, help='file, such as configs/sweeps/table3_small.py'
    )
    parser.add_argument(
        '--workers',
        type=_positive,
        default=1,
        help='processes that share the runs, and the cores or GPUs here',
    )
    parser.add_argument(
        '--dry_run', action='store_true', help='show what would run and what it costs'
    )
    parser.add_argument(
        '--launcher',
        choices=('local', 'slurm'),
        default='local',
        help='slurm: queue the workers as a job array, and do not wait',
    )
    parser.add_argument(
        '--slurm',
        nargs='+',
        type=_parameter,
        default=[],
        metavar='NAME=VALUE',
        help="submitit's parameters: partition=gpu time=240 gpus_per_node=1",
    )
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f'{text!r} is no whole number from 1')
    return int(text)


def _parameter(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition('=')
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f'{text!r} is not NAME=VALUE')
    return name, int(value) if value.isdecimal() else value


def _check(cells: Sequence[Cell], here: bool) -> None:
    import jax

    from experiments.sweeps import check

    if not here:
        # The workers' GPUs are not this process's to take.
        jax.config.update('jax_platforms', 'cpu')
    check.check_cells(cells)


def _plan(sweep: Sweep, cells: Sequence[Cell], workers: int) -> str:
    from experiments.sweeps import estimate

    costs, how = estimate.costs(cells)
    seconds = estimate.seconds_left(cells, costs)
    time_left = console.duration(seconds / workers)
    return '\n'.join(
        [
            _heading(sweep, cells),
            estimate.table(cells, costs),
            how,
            f'left: about {time_left} with {workers} of --workers, if they do not '
            'slow each other down',
        ]
    )


def _heading(sweep: Sweep, cells: Sequence[Cell]) -> str:
    return console.facts(
        {
            'sweep': sweep.name,
            'question': sweep.question,
            'source': sweep.source,
            'runs': f'{len(cells)}: {len(sweep.arms)} arms × {len(sweep.seeds)} seeds',
            'base': sweep.base,
            'measure': sweep.measure,
        }
    )


def _submit(sweep: Sweep, cells: Sequence[Cell], args: Any) -> str:
    folder = launch.log_folder(sweep.name)
    team = launch.workers(cells, args.workers, time.time(), here=False)
    ids = launch.slurm(team, folder, sweep.name, dict(args.slurm))
    return (
        f'queued as {", ".join(ids)}; logs: {folder}/; --dry_run shows which runs are '
        'finished'
    )


def _make(
    sweep: Sweep, cells: Sequence[Cell], workers: int, screen: Screen, stop: Stop
) -> dict[str, str]:
    """Makes all runs here; returns the errors of those that could not be begun."""
    folder = launch.log_folder(sweep.name)
    screen.say(_heading(sweep, cells))
    screen.say(f'logs: {folder}/')
    began = time.time()
    team = launch.workers(cells, workers, began, here=True)
    progress = Progress(cells, sweep.measure, screen, began)
    if workers == 1:
        return launch.in_process(team[0], folder / 'worker.log', progress, stop)
    return launch.local(team, folder, progress, stop)


def _summary(sweep: Sweep, cells: Sequence[Cell]) -> str:
    """A row for each arm: how its runs ended, and the mean of what is measured."""
    rows = []
    for arm in sweep.arms:
        own = [cell for cell in cells if cell.arm == arm]
        rows.append([arm, _ends(own), _mean_score(own, sweep.measure)])
    scores = [sweep.measure] if sweep.measure.endswith(('bleu', 'chrf')) else []
    return console.table(['arm', 'runs', sweep.measure], rows, scores)


def _ends(cells: Sequence[Cell]) -> str:
    """How many runs ended in which way: '2 finished, 1 diverged'."""
    counts = Counter(outcome.of(cell.path).status for cell in cells)
    return ', '.join(f'{count} {status}' for status, count in counts.items())


def _mean_score(cells: Sequence[Cell], measure: str) -> float | None:
    """Of the runs that have one."""
    found = [outcome.score(cell, measure) for cell in cells]
    known = [score for score in found if score is not None]
    return fmean(known) if known else None


def _exit(cells: Sequence[Cell], errors: dict[str, str]) -> None:
    """Ends with status 1 where not every run has finished."""
    for path, error in errors.items():
        print(f'{path}: {error}', file=sys.stderr)
    for cell in cells:
        status, message = outcome.of(cell.path)
        if status != outcome.FINISHED and str(cell.path) not in errors:
            print(f'{cell.path}: {status} {message}'.rstrip(), file=sys.stderr)
            errors[str(cell.path)] = status
    if errors:
        sys.exit(1)


def _leave(saved: str, stop: Stop) -> NoReturn:
    saved = f' and {saved}' if saved else ''
    print(f'stopped{saved}; the same command goes on from there')
    stop.leave()


if __name__ == '__main__':
    malloc.use_huge_pages()
    flags.main(main)
