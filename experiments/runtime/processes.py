"""The processes that train one run together.

All run the same code; only the first one writes and prints. If one dies, JAX detects
missing heartbeats and aborts the others. A single process imports nothing.
"""

import argparse
import contextlib
import json
import os
import re
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from experiments.errors import UserError, line

_CONNECT_SECONDS = 300  # seconds within which all processes must start
_HEARTBEAT_SECONDS = 20  # JAX detects a dead process after one or two intervals
_NO_TIMEOUT = (1 << 31) - 1  # milliseconds; barriers fail only if a process dies
# Prefix of keys, because JAX and Orbax use the same service.
_PREFIX = 'flaxformer_lite'

_client: Any = None  # of JAX's coordination service
_count = 1
_index = 0
_calls: Counter[str] = Counter()


def add_flags(parser: argparse.ArgumentParser) -> None:
    flags = parser.add_argument_group(
        'several processes', 'found by itself under Slurm, Open MPI and on TPU pods'
    )
    flags.add_argument('--coordinator', help='host:port of the first process')
    flags.add_argument('--processes', type=int, help='number of processes')
    flags.add_argument('--process', type=int, help='index of this process, from 0')


def initialize(args: argparse.Namespace) -> None:
    """Connects the processes that flags or a cluster define.

    Call this before making JAX's first array.
    """
    global _client, _count, _index
    coordinator, count, index, own_devices = from_flags(args) or _cluster()
    if not count or count == 1:
        return
    import jax
    from jax._src import distributed  # for the client, which has no public name

    jax.config.update('jax_cpu_collectives_implementation', 'gloo')
    try:
        jax.distributed.initialize(
            coordinator,
            count,
            index,
            own_devices,
            cluster_detection_method='deactivate',
            initialization_timeout=_CONNECT_SECONDS,
            heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
        )
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f'process {index} of {count} cannot connect to the others. All must start '
            f'within {_CONNECT_SECONDS} s: {error}'
        ) from error
    _client = distributed.global_state.client
    _count = count
    _index = index


def from_flags(args: argparse.Namespace) -> tuple[str, int, int, None] | None:
    """Returns what `--coordinator` and its companions define, if given."""
    given = {name: vars(args)[name] for name in ('coordinator', 'processes', 'process')}
    coordinator, count, index = given.values()
    if coordinator is count is index is None:
        return None
    is_whole = None not in given.values()
    if is_whole and re.search(':[0-9]+$', coordinator) and 0 <= index < count:
        return coordinator, count, index, None
    flags = ' '.join(f'--{name}={value}' for name, value in given.items())
    raise UserError(
        f'{flags}: incomplete or invalid. Give --coordinator=host:port of the first '
        'process, --processes (their number) and --process (the index of this one, '
        'from 0).'
    )


def _cluster() -> tuple[Any, ...]:
    environ = os.environ
    if 'KUBERNETES_SERVICE_HOST' in environ and 'TPU_WORKER_HOSTNAMES' not in environ:
        return None, None, None, None  # JAX would need API permissions; use flags
    if 'SLURM_JOB_ID' in environ and 'OMPI_COMM_WORLD_SIZE' not in environ:
        # A batch script without srun is a single process, even in a larger allocation.
        if environ.get('SLURM_STEP_NUM_TASKS', '1') == '1':
            return None, None, None, None
    from jax._src.clusters import ClusterEnv  # has no public name

    detect = ClusterEnv.auto_detect_unset_distributed_params
    return detect(None, None, None, None, None, _CONNECT_SECONDS)


def count() -> int:
    return _count


def index() -> int:
    return _index


def is_first() -> bool:
    return _index == 0


def barrier(name: str) -> None:
    """Waits for all processes."""
    if _count > 1:
        _client.wait_at_barrier(_next_key(name), _NO_TIMEOUT)


def gather(value: Any) -> list[Any]:
    """Returns the JSON serializable values of all processes, in their order."""
    if _count == 1:
        return [value]
    key = _next_key('gathered')
    _client.key_value_set(f'{key}/{_index}', json.dumps(value))
    found = []
    for process in range(_count):
        text = _client.blocking_key_value_get(f'{key}/{process}', _NO_TIMEOUT)
        found.append(json.loads(text))
    return found


def from_first(make: Callable[[], Any]) -> Any:
    """Calls `make` in the first process only; returns its result in all."""
    return gather(make() if is_first() else None)[0]


def check_same(what: str, facts: Mapping[str, Any]) -> None:
    """Raises UserError in all processes if their facts differ."""
    first, *others = gather(dict(facts))
    for process, other in enumerate(others, 1):
        differences = [
            f'{key} is {other.get(key)}, not {first.get(key)}'
            for key in first | other
            if first.get(key) != other.get(key)
        ]
        if differences:
            raise UserError(
                f'process {process} and process 0 differ in their {what}: '
                f'{"; ".join(differences)}. Start all processes with the same command, '
                'code and text.'
            )


def stops_at(step: int) -> bool:
    """Returns whether all processes stop after this step, because one got SIGTERM.

    JAX's handler takes the signal, and chooses a step that no process has reached. All
    processes must call this after every step.
    """
    from jax.experimental import multihost_utils

    return multihost_utils.reached_preemption_sync_point(step)


@contextlib.contextmanager
def errors_end_all(*orderly: type[Exception]) -> Iterator[None]:
    """Prints an error of one of several processes, and ends it at once.

    An orderly exit would deadlock. Exceptions in `orderly`, which all processes raise,
    pass through.
    """
    try:
        yield
    except Exception as error:
        if _count == 1 or isinstance(error, orderly):
            raise
        sys.stdout.flush()
        if isinstance(error, UserError):
            print(f'error: process {_index}:', line(error), file=sys.stderr, flush=True)
            os._exit(2)
        traceback.print_exc()
        os._exit(1)


def leave() -> None:
    """Disconnects this process."""
    if _count > 1:
        import jax

        jax.distributed.shutdown()


def _next_key(name: str) -> str:
    _calls[name] += 1
    return f'{_PREFIX}/{name}.{_calls[name]}'
