"""Runs a sweep: a file that defines a question, its arms and its seeds.

Run the same command again to continue with unfinished runs.

python -m experiments.sweep --config=configs/sweeps/table3_small.py --workers=2
"""

# PYTHON_ARGCOMPLETE_OK
if __name__ == '__main__':
    from experiments.command_line import command

    command.run('experiments.sweep')

import dataclasses
import functools
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments.command_line import console, flags, stopping
from experiments.command_line.stopping import Stopped
from experiments.config.schema import OptimizerConfig
from experiments.errors import UserError, note, prefix_errors
from experiments.runs import directory, reading
from experiments.sweeps import planning, power, progress, workers
from experiments.sweeps.schema import PlannedRun, Sweep


def main() -> None:
    args = _parser().parse_args()
    _check_worker(args.worker)
    _check_dry_run(args)
    sweep = planning.load(args.config)
    if args.worker is not None:
        _work(sweep, *args.worker)
        return
    pilot = None
    if args.pilot is not None:
        pilot = power.read_pilot(args.pilot, sweep)
    _check_runs(sweep)
    idle = _idle_factors(sweep)
    _check_sets(sweep, args.dry_run)
    if args.dry_run:
        plan = progress.plan(sweep, args.costs)
        print(progress.heading(sweep), *idle, plan, sep='\n')
        print(power.text(sweep, pilot, str(args.pilot or '')))
        console.say_next(f'python -m experiments.sweep --config={args.config}')
    else:
        print(*idle, sep='\n', end='\n' if idle else '')
        _make_here(sweep, args.config, args.workers)


def _parser() -> flags.Parser:
    parser = flags.Parser(__doc__)
    parser.add_argument(
        '--config', required=True, help='file, such as configs/sweeps/table3_small.py'
    )
    parser.add_argument(
        '--workers',
        type=functools.partial(flags.whole_number, least=1),
        default=1,
        help='number of processes; they share the cores or GPUs of this machine',
    )
    parser.add_argument(
        '--dry_run',
        action='store_true',
        help='show the planned runs of each arm and their costs without running them',
    )
    parser.add_argument(
        '--costs',
        action='store_true',
        help='with --dry_run, count parameters and FLOPs of each arm; slow',
    )
    parser.add_argument(
        '--pilot',
        type=Path,
        help='with --dry_run, directory of a report whose scores estimate the power',
    )
    parser.add_argument(
        '--worker',
        type=flags.whole_number,
        nargs=2,
        metavar=('NUMBER', 'OF'),
        help='index of this worker (from 0) and number of workers, as in a job array',
    )
    return parser


def _check_worker(worker: Sequence[int] | None) -> None:
    if worker is not None and worker[0] >= worker[1]:
        number, of = worker
        raise UserError(
            f'--worker: NUMBER must be less than OF, not {number} {of}. For two '
            'workers, pass 0 2 and 1 2.'
        )


def _check_dry_run(args: Any) -> None:
    for flag in ('costs', 'pilot'):
        if getattr(args, flag) and not args.dry_run:
            raise UserError(f'--{flag}: has no effect without --dry_run. Add it.')


def _check_runs(sweep: Sweep) -> None:
    import jax

    from experiments.config import check, components

    jax.config.update('jax_platforms', 'cpu')  # leave the GPUs to the workers
    runs = sweep.all_runs
    for run in runs:
        directory.check_directory(run.path, run.config.to_dict())
    built = set()  # keys of built models, without the optimizer
    for run in {(run.arm, run.value): run for run in runs}.values():
        config = run.config
        others = dataclasses.replace(config, optimizer=OptimizerConfig())
        others = dataclasses.replace(
            others, train=dataclasses.replace(config.train, seed=0)
        )
        with prefix_errors(f'arm {run.arm!r}'):
            check.check_overrides(config, run.overridden_fields)
            if others in built:
                components.make_optimizer(config)
            else:
                components.build(config)
                built.add(others)


def _idle_factors(sweep: Sweep) -> list[str]:
    from experiments.config import check

    first = {run.arm: run for run in reversed(sweep.all_runs)}
    lines = []
    effective = set()
    for run in first.values():
        unused = check.unused_fields(run.config)
        effective |= sweep.crossed - unused.keys()
        for field in sorted(unused.keys() & run.overrides.keys() & sweep.crossed):
            value = run.overrides[field]
            reason = unused[field]
            lines.append(f'{run.arm}: {field}={value} has no effect if {reason}')
    for field in sorted(sweep.crossed - effective):
        if first:
            raise UserError(f'factors: {field} has no effect in any arm. Leave it out.')
    return lines


def _check_sets(sweep: Sweep, is_dry_run: bool) -> None:
    from experiments.data import sources
    from experiments.evaluation import sets

    by_data = {}
    for run in sweep.all_runs:
        scored = run.config.evaluation.sets
        measures = (run.measure, *run.further)
        by_data.setdefault((run.config.data, scored, measures), run)
    for (data, scored, measures), run in by_data.items():
        with prefix_errors(f'arm {run.arm!r}'):
            source = sources.load(data)
            if is_dry_run and source.may_download:
                continue
            found = sets.select(source.evaluation(), scored, 'evaluation.sets')
            for measure in measures:
                if measure.set not in found:
                    raise UserError(
                        f'measure={str(measure)!r}: unknown set {measure.set!r}. '
                        f'Choose one of {", ".join(found)}.'
                    )


def _work(sweep: Sweep, index: int, workers_in_all: int) -> None:
    workers.stop_with_parent()
    try:
        workers.make_all(sweep, index, workers_in_all)
    except Stopped as stopped:
        print(f'Stopped; {stopped}.', flush=True)
        stopping.end()


def _make_here(sweep: Sweep, config: str, number: int) -> None:
    """Starts workers on this machine; exits with status 1 if a run fails.

    Forwards a stop to the workers, and ends this process when all have saved.
    """
    folder = sweep.logs
    print(progress.heading(sweep))
    print(f'logs: {folder}/', flush=True)
    workers.forget_failures(sweep)
    sweep = planning.plan(sweep)
    reported = {run.path for run in sweep.all_runs if planning.has_ended(run)}
    if reported:
        total = progress.number_of_runs(sweep)
        print(f'{len(reported)} of {total} runs have already ended', flush=True)
    with stopping.delay_stop() as stop:
        is_open = True
        while is_open and not stop():
            sweep = _use_workers(sweep, reported, config, number, stop)
            is_open = _wait_for_others(sweep, stop)
        sweep = progress.say_ended(sweep, reported)
        if stop():
            print('Stopped. Rerun the command to continue.', flush=True)
    print(progress.summary(sweep))
    unfinished = _note_unfinished(sweep.all_runs, folder)
    console.say_next(f'python -m experiments.report --sweep={config} --out=report')
    if unfinished:
        sys.exit(1)


def _use_workers(
    sweep: Sweep,
    reported: set[Path],
    config: str,
    number: int,
    stop: Callable[[], bool],
) -> Sweep:
    processes = workers.start_here(config, number, sweep.logs)
    try:
        while not stop() and None in [process.poll() for process in processes]:
            time.sleep(0.5)
            sweep = progress.say_ended(sweep, reported)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.communicate()  # also closes its standard input
    return sweep


def _wait_for_others(sweep: Sweep, stop: Callable[[], bool]) -> bool:
    is_waiting = False
    while not stop():
        if reading.RUNNING not in {planning.outcome(x).status for x in sweep.all_runs}:
            break
        if not is_waiting:
            print('waiting for runs of other processes', flush=True)
        is_waiting = True
        time.sleep(0.5)
    return is_waiting


def _note_unfinished(runs: Sequence[PlannedRun], folder: Path) -> int:
    """Names the runs without a result, and returns their number."""
    outcomes = [(run.path, planning.outcome(run)) for run in runs]
    unfinished = [x for x in outcomes if x[1].status != reading.FINISHED]
    for path, ended in unfinished:
        why = ended.message or f'see the logs in {folder}/'
        note(f'{path}: {ended.status}: {why}')
    return len(unfinished)
