"""What takes seconds to make is kept on disk, and found by what it was made of.

What was made is found again only by the same sources of both packages, the same
libraries, settings, devices and processor. So it never has to be declared out of date;
the folder may be removed at any time. What was not used for longest goes first where it
grows beyond `MOST_BYTES`.
"""

import contextlib
import functools
import hashlib
import os
import pickle
import platform
import re
import sys
import zlib
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import jax

import experiments
import flaxformer_lite
from experiments import storage
from experiments.errors import UserError, warn
from experiments.runtime import processor

T = TypeVar('T')

MOST_BYTES = 2 << 30  # of the folder: programs of some 500 configs

_LIBRARIES = ('flax', 'jax', 'jaxlib', 'numpy', 'optax')
_VARIABLES = re.compile('(JAX|XLA|LIBTPU|TPU|CUDA|NVIDIA)_')  # of the environment
_SUM_BYTES = 32  # of a file are the SHA-256 sum of the others
_QUICK = 1  # of zlib's levels: a program shrinks to a third
# An object that does not say what it holds.
_UNSAID = re.compile(' at 0x[0-9a-f]+')

_folder: Path | None = None


def use(folder: Path) -> None:
    """From now on what is made is kept in a folder; before, nothing is kept."""
    global _folder
    _folder = folder


def kept(
    name: str,
    made_of: Any,
    make: Callable[[], T],
    to_bytes: Callable[[T], bytes] = pickle.dumps,
    from_bytes: Callable[[bytes], T] = pickle.loads,
) -> T:
    """What `make` returns, or returned in an earlier process for the same things.

    A damaged file is reported on stderr and made again. Where nothing can be kept,
    `make` is called each time.

    Args:
      name: of its folder, for whoever looks there.
      made_of: all that it follows from beside sources, libraries, settings and devices;
        its `repr` has to say it. Where that holds an object's address, nothing is kept.
    """
    if _folder is None:
        return make()
    text = repr((made_of, _surroundings()))
    if _UNSAID.search(text):
        return make()
    file = _folder / f'{name}-{hashlib.sha256(text.encode()).hexdigest()}'
    found = _read(file)
    if found is not None:
        try:
            return from_bytes(found)
        except Exception as error:  # whatever JAX raises; it is made again
            _warn_damaged(file, str(error))
    made = make()
    _write(file, to_bytes(made))
    return made


def _read(file: Path) -> bytes | None:
    """What was written; None where there is nothing, or what is there is damaged."""
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        warn(f'cannot read {file}: {error.strerror}')
        return None
    with contextlib.suppress(OSError):
        os.utime(file)  # used now: others go before it
    written, packed = data[:_SUM_BYTES], data[_SUM_BYTES:]
    if hashlib.sha256(packed).digest() != written:
        _warn_damaged(file, 'it is not what was written')
        return None
    return zlib.decompress(packed)


def _write(file: Path, data: bytes) -> None:
    packed = zlib.compress(data, _QUICK)
    try:
        storage.write(file, hashlib.sha256(packed).digest() + packed)
    except UserError as error:
        warn(str(error))
        return
    try:
        _make_room(file.parent)
    except OSError as error:
        warn(f'cannot make room in {file.parent}: {error.strerror}')


def _make_room(folder: Path) -> None:
    """Removes what was used longest ago, until the rest is within `MOST_BYTES`."""
    found = []
    for entry in os.scandir(folder):
        # Another process may have removed it just now.
        with contextlib.suppress(FileNotFoundError):
            status = entry.stat()
            found.append((status.st_mtime_ns, status.st_size, Path(entry.path)))
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= MOST_BYTES:
            return
        path.unlink(missing_ok=True)
        total -= size


def _warn_damaged(file: Path, reason: str) -> None:
    warn(f'{file} is damaged ({reason}): it is made again')


def _surroundings() -> tuple[Any, ...]:
    """What a program follows from besides its function and the shapes it is for."""
    return _of_this_process(), _settings(), jax.process_count(), _devices()


def _settings() -> list[tuple[str, Any]]:
    """JAX's own, but for those of its cache: they change what it traces."""
    settings = jax.config.values
    return sorted((name, settings[name]) for name in settings if 'cache' not in name)


def _devices() -> list[tuple[str, str]]:
    return [
        (device.device_kind, device.client.platform_version) for device in jax.devices()
    ]


@functools.cache
def _of_this_process() -> tuple[Any, ...]:
    libraries = [(name, version(name)) for name in _LIBRARIES]
    variables = sorted(x for x in os.environ.items() if _VARIABLES.match(x[0]))
    return sys.version, libraries, variables, _processor(), _cores(), sources()


def _cores() -> int | None:
    """How many this process may use: XLA divides the loops of a program among them."""
    if hasattr(os, 'sched_getaffinity'):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _processor() -> str:
    """Programs for a CPU are made of the instructions that it has."""
    known = processor.facts()
    if not known:
        return f'{platform.node()} {platform.machine()}'
    names = ('model name', 'flags', 'Features')
    return '\n'.join(known.get(name, '') for name in names)


def code() -> dict[str, str]:
    """The sources and libraries of this process: what the same results come of."""
    return {'sources': sources(), **{name: version(name) for name in _LIBRARIES}}


def sources() -> str:
    """The sum of all sources that programs are made of."""
    digest = hashlib.sha256()
    for package in (experiments, flaxformer_lite):
        root = Path(package.__path__[0])
        for path in sorted(root.rglob('*.py')):
            digest.update(f'{path.relative_to(root)}\0'.encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()
