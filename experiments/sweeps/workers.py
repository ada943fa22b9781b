"""The workers of a sweep: processes which make the runs that nobody else makes.

A worker is the command of the sweep with `--worker`. It walks over all runs, so workers
need no scheduler: wherever they run, the locks of the runs' directories keep them
apart.
"""

import contextlib
import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments import storage
from experiments.command_line import flags
from experiments.command_line.screen import Screen
from experiments.command_line.stopping import Stopped
from experiments.errors import UserError, line
from experiments.runs import directory, failure, reading
from experiments.sweeps import planning
from experiments.sweeps.planning import RUNS
from experiments.sweeps.schema import PlannedRun, Sweep

_DAY = 24 * 60  # minutes that a job of Slurm may take, if nothing else is said
_TIME_TO_SAVE = 80.0  # seconds, of the 90 that Slurm gives


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
        runs = [*sweep.trials, *sweep.runs]
        new = [run for run in runs if run.path not in seen]
        if new:
            make_runs(new, index, workers)
            seen.update(run.path for run in new)
        elif not sweep.ended and any(map(_is_in_use, runs)):
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
    began = time.time()
    start = len(runs) * index // workers
    for run in (*runs[start:], *runs[:start]):
        if is_open(run.path, began) and not _is_in_use(run):
            print(f'{run}: {run.path}', flush=True)
            _make_run(run)


def _is_in_use(run: PlannedRun) -> bool:
    return not storage.is_free(run.path / directory.LOCK)


def _make_run(run: PlannedRun) -> None:
    from experiments.training import loop

    try:
        with contextlib.closing(Screen()) as screen:
            loop.run(run.config, run.path, run.overrides, screen)
    except Stopped:
        raise
    except storage.InUse:
        pass  # another worker has begun it at this moment
    except UserError as error:
        print('error:', line(error), flush=True)
    except Exception:
        traceback.print_exc(file=sys.stdout)


def is_open(path: Path, began: float) -> bool:
    """Whether a worker that began at a time has still to make the run of a directory.

    What has diverged would diverge again. What has failed is tried once more: the disk
    may no longer be full.
    """
    status = planning.read_outcome(path).status
    file = path / failure.NAME
    if status == reading.FAILED and file.exists():
        return file.stat().st_mtime < began
    return status not in (reading.FINISHED, reading.DIVERGED)


def log_folder(name: str) -> Path:
    """Where a sweep's workers write what they say; no run has such a name."""
    return RUNS / '.sweeps' / name


def _command(config: str, index: int, workers: int) -> list[str]:
    module = [sys.executable, '-m', 'experiments.sweep']
    return [*module, f'--config={config}', '--worker', f'{index}', f'{workers}']


def start_here(
    config: str, workers: int, folder: Path
) -> list['subprocess.Popen[bytes]']:
    """Starts workers on this machine, which divide its cores or its GPUs.

    Args:
      config: the sweep's file.
      workers: how many.
      folder: gets what they print.
    """
    folder.mkdir(parents=True, exist_ok=True)
    processes = []
    for index in range(workers):
        with open(folder / f'worker{index}.log', 'ab') as log:
            process = subprocess.Popen(
                _command(config, index, workers),
                env=os.environ | _environment(index, workers),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,  # Ctrl-C is passed on by who waits for them
            )
        _use_share_of_cores(process.pid, index, workers)
        processes.append(process)
    return processes


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


@dataclasses.dataclass
class SlurmWorker:
    """A worker in a job of Slurm, as submitit calls it.

    Attributes:
      command: what is to run.
      process: which runs it, from the call on.
    """

    command: list[str]
    process: 'subprocess.Popen[bytes] | None' = None

    def __call__(self) -> int:
        before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        # The worker inherits that it ignores the signal, which goes to all of a job.
        self.process = subprocess.Popen(self.command)
        signal.signal(signal.SIGUSR2, before)
        while self.process.poll() is None:
            time.sleep(0.5)
        return self.process.returncode

    def checkpoint(self) -> Any:
        """Has the run saved; submitit asks for it when the job is preempted.

        Returns:
          What goes on in this worker's place when the job is queued again.
        """
        from submitit.helpers import DelayedSubmission

        until = time.monotonic() + _TIME_TO_SAVE
        if self.process is not None:
            self.process.terminate()
            while self.process.poll() is None and time.monotonic() < until:
                time.sleep(0.1)
        return DelayedSubmission(SlurmWorker(self.command))


def queue(config: str, workers: int, name: str, settings: dict[str, Any]) -> str:
    """Queues the workers as one job array of Slurm, and does not wait for them.

    A worker that is preempted, or whose time is over, saves its run, is queued again
    and goes on.

    Args:
      config: the sweep's file.
      workers: how many.
      name: the sweep's.
      settings: submitit's for Slurm: `{'partition': 'gpu', 'gpus_per_node': 1}`.

    Returns:
      The jobs' ids.

    Raises:
      UserError: there is no submitit or no Slurm here, a setting does not exist, or
        Slurm refuses the job.
    """
    flags.require_packages('--launcher=slurm', ['submitit'], 'sweep')
    import submitit

    defaults = {'time': _DAY, 'job_name': name, 'stderr_to_stdout': True}
    commands = [_command(config, index, workers) for index in range(workers)]
    try:
        executor = submitit.SlurmExecutor(folder=log_folder(name), max_num_timeout=1000)
        executor.update_parameters(
            **defaults | settings, additional_parameters={'requeue': True}
        )
        with executor.batch():
            jobs = [executor.submit(SlurmWorker(command)) for command in commands]
    except (ValueError, TypeError) as error:
        raise UserError(f'--slurm: {error}') from None
    except Exception as error:
        raise UserError(f'Slurm refuses the job: {error}') from None
    return ', '.join(job.job_id for job in jobs)
