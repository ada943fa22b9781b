"""The workers of a sweep: processes that share its runs.

A worker is the sweep command with `--worker`. Every worker goes through all runs, and
the locks of the runs' directories keep workers apart, on any machine.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from experiments import storage
from experiments.command_line.screen import Screen
from experiments.command_line.stopping import Stopped
from experiments.errors import UserError, component_error, line
from experiments.runs import failure, reading
from experiments.sweeps import planning
from experiments.sweeps.schema import PlannedRun, Sweep

if TYPE_CHECKING:
    from experiments.runtime.compilation import ProgramCache

# Set for workers whose standard input is closed when the sweep's own process dies.
_STARTED_HERE = 'FLAXFORMER_LITE_STARTED_HERE'


def make_all(sweep: Sweep, index: int, workers: int) -> None:
    """Makes the runs of a sweep, and those that their results add."""
    from experiments.runtime.compilation import ProgramCache

    program_cache = ProgramCache()
    seen: set[Path] = set()
    while True:
        sweep = planning.plan(sweep)
        new = [run for run in sweep.all_runs if run.path not in seen]
        statuses = [planning.outcome(run).status for run in sweep.all_runs]
        if new:
            make_runs(new, index, workers, program_cache)
            seen.update(run.path for run in new)
        elif not sweep.ended and reading.RUNNING in statuses:
            time.sleep(1)  # wait for the result of another worker
        else:
            return


def make_runs(
    runs: Sequence[PlannedRun],
    index: int,
    workers: int,
    program_cache: 'ProgramCache | None' = None,
) -> None:
    """Makes the open runs in turn, also after a run fails.

    Each worker, numbered by `index`, starts at a different run. Raises Stopped once the
    interrupted run is saved.
    """
    start = len(runs) * index // workers
    for run in (*runs[start:], *runs[:start]):
        if planning.outcome(run).status in (reading.NOT_STARTED, reading.STOPPED):
            print(f'{run}: {run.path}', flush=True)
            _make_run(run, program_cache)


def _make_run(run: PlannedRun, program_cache: 'ProgramCache | None') -> None:
    from experiments.training import loop

    try:
        with contextlib.closing(Screen()) as screen:
            loop.run(
                run.config,
                run.path,
                run.overridden_fields,
                screen,
                program_cache=program_cache,
            )
    except Stopped:
        raise
    except storage.InUse:
        pass  # another worker has just started it
    except UserError as error:
        print('error:', line(error), flush=True)
    except Exception as error:
        found = component_error(error)
        if found is None:
            traceback.print_exc(file=sys.stdout)
        else:
            message, trace = found
            print(f'error: {message}\n{trace}', end='', flush=True)


def forget_failures(sweep: Sweep) -> None:
    """Lets failed runs be retried; diverged ones would diverge again."""
    for run in sweep.all_runs:
        if planning.outcome(run).status == reading.FAILED:
            storage.remove(run.path / failure.NAME)


def start_here(
    config: str, workers: int, folder: Path
) -> list['subprocess.Popen[bytes]']:
    """Starts workers on this machine, with their output in a folder.

    They stop when the returned objects or this process are gone.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, '-m', 'experiments.sweep', f'--config={config}']
    processes = []
    for index in range(workers):
        with (folder / f'worker{index}.log').open('ab') as log:
            process = subprocess.Popen(
                [*command, '--worker', f'{index}', f'{workers}'],
                env=os.environ | _environment(index, workers) | {_STARTED_HERE: '1'},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,  # the waiting process passes Ctrl-C on
            )
        _use_share_of_cores(process.pid, index, workers)
        processes.append(process)
    return processes


def stop_with_parent() -> None:
    if _STARTED_HERE in os.environ:
        threading.Thread(target=_wait_for_end_of_input, daemon=True).start()


def _wait_for_end_of_input() -> None:
    os.read(sys.stdin.fileno(), 1)
    os.kill(os.getpid(), signal.SIGTERM)


def _use_share_of_cores(process: int, index: int, workers: int) -> None:
    if not hasattr(os, 'sched_setaffinity'):
        return
    cores = sorted(os.sched_getaffinity(0))
    first = len(cores) * index // workers
    last = len(cores) * (index + 1) // workers
    if first < last:
        os.sched_setaffinity(process, cores[first:last])


def _environment(index: int, workers: int) -> dict[str, str]:
    """Returns variables that give each worker a GPU, without initializing one here."""
    gpus = os.environ.get('CUDA_VISIBLE_DEVICES', '').split(',')
    if not gpus[0] and shutil.which('nvidia-smi'):
        listed = subprocess.run(['nvidia-smi', '-L'], capture_output=True).stdout
        gpus = [str(number) for number in range(listed.count(b'GPU '))]
    if workers == 1 or not any(gpus):
        return {}
    environment = {'CUDA_VISIBLE_DEVICES': gpus[index % len(gpus)]}
    if len(gpus) < workers:
        # Otherwise the first process on a GPU reserves most of its memory.
        environment['XLA_PYTHON_CLIENT_PREALLOCATE'] = 'false'
    return environment
