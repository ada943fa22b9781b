"""Where a sweep's workers run: in this process, in others here, or under Slurm."""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.command_line.stopping import Stop
from experiments.errors import UserError
from experiments.sweeps.progress import Progress
from experiments.sweeps.schema import RUNS, Cell
from experiments.sweeps.worker import Worker

_FOREVER = 10**6  # minutes
_DAY = 24 * 60  # minutes that a job of Slurm may take, if nothing else is said


def workers(
    cells: Sequence[Cell], number: int, began: float, here: bool
) -> list[Worker]:
    """The workers of a sweep.

    Args:
      here: whether all of them work on this machine, and share its cores.
    """
    folder = Path.cwd()
    return [
        Worker(list(cells), i, number, began, folder, shares_cores=here)
        for i in range(number)
    ]


def log_folder(name: str) -> Path:
    """Where a sweep's workers write what they say; no run has such a name."""
    return RUNS / '.sweeps' / name


def in_process(
    worker: Worker, log: Path, progress: Progress, stop: Stop
) -> dict[str, str]:
    """Has one worker do all, in this process.

    Args:
      log: the file that gets what the runs print.

    Returns:
      The errors of runs that could not be begun, by their directories.

    Raises:
      Stopped: a stop was asked for.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        open(log, 'a', encoding='utf-8', buffering=1) as file,
        progress.watching(),
        contextlib.redirect_stdout(file),
    ):
        return worker.work(stop)


def local(
    team: Sequence[Worker], folder: Path, progress: Progress, stop: Stop
) -> dict[str, str]:
    """Has workers work in processes of their own on this machine, and waits for them.

    Args:
      folder: gets what they print.

    Returns:
      The errors of runs that could not be begun, by their directories; and those of
      workers, by their logs.

    Raises:
      Stopped: a stop was asked for; all have saved what they had.
    """
    jobs = _start(team, folder)
    while not all(job.done() for job in jobs):
        progress.wait()
        if stop.asked:
            _pass_on_stop(jobs)
    progress.update()
    stop.check()
    errors = {}
    for job in jobs:
        if job.paths.result_pickle.exists():
            errors |= _result(job)
        else:
            errors[str(job.paths.stdout)] = 'this worker has ended before its time'
    return errors


def _start(team: Sequence[Worker], folder: Path) -> list[Any]:
    submitit = _submitit()
    executor = submitit.LocalExecutor(folder=folder)
    gpus = _gpus()
    if 0 < len(gpus) < len(team):
        # Else the first on a GPU takes most of its memory at once.
        os.environ.setdefault('XLA_PYTHON_CLIENT_PREALLOCATE', 'false')
    jobs = []
    with _without_ctrl_c():
        for worker in team:
            gpu = [gpus[worker.index % len(gpus)]] if gpus else []
            executor.update_parameters(
                timeout_min=_FOREVER,
                gpus_per_node=len(gpu),
                visible_gpus=gpu,
                stderr_to_stdout=True,
            )
            jobs.append(executor.submit(worker))
    return jobs


@contextlib.contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Processes that are started meanwhile get no Ctrl-C from the terminal.

    submitit would kill its jobs a second later; they get a SIGTERM in its place, and
    have the time to save.
    """
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _pass_on_stop(jobs: Sequence[Any]) -> None:
    for job in jobs:
        if not job.done():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(job.job_id), signal.SIGTERM)


def _result(job: Any) -> dict[str, str]:
    error = job.exception()
    if error is not None:
        last = str(error).strip().splitlines()[-1]
        return {str(job.paths.stdout): last}
    return job.result()


def _gpus() -> list[int]:
    """The numbers of the GPUs that this process may use, without touching them."""
    visible = os.environ.get('CUDA_VISIBLE_DEVICES')
    if visible is not None:
        return [int(gpu) for gpu in visible.split(',') if gpu.strip().isdigit()]
    if os.environ.get('JAX_PLATFORMS') == 'cpu' or not shutil.which('nvidia-smi'):
        return []
    found = subprocess.run(['nvidia-smi', '-L'], capture_output=True)
    return list(range(found.stdout.count(b'GPU ')))


def slurm(
    team: Sequence[Worker], folder: Path, name: str, parameters: Mapping[str, Any]
) -> list[str]:
    """Queues the workers as one job array of Slurm, and does not wait for them.

    A worker that is preempted, or whose time is over, saves its run, is queued again
    and goes on.

    Args:
      folder: gets the script, what the workers print, and what they are to do.
      name: of the job.
      parameters: submitit's for Slurm: `{'partition': 'gpu', 'gpus_per_node': 1}`.

    Returns:
      The jobs' ids.

    Raises:
      UserError: there is no Slurm here, a parameter does not exist, or it refuses.
    """
    submitit = _submitit()
    if not shutil.which('sbatch') or not shutil.which('srun'):
        raise UserError(
            '--launcher=slurm: there is no sbatch and srun here; start it where jobs '
            'are submitted, or leave --launcher out'
        )
    executor = submitit.SlurmExecutor(folder=folder, max_num_timeout=1000)
    settings = {'time': _DAY, 'job_name': name, 'stderr_to_stdout': True}
    settings |= parameters
    try:
        executor.update_parameters(**settings, additional_parameters={'requeue': True})
        with executor.batch():
            jobs = [executor.submit(worker) for worker in team]
    except (ValueError, TypeError) as error:
        raise UserError(f'--slurm: {error}') from None
    except Exception as error:
        raise UserError(f'Slurm refuses the job: {error}') from None
    return [job.job_id for job in jobs]


def _submitit() -> Any:
    try:
        import submitit
    except ImportError:
        raise UserError(
            "several workers need submitit: pip install -e '.[sweep]', or leave out "
            '--workers and --launcher'
        ) from None
    return submitit
