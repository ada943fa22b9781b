"""The processes that train one run: who is first, and what they tell each other.

All run the same code; the first alone writes and prints. A process alone imports
nothing for this, and each function is then what it is named for: `gather` gives one
value, `barrier` does nothing.
"""

import json
import platform
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from experiments.errors import UserError
from experiments.runtime.processes.place import CONNECT_SECONDS, Place

_HEARTBEAT_SECONDS = 20  # jax notices a death after one to two of these
_FOREVER = (1 << 31) - 1  # milliseconds: a wait ends by a death, and not by time
_PREFIX = 'flaxformer_lite'  # of keys: jax and Orbax have theirs at the same service

_place = Place()
_client: Any = None  # of jax's service, by which the processes know of each other
_hosts: list[str] = []
_host_of_first = ''
_calls: Counter[str] = Counter()


def join(place: Place) -> None:
    """Says which process this is, before anything is asked here."""
    global _place
    _place = place


def count() -> int:
    """How many processes there are."""
    return _place.count


def index() -> int:
    """Which of them this is, from 0 on."""
    return _place.index


def is_first() -> bool:
    """Whether this is the process that writes and prints."""
    return _place.index == 0


def is_connected() -> bool:
    """Whether `start` has connected several processes."""
    return _client is not None


def start() -> None:
    """Connects the processes, before jax's first array; one alone does nothing.

    Raises:
      UserError: not all were started in time.
    """
    global _client, _host_of_first
    if count() == 1 or is_connected():
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
            f'{name(index())} cannot connect to the others, of which each must start '
            f'within {CONNECT_SECONDS} s: {error}'
        ) from error
    _client = distributed.global_state.client
    address = distributed.global_state.coordinator_address or ''
    _host_of_first = address.rpartition(':')[0].strip('[]')
    _hosts[:] = gather('hosts', platform.node())


def host_of_first() -> str:
    """What the others reach the first process by; after `start`."""
    return _host_of_first


def barrier(name: str) -> None:
    """Returns when all processes have come here."""
    if count() > 1:
        _client.wait_at_barrier(_next(name), _FOREVER)


def gather(name: str, value: Any) -> list[Any]:
    """What each process gives, in their order; anything that JSON can hold."""
    if count() == 1:
        return [value]
    folder = _next(name)
    _client.key_value_set(f'{folder}/{index()}', json.dumps(value))
    barrier(name)
    values = _values(folder)
    return [json.loads(values[i]) for i in range(count())]


def from_first(name: str, make: Callable[[], Any]) -> Any:
    """What `make` returns in the first process, which alone calls it.

    It returns what JSON can hold.
    """
    if count() == 1:
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
    for i, other in enumerate(others, 1):
        differences = [
            f'{key} is {json.dumps(other.get(key))}, not {json.dumps(first.get(key))}'
            for key in first | other
            if first.get(key) != other.get(key)
        ]
        if differences:
            raise UserError(
                f'{name(i)} has another {what} than process 0: '
                f'{"; ".join(differences)}. Start all with the same command, code and '
                'text'
            )


def tell(name: str, text: str) -> None:
    """Tells all something once; they may never ask. A second time it is ignored.

    Raises:
      RuntimeError: the first process has died.
    """
    key = f'{_PREFIX}/{name}/{index()}'
    _client.key_value_set(key, text, allow_overwrite=True)


def told(name: str) -> dict[int, str]:
    """What was told so far, by process.

    Raises:
      RuntimeError: the first process has died.
    """
    return _values(f'{_PREFIX}/{name}')


def wait_to_leave(seconds: float) -> None:
    """Returns when all have come here to end, or after some time.

    Raises:
      RuntimeError: not all came.
    """
    _client.wait_at_barrier(f'{_PREFIX}/leave', int(seconds * 1000))


def stop_is_agreed() -> bool:
    """Whether all processes stop here, for one was asked to by SIGTERM.

    jax's own handler takes the signal, and finds a call that none has made yet. So all
    have to ask at the same places.
    """
    from jax.experimental import multihost_utils

    _calls['stop'] += 1
    return multihost_utils.reached_preemption_sync_point(_calls['stop'])


def name(i: int) -> str:
    """What a process is called in messages: 'process 1 of 2 on host-b'."""
    host = f' on {_hosts[i]}' if _hosts else ''
    return f'process {i} of {count()}{host}'


def _next(name: str) -> str:
    """A key that all processes give to the same call."""
    _calls[name] += 1
    return f'{_PREFIX}/{name}.{_calls[name]}'


def _values(folder: str) -> dict[int, str]:
    found = _client.key_value_dir_get(f'{folder}/')
    return {int(key.rpartition('/')[2]): value for key, value in found}
