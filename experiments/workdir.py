"""A run's directory: its name, the config it belongs to, and one process at a time in it."""

import hashlib
import json
import os
import platform
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from experiments import files, limits
from experiments.errors import UserError

try:
    import fcntl
except ImportError:  # Windows, where nothing keeps two processes apart
    fcntl = None

LONGEST_NAME = 100
CONFIG = 'config.json'
RESULT = 'result.json'
EXTENSIONS = 'extensions.json'
# What a run would write over.
_OURS = (
    *(RESULT, 'metrics.jsonl', 'environment.json', 'tokenizer.model'),
    *('checkpoints', 'tensorboard', 'translations', EXTENSIONS),
)


def run_name(config_name: str, overrides: Mapping[str, Any]) -> str:
    """The name of the run's directory: `wmt_small,model.num_heads=8`.

    The same settings in any order give the same name, different settings never do: what a file
    system might not keep, or not keep apart (other characters, capitals, great length), is
    replaced or cut, and a hash of the whole added.
    """
    settings = [f'{k}={_as_text(v)}' for k, v in sorted(overrides.items())]
    name = ','.join([config_name, *settings])
    safe = re.sub(r'[^a-z0-9._=,+-]+', '_', name.lower())
    if safe == name and len(safe) <= LONGEST_NAME and not safe.endswith('.'):
        return safe
    return f'{safe[:LONGEST_NAME].rstrip("._")}~{_digest(name)}'


def _digest(name: str) -> str:
    # The command line may hold bytes that are no text.
    return hashlib.sha256(name.encode(errors='surrogatepass')).hexdigest()[:8]


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def check(path: Path, config: Mapping[str, Any]) -> None:
    """Refuses a directory that no run of this config can have; writes nothing.

    Raises:
      UserError: it cannot be written to or has a name that is not UTF-8, it belongs to a run of
        another config (limits may be raised), or to something that is no run.
    """
    _check_name(path)
    extends = asks_for_more(path, config)
    if not files.exists(path / CONFIG):
        _refuse_strange(path)
    elif not extends:
        _refuse_other(path, config)
    if extends or not files.exists(path / RESULT):  # what has ended is only shown
        _check_rights(path)


@contextmanager
def open_run(
    path: Path,
    config: Mapping[str, Any],
    extension: Mapping[str, Any] | None = None,
) -> Iterator[bool]:
    """Holds a run's directory for this process, and yields whether the run was there before.

    That of a run that has ended need not be one that can be written to.

    Args:
      extension: what is to be kept of it where `config` raises limits of the run that is there;
        its result is then set aside, as `result.step=12.json`.

    Raises:
      UserError: as `check`; or another process works in it. Then it is left as it was.
    """
    check(path, config)
    with _locked(path):
        check(path, config)  # again, for now nobody else begins there
        resumes = files.exists(path / CONFIG)
        extends = asks_for_more(path, config)
        if extends and extension is None:
            _refuse_other(path, config)
        if extends or not files.exists(path / RESULT):
            _sweep(path)
        if extends:
            _extend(path, config, extension)
        if not resumes:
            files.write_json(path / CONFIG, config)
        yield resumes


def asks_for_more(path: Path, config: Mapping[str, Any]) -> bool:
    """Whether there is a run whose config is this one but for limits, which this one raises."""
    if not files.exists(path / CONFIG):
        return False
    old, new = flatten(completed_config(path)), flatten(config)
    if old.keys() != new.keys():
        return False
    different = {k for k in old if _field(old, k) != _field(new, k)}
    return bool(different) and different == limits.raised(old, new).keys()


def _extend(
    path: Path, config: Mapping[str, Any], extension: Mapping[str, Any]
) -> None:
    """Has a run go on; a kill in between leaves it resumable, and never called finished."""
    if (path / RESULT).exists():
        step = files.read_json(path / RESULT).get('step')
        os.replace(path / RESULT, path / f'result.step={step}.json')
    there = extensions(path)
    if there[-1:] != [extension]:
        files.write_json(path / EXTENSIONS, [*there, extension])
    files.write_json(path / CONFIG, config)


def extensions(path: Path) -> list[dict[str, Any]]:
    """How a run was extended, the first time first."""
    file = path / EXTENSIONS
    return files.read_json(file) if file.exists() else []


def read_config(path: Path) -> dict[str, Any]:
    """The config of the run in `path`, nested as `open_run` was given it.

    Raises:
      UserError: this is not the directory of a run.
    """
    _check_name(path)
    file = path / CONFIG
    if not files.exists(file):
        raise UserError(
            f'{path} is not the directory of a run: it holds no config.json'
        )
    config = files.read_json(file)
    if not isinstance(config, dict) or not config:
        raise UserError(f'{file} is not the config of a run')
    try:
        flatten(config)
    except RecursionError:
        raise UserError(f'{file} is not the config of a run') from None
    return config


def completed_config(path: Path) -> dict[str, Any]:
    """The same, with what fields that an earlier version did not have would have said.

    Raises:
      UserError: as `read_config`.
    """
    config = read_config(path)
    if isinstance(config.get('train'), dict):
        config['train'].setdefault('patience', 0)  # it never stopped early
    return config


def flatten(config: Mapping[str, Any], prefix: str = '') -> dict[str, Any]:
    """`{'model': {'d_ff': 8}}` → `{'model.d_ff': 8}`."""
    flat = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f'{prefix}{key}.')
        else:
            flat[prefix + key] = value
    return flat


def _refuse_other(path: Path, config: Mapping[str, Any]) -> None:
    old, new = flatten(completed_config(path)), flatten(config)
    if old.keys() != new.keys():
        strange = ', '.join(sorted(old.keys() ^ new.keys()))
        raise UserError(
            f'{path} was begun with a config of other fields ({strange}), perhaps by another '
            'version of this code: end it with the commit of its environment.json, or begin a new '
            'run in another --workdir'
        )
    fields = [k for k in sorted(old) if _field(old, k) != _field(new, k)]
    if fields:
        differences = '; '.join(
            f'{k} is {_field(old, k)}, not {_field(new, k)}' for k in fields
        )
        raise UserError(
            f'{path} holds a run of another config: there {differences}. '
            'Give its settings to resume it, or another --workdir to begin a new run'
        )


def _refuse_strange(path: Path) -> None:
    """What a run would write over may not be there before it begins."""
    there = [name for name in _OURS if files.exists(path / name)]
    if there:
        raise UserError(
            f'{path} holds {there[0]} and is not the directory of a run, for it holds no '
            'config.json: choose another --workdir'
        )


def _check_name(path: Path) -> None:
    """Orbax, TensorBoard and JSON take names in UTF-8 only."""
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError:
        shown = str(path.absolute()).encode(errors='backslashreplace').decode()
        raise UserError(
            f'{shown} has a name that is not UTF-8: choose another --workdir'
        ) from None
    except OSError as error:
        raise UserError(
            f'there is no directory to work in: {error.strerror}'
        ) from error


def _check_rights(path: Path) -> None:
    """Refuses a place where the directory cannot be made or written to."""
    place = path.absolute()
    while not files.exists(place):
        place = place.parent
    effective = os.access in os.supports_effective_ids
    reason = None
    if not place.is_dir():
        reason = f'{place} is not a directory'
    elif not os.access(place, os.W_OK | os.X_OK, effective_ids=effective):
        reason = f'there is no permission to write in {place}'
    if reason is not None:
        raise UserError(
            f'cannot write to {path}: {reason}; name another directory with --workdir'
        )


def _sweep(path: Path) -> None:
    """Removes what was half written when a process of this run was killed."""
    files.sweep(path, held=True)
    files.sweep(path / 'tensorboard', held=True)
    files.sweep(path / 'translations', held=False)  # another process may evaluate


def _field(config: Mapping[str, Any], key: str) -> str:
    # As JSON, for that is how the stored config was written: a tuple is a list there.
    return json.dumps(config[key], ensure_ascii=False)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds `path/.lock`. The system lets go of it when the process ends, however it ends."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        file = open(path / '.lock', 'a+', encoding='utf-8')
    except OSError as error:
        if files.exists(path / RESULT):
            yield  # it has ended, and may be on a disk that is only read
            return
        raise UserError(
            f'cannot write to {path}: {error.strerror}; name another directory with --workdir'
        ) from error
    with file:
        _lock(file, path)
        yield


def _lock(file: TextIO, path: Path) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read() or 'another process'
        raise UserError(
            f'{path} is in use by {holder}: let it end, stop it, or choose another --workdir'
        ) from None
    except OSError:
        return  # a file system without locks
    file.truncate(0)
    file.write(f'process {os.getpid()} on {platform.node()}')
    file.flush()
