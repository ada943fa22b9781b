"""Several processes that train one run together, by `jax.distributed`.

All run the same code; the first alone writes and prints. An error of one ends all. A
process alone imports nothing for this, and each function is then what it is named for:
`gather` gives one value, `barrier` does nothing.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import platform
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from experiments.command_line.errors import UserError, line

CONNECT_SECONDS = 300  # in which all processes have to be started
_HEARTBEAT_SECONDS = 20  # jax notices a death after one to two of these
_FOREVER = 1 << 31  # milliseconds are three weeks: a wait ends by a death, not by time
_FOREVER -= 1
_GRACE = 10  # seconds in which an error of all comes up in each by itself
_LEAVE_MS = 15_000  # in which all others let the first one go


class Place(NamedTuple):
    """Which of how many processes this is.

    Attributes:
      coordinator: host and port of the first; None where jax finds all by itself.
    """

    count: int = 1
    index: int = 0
    coordinator: str | None = None


_place = Place()
_client: Any = None  # of the service by which the processes know of each other
_hosts: list[str] = []
_calls: Counter[str] = Counter()
_over = threading.Event()
_ending = threading.Lock()


def count() -> int:
    """How many processes there are."""
    return _place.count


def is_first() -> bool:
    """Whether this is the process that writes and prints."""
    return _place.index == 0


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that `find` reads."""
    group = parser.add_argument_group(
        'several processes', 'found by itself under Slurm, Open MPI and on TPU pods'
    )
    group.add_argument('--coordinator', help='host:port of the first process')
    group.add_argument('--processes', help='how many there are')
    group.add_argument('--process', help='which of them this is, from 0 on')


def find(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> Place:
    """The place that flags, or else the cluster's variables, give to this process.

    Raises:
      UserError: a flag is missing, or its value cannot be.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    names = ('coordinator', 'processes', 'process')
    for name in names:
        parser.add_argument(f'--{name}', nargs='?', const='')
    given = vars(parser.parse_known_args(argv)[0])
    missing = [f'--{name}' for name in names if given[name] is None]
    if len(missing) == len(names):
        return _of_cluster(environ)
    if missing:
        raise UserError(
            f'{", ".join(missing)}: missing; several processes are given --coordinator='
            'host:port, --processes and --process'
        )
    if not given['coordinator'].rpartition(':')[2].isdecimal():
        raise UserError(
            f'--coordinator={given["coordinator"]}: give host:port of the first process'
        )
    number = _number('--processes', given['processes'], 1, 1 << 20)
    index = _number('--process', given['process'], 0, number - 1)
    return Place(number, index, given['coordinator'])


def _number(flag: str, text: str, least: int, most: int) -> int:
    if not text.isdecimal() or not least <= int(text) <= most:
        raise UserError(f'{flag}={text}: give a number from {least} to {most}')
    return int(text)


def _of_cluster(environ: Mapping[str, str]) -> Place:
    """The place that a cluster gives; where there is none, that of a process alone.

    jax has no public way to ask without connecting. These are the variables that its
    own detection reads.
    """
    if 'SLURM_STEP_NODELIST' in environ and 'SLURM_PROCID' in environ:
        # A batch script that calls no srun is one process, however many are allotted.
        tasks = int(environ.get('SLURM_STEP_NUM_TASKS', 1))
        return Place(tasks, int(environ['SLURM_PROCID'])) if tasks > 1 else Place()
    if 'OMPI_MCA_orte_hnp_uri' in environ:
        ranks = int(environ['OMPI_COMM_WORLD_SIZE'])
        return Place(ranks, int(environ['OMPI_COMM_WORLD_RANK']))
    hosts = environ.get('TPU_PROCESS_ADDRESSES', environ.get('TPU_WORKER_HOSTNAMES'))
    slices = int(environ.get('MEGASCALE_NUM_SLICES', 1))
    if hosts and (',' in hosts or slices > 1):
        a_slice = len(hosts.split(','))
        index = int(environ.get('TPU_WORKER_ID', 0))
        index += a_slice * int(environ.get('MEGASCALE_SLICE_ID', 0))
        return Place(a_slice * slices, index)
    if importlib.util.find_spec('libtpu') and 'TPU_SKIP_MDS_QUERY' not in environ:
        return _of_tpu_pod()
    return Place()


def _of_tpu_pod() -> Place:
    """The place that the metadata of a Cloud TPU's hosts give, which jax asks for."""
    from jax._src.clusters import ClusterEnv

    detect = ClusterEnv.auto_detect_unset_distributed_params
    _, number, index, _ = detect(None, None, None, None, None, CONNECT_SECONDS)
    return Place(number or 1, index or 0)


def start() -> None:
    """Connects the processes; with one, does nothing. Before jax's first array.

    Raises:
      UserError: not all were started in time.
    """
    global _client
    if _place.count == 1 or _client is not None:
        return
    import jax
    from jax._src import distributed  # for the client, which has no public name

    jax.config.update('jax_cpu_collectives_implementation', 'gloo')
    arguments: dict[str, Any] = {}
    if _place.coordinator:
        arguments = {
            'coordinator_address': _place.coordinator,
            'num_processes': _place.count,
            'process_id': _place.index,
            'cluster_detection_method': 'deactivate',
        }
    try:
        jax.distributed.initialize(
            **arguments,
            initialization_timeout=CONNECT_SECONDS,
            heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
        )
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f'{_name(_place.index)} cannot connect to the others, of which each must '
            f'start within {CONNECT_SECONDS} s: {error}'
        ) from error
    _client = distributed.global_state.client
    threading.Thread(target=_watch, daemon=True).start()
    _hosts[:] = gather('hosts', platform.node())


def barrier(name: str) -> None:
    """Returns when all processes have come here."""
    if _place.count > 1:
        _client.wait_at_barrier(_next(name), _FOREVER)


def gather(name: str, value: Any) -> list[Any]:
    """What each process gives, in their order; anything that JSON can hold."""
    if _place.count == 1:
        return [value]
    folder = _next(name)
    _client.key_value_set(f'{folder}/{_place.index}', json.dumps(value))
    barrier(name)
    found = _client.key_value_dir_get(f'{folder}/')
    values = {int(key.rpartition('/')[2]): text for key, text in found}
    return [json.loads(values[index]) for index in range(_place.count)]


def from_first(name: str, make: Callable[[], Any]) -> Any:
    """What `make` returns in the first process, the only one that calls it.

    It returns what JSON can hold.
    """
    if _place.count == 1:
        return make()
    key = _next(name)
    if is_first():
        _client.key_value_set(key, json.dumps(make()))
    return json.loads(_client.blocking_key_value_get(key, _FOREVER))


def check_same(what: str, facts: Mapping[str, Any]) -> None:
    """Refuses processes whose facts are not those of the first.

    Raises:
      UserError: in all of them; it names the process, and the facts that differ.
    """
    first, *others = gather(what, dict(facts))
    for index, other in enumerate(others, 1):
        differ = [key for key in first | other if first.get(key) != other.get(key)]
        if differ:
            shown = '; '.join(
                f'{key} is {json.dumps(other.get(key))}, not '
                f'{json.dumps(first.get(key))}'
                for key in differ
            )
            raise UserError(
                f'{_name(index)} has another {what} than {_name(0)}: {shown}. Start '
                'all with the same command, code and text'
            )


def stop_is_agreed() -> bool:
    """Whether all processes stop here, for one was asked to by SIGTERM.

    jax's own handler takes the signal, and finds a call that none has made yet. So all
    have to ask at the same places.
    """
    from jax.experimental import multihost_utils

    _calls['stop'] += 1
    return multihost_utils.reached_preemption_sync_point(_calls['stop'])


def _next(name: str) -> str:
    """A key that all processes give to the same call."""
    _calls[name] += 1
    return f'flaxformer_lite/{name}/{_calls[name]}'


def _name(index: int) -> str:
    host = f' on {_hosts[index]}' if _hosts else ''
    return f'process {index} of {_place.count}{host}'


@contextlib.contextmanager
def together(argv: Sequence[str]) -> Iterator[None]:
    """Has an error in one process end all, with one line and its exit status."""
    global _place
    _place = find(argv)
    if _place.count == 1:
        yield
        return
    try:
        yield
    except UserError as error:
        _end(line(error), 2)
    except Exception as error:
        traceback.print_exc()
        _end(f'{type(error).__name__}: {error}', 1)
    leave()


def leave() -> None:
    """Waits for all to end, the first last: jax aborts those that it leaves alone."""
    if _client is not None:
        _over.set()
        with contextlib.suppress(Exception):
            _client.wait_at_barrier('flaxformer_lite/leave', _LEAVE_MS)
        if is_first():
            time.sleep(0.5)


@contextlib.contextmanager
def deaths_are_told() -> Iterator[None]:
    """Has an error that another process's death caused say whose; ends the process."""
    try:
        yield
    except RuntimeError as error:
        if _place.count == 1:
            raise
        dead = _silent_processes()
        if not dead:
            raise
        if _place.index == min(set(range(_place.count)) - set(dead), default=0):
            names = ', '.join(map(_name, dead))
            reason = line(UserError(str(error)))
            _print(
                f'{names}: died; the same command goes on from what is saved ({reason})'
            )
        os._exit(1)


def _silent_processes() -> list[int]:
    """Those that do not say, soon after an error, that they have noticed it."""
    try:
        _client.key_value_set(f'flaxformer_lite/alive/{_place.index}', '')
        time.sleep(_GRACE)
        alive = _client.key_value_dir_get('flaxformer_lite/alive/')
    except RuntimeError:
        return [0]  # which has the keys
    told = {int(key.rpartition('/')[2]) for key, _ in alive}
    return sorted(set(range(_place.count)) - told)


def _watch() -> None:
    """Ends this process once another one has told an error."""
    while not _over.wait(1):
        if _told():
            # An error of all comes up here as well, and is told as it always is.
            time.sleep(_GRACE)
            _end('', 2)


def _told() -> list[Any] | None:
    """The error that ends all: its process, text and status; None without any."""
    with contextlib.suppress(RuntimeError):
        for _, text in _client.key_value_dir_get('flaxformer_lite/end/'):
            return json.loads(text)
    return None


def _end(text: str, status: int) -> NoReturn:
    """Tells all processes of an error, and ends this one; the first prints it."""
    with _ending:
        if text and is_first():
            _print(text)
        with contextlib.suppress(RuntimeError, UserError):
            start()
        if text and not is_first() and _client is None:
            _print(text)  # for nobody else will
        if _client is not None:
            mine = json.dumps([_place.index, text, status])
            with contextlib.suppress(RuntimeError):  # another one was told before
                _client.key_value_set('flaxformer_lite/end/told', mine)
        told = _told()
        if told and not (text and is_first()):
            index, found, status = told
            if is_first():
                _print(f'{_name(index)}: {found}')
        leave()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(status)


def _print(text: str) -> None:
    print('error:', text, file=sys.stderr, flush=True)
