"""The processes that train one run: who is first, and what they tell each other.

All run the same code; the first alone writes and prints. An error or a death of one
ends all: JAX, whose processes hear each other's heartbeats, aborts the others. A
process alone imports nothing for this, and each function is then what it is named for:
`gather` gives one value, `barrier` does nothing.
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

_CONNECT_SECONDS = 300  # in which all processes have to be started
_HEARTBEAT_SECONDS = 20  # JAX notices a death after one to two of these
_FOREVER = (1 << 31) - 1  # milliseconds: a wait ends by a death, and not by time
_PREFIX = 'flaxformer_lite'  # of keys: JAX and Orbax have theirs at the same service

_client: Any = None  # of JAX's service, by which several processes know of each other
_count = 1
_index = 0
_calls: Counter[str] = Counter()


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that `initialize` reads."""
    flags = parser.add_argument_group(
        'several processes', 'found by itself under Slurm, Open MPI and on TPU pods'
    )
    flags.add_argument('--coordinator', help='host:port of the first process')
    flags.add_argument('--processes', type=int, help='how many there are')
    flags.add_argument('--process', type=int, help='which of them this is, from 0 on')


def initialize(args: argparse.Namespace) -> None:
    """Connects the processes that flags or a cluster tell of, before JAX's first array.

    Raises:
      UserError: a flag is missing, its value cannot be, or not all started in time.
    """
    global _client, _count, _index
    coordinator, count, index, own_devices = _flags(args) or _cluster()
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
            f'process {index} of {count} cannot connect to the others, of which each '
            f'must start within {_CONNECT_SECONDS} s: {error}'
        ) from error
    _client = distributed.global_state.client
    _count = count
    _index = index


def _flags(args: argparse.Namespace) -> tuple[str, int, int, None] | None:
    """What `jax.distributed.initialize` takes, by flags; None where none is given."""
    given = {name: vars(args)[name] for name in ('coordinator', 'processes', 'process')}
    coordinator, count, index = given.values()
    if coordinator is count is index is None:
        return None
    is_whole = None not in given.values()
    if is_whole and re.search(':[0-9]+$', coordinator) and 0 <= index < count:
        return coordinator, count, index, None
    flags = ' '.join(f'--{name}={value}' for name, value in given.items())
    raise UserError(
        f'{flags}: give --coordinator=host:port of the first process, --processes, how '
        'many there are, and --process, which this is, from 0 to one below that'
    )


def _cluster() -> tuple[Any, ...]:
    """What `jax.distributed.initialize` takes, by what JAX finds of a cluster."""
    environ = os.environ
    if 'KUBERNETES_SERVICE_HOST' in environ and 'TPU_WORKER_HOSTNAMES' not in environ:
        return None, None, None, None  # JAX would ask it for rights; there are flags
    if 'SLURM_JOB_ID' in environ and 'OMPI_COMM_WORLD_SIZE' not in environ:
        # A batch script that calls no srun is one process, however many are allotted.
        if environ.get('SLURM_STEP_NUM_TASKS', '1') == '1':
            return None, None, None, None
    from jax._src.clusters import ClusterEnv  # has no public name

    detect = ClusterEnv.auto_detect_unset_distributed_params
    return detect(None, None, None, None, None, _CONNECT_SECONDS)


def count() -> int:
    """How many processes there are."""
    return _count


def index() -> int:
    """Which of them this is, from 0 on."""
    return _index


def is_first() -> bool:
    """Whether this is the process that writes and prints."""
    return _index == 0


def barrier(name: str) -> None:
    """Returns when all processes have come here."""
    if _count > 1:
        _client.wait_at_barrier(_next_key(name), _FOREVER)


def gather(value: Any) -> list[Any]:
    """What each process gives, in their order; anything that JSON can hold."""
    if _count == 1:
        return [value]
    key = _next_key('gathered')
    _client.key_value_set(f'{key}/{_index}', json.dumps(value))
    found = []
    for process in range(_count):
        text = _client.blocking_key_value_get(f'{key}/{process}', _FOREVER)
        found.append(json.loads(text))
    return found


def from_first(make: Callable[[], Any]) -> Any:
    """What `make` returns in the first process, which alone calls it, as `gather`."""
    return gather(make() if is_first() else None)[0]


def check_same(what: str, facts: Mapping[str, Any]) -> None:
    """Refuses processes whose facts are not those of the first.

    Raises:
      UserError: in all of them; it names the process, and the facts that differ.
    """
    first, *others = gather(dict(facts))
    for process, other in enumerate(others, 1):
        differences = [
            f'{key} is {other.get(key)}, not {first.get(key)}'
            for key in first | other
            if first.get(key) != other.get(key)
        ]
        if differences:
            raise UserError(
                f'process {process} has another {what} than process 0: '
                f'{"; ".join(differences)}. Start all with the same command, code and '
                'text'
            )


def stops_at(step: int) -> bool:
    """Whether all processes stop after this step, for one of them got SIGTERM.

    JAX's own handler takes the signal, and finds a step that none has made yet. So all
    have to ask after every step.
    """
    from jax.experimental import multihost_utils

    return multihost_utils.reached_preemption_sync_point(step)


@contextlib.contextmanager
def errors_end_all(*orderly: type[Exception]) -> Iterator[None]:
    """An error of one of several processes is printed, and ends it at once.

    An orderly exit would wait for the others, and they for this process.

    Args:
      orderly: what all of them raise at the same place, and end by together.
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
    """Waits for all processes to come here, at the end."""
    if _count > 1:
        import jax

        jax.distributed.shutdown()


def _next_key(name: str) -> str:
    """A key that all processes give to the same call."""
    _calls[name] += 1
    return f'{_PREFIX}/{name}.{_calls[name]}'
