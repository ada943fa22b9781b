"""The workers of a sweep: processes which make the runs that nobody else makes.

A worker is the command of the sweep with `--worker`. It walks over all runs, so workers
need no scheduler: wherever they run, the locks of the runs' directories keep them
apart.
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

from experiments import storage
from experiments.command_line.screen import Screen
from experiments.command_line.stopping import Stopped
from experiments.errors import UserError, component_error, line
from experiments.runs import failure, reading
from experiments.sweeps import planning
from experiments.sweeps.schema import PlannedRun, Sweep

# Set for workers whose standard input is closed when the sweep's own process dies.
_STARTED_HERE = 'FLAXFORMER_LITE_STARTED_HERE'


def make_all(sweep: Sweep, index: int, workers: int) -> None:
    """Makes the runs of a sweep, and those that their results ask for.

    Args:
      sweep: as it is planned.
      index, workers: as `make_runs` has them.

    Raises:
      Stopped: as `make_runs`.
    """
    seen: set[Path] = set()
    while True:
        sweep = planning.plan(sweep)
        new = [run for run in sweep.all_runs if run.path not in seen]
        statuses = [planning.outcome(run).status for run in sweep.all_runs]
        if new:
            make_runs(new, index, workers)
            seen.update(run.path for run in new)
        elif not sweep.ended and reading.RUNNING in statuses:
            time.sleep(1)  # another worker's result decides
        else:
            return


def make_runs(runs: Sequence[PlannedRun], index: int, workers: int) -> None:
    """Makes the open runs, one after another; what they print is on stdout.

    An error of a run stops no other.

    Args:
      index: the worker's number, from 0. Each begins at a place of its own.

    Raises:
      Stopped: a stop was asked for; the run that was training is saved.
    """
    start = len(runs) * index // workers
    for run in (*runs[start:], *runs[:start]):
        if planning.outcome(run).status in (reading.NOT_BEGUN, reading.STOPPED):
            print(f'{run}: {run.path}', flush=True)
            _make_run(run)


def _make_run(run: PlannedRun) -> None:
    from experiments.training import loop

    try:
        with contextlib.closing(Screen()) as screen:
            loop.run(run.config, run.path, run.asked, screen)
    except Stopped:
        raise
    except storage.InUse:
        pass  # another worker has begun it at this moment
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
    """Has the runs that failed be tried once more: the disk may no longer be full.

    What has diverged would diverge again, and stays as it is.
    """
    for run in sweep.all_runs:
        if planning.outcome(run).status == reading.FAILED:
            storage.remove(run.path / failure.NAME)


def start_here(
    config: str, workers: int, folder: Path
) -> list['subprocess.Popen[bytes]']:
    """Starts workers on this machine, which divide its cores or its GPUs.

    Args:
      config: the sweep's file.
      workers: how many.
      folder: gets what they print.

    Returns:
      Their processes. They stop when these objects or this process are gone.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, '-m', 'experiments.sweep', f'--config={config}']
    processes = []
    for index in range(workers):
        with open(folder / f'worker{index}.log', 'ab') as log:
            process = subprocess.Popen(
                [*command, '--worker', f'{index}', f'{workers}'],
                env=os.environ | _environment(index, workers) | {_STARTED_HERE: '1'},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,  # Ctrl-C is passed on by who waits for them
            )
        _use_share_of_cores(process.pid, index, workers)
        processes.append(process)
    return processes


def stop_with_parent() -> None:
    """Has a worker of `start_here` stop, as by SIGTERM, once its parent has died."""
    if _STARTED_HERE in os.environ:
        threading.Thread(target=_wait_for_end_of_input, daemon=True).start()


def _wait_for_end_of_input() -> None:
    os.read(sys.stdin.fileno(), 1)
    os.kill(os.getpid(), signal.SIGTERM)


def _use_share_of_cores(process: int, index: int, workers: int) -> None:
    """Keeps a process to its share of the cores, before it starts threads."""
    if not hasattr(os, 'sched_setaffinity'):
        return
    cores = sorted(os.sched_getaffinity(0))
    first = len(cores) * index // workers
    last = len(cores) * (index + 1) // workers
    if first < last:
        os.sched_setaffinity(process, cores[first:last])


def _environment(index: int, workers: int) -> dict[str, str]:
    """What gives each of several workers a GPU, without touching one here."""
    gpus = os.environ.get('CUDA_VISIBLE_DEVICES', '').split(',')
    if not gpus[0] and shutil.which('nvidia-smi'):
        listed = subprocess.run(['nvidia-smi', '-L'], capture_output=True).stdout
        gpus = [str(number) for number in range(listed.count(b'GPU '))]
    if workers == 1 or not any(gpus):
        return {}
    environment = {'CUDA_VISIBLE_DEVICES': gpus[index % len(gpus)]}
    if len(gpus) < workers:
        # Else the first on a GPU takes most of its memory at once.
        environment['XLA_PYTHON_CLIENT_PREALLOCATE'] = 'false'
    return environment
