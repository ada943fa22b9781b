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

from experiments import files
from experiments.errors import UserError

try:
    import fcntl
except ImportError:  # Windows, where nothing keeps two processes apart
    fcntl = None

LONGEST_NAME = 100
RESULT = 'result.json'
EXTENSIONS = 'extensions.json'
# What may be raised on a run that is there, for it to go on further; 0 is no limit. How often it
# logs, evaluates and saves may not change: no one config would then have the result.
LIMITS = ('train.steps', 'train.epochs', 'train.patience')


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
    return f'{safe[:LONGEST_NAME].rstrip("._")}~{hashlib.sha256(name.encode()).hexdigest()[:8]}'


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@contextmanager
def open_run(
    path: Path,
    config: Mapping[str, Any],
    extension: Mapping[str, Any] | None = None,
) -> Iterator[bool]:
    """Holds a run's directory for this process, and yields whether the run was there before.

    Args:
      extension: what is to be kept of it where `config` raises limits of the run that is there;
        its result is then set aside, as `result.step=12.json`.

    Raises:
      UserError: the directory cannot be written to, another process works in it, it belongs to a
        run of another config, or to something that is no run; then it is left as it was.
    """
    with _locked(path):
        resumes = (path / 'config.json').exists()
        if resumes and extension and asks_for_more(path, config):
            _extend(path, config, extension)
        elif resumes:
            _refuse_other(path, config)
        else:
            _refuse_strange(path)
            files.write_json(path / 'config.json', config)
        yield resumes


def asks_for_more(path: Path, config: Mapping[str, Any]) -> bool:
    """Whether there is a run whose config is this one but for limits, which this one raises."""
    if not (path / 'config.json').exists():
        return False
    old, new = flatten(read_config(path)), flatten(config)
    if old.keys() != new.keys():
        return False
    different = {k for k in old if _field(old, k) != _field(new, k)}
    return bool(different) and different == raised(old, new).keys()


def raised(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, list[int]]:
    """The limits that one config raises above another's: `{'train.steps': [12, 24]}`."""
    old, new = flatten(old), flatten(new)
    pairs = {k: [old[k], new[k]] for k in LIMITS if k in old and k in new}
    return {k: pair for k, pair in pairs.items() if _is_more(*pair)}


def _is_more(old: Any, new: Any) -> bool:
    if not isinstance(old, int) or not isinstance(new, int) or old == 0:
        return False
    return new == 0 or new > old


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
    files.write_json(path / 'config.json', config)


def extensions(path: Path) -> list[dict[str, Any]]:
    """How a run was extended, the first time first."""
    file = path / EXTENSIONS
    return files.read_json(file) if file.exists() else []


def read_config(path: Path) -> dict[str, Any]:
    """The config of the run in `path`, nested as `open_run` was given it.

    Raises:
      UserError: this is not the directory of a run.
    """
    if not (path / 'config.json').exists():
        raise UserError(
            f'{path} is not the directory of a run: it holds no config.json'
        )
    config = files.read_json(path / 'config.json')
    if not isinstance(config, dict):
        raise UserError(f'{path / "config.json"} is not the config of a run')
    if isinstance(config.get('train'), dict):
        # Earlier versions had no such field, and never stopped early.
        config['train'].setdefault('patience', 0)
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
    old, new = flatten(read_config(path)), flatten(config)
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
    ours = (
        'result.json',
        'metrics.jsonl',
        'checkpoints',
        'tensorboard',
        'translations',
    )
    there = [name for name in ours if (path / name).exists()]
    if there:
        raise UserError(
            f'{path} holds {there[0]} and is not the directory of a run, for it holds no '
            'config.json: choose another --workdir'
        )


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
