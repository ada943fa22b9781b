"""A run's directory: its name, its config, and that one process at a time uses it."""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from experiments import storage
from experiments.config import load
from experiments.config.load import flatten
from experiments.errors import UserError
from experiments.runs import lock

LONGEST_NAME = 100
CONFIG = 'config.json'
RESULT = 'result.json'
EXTENSIONS = 'extensions.json'
# The fields that may be raised on an existing run, for it to go on further; 0 is no
# limit. How often it logs, evaluates and saves may not change: then no one config would
# give its result.
LIMITS = ('train.steps', 'train.epochs', 'train.patience')
# Of these a run's result does not depend, but for rounding; it goes on with others.
_ANY = 'mesh.'
# What a run would overwrite.
_OVERWRITTEN = (
    *(RESULT, 'metrics.jsonl', 'environment.json', 'tokenizer.model', 'failure.json'),
    *('checkpoints', 'tensorboard', 'translations', EXTENSIONS, 'init.json'),
    'published',
)


def run_name(config_name: str, overrides: Mapping[str, Any]) -> str:
    """The name of the run's directory: `wmt_small,model.num_heads=8`.

    The same settings in any order give the same name; different settings never do. What
    a file system might not keep or distinguish (other characters, capitals, great
    length) is replaced or cut, and a hash of the whole name is added.
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
      UserError: it cannot be written to or has a name that is not UTF-8, it belongs to
        a run of another config (limits may be raised), to a converted checkpoint, or to
        something that is no run.
    """
    _check_name(path)
    _check_trains(path)
    extends = asks_for_more(path, config)
    if not storage.exists(path / CONFIG):
        _check_no_other_files(path)
    elif not extends:
        _check_same_config(path, config)
    if extends or not storage.exists(
        path / RESULT
    ):  # a run that has ended is only shown
        _check_rights(path)


@contextmanager
def open_run(
    path: Path,
    config: Mapping[str, Any],
    extension: Mapping[str, Any] | None = None,
) -> Iterator[bool]:
    """Locks a run's directory for this process; yields whether the run already existed.

    The directory of a run that has ended may be read-only.

    Args:
      extension: what to record where `config` raises limits of the run that is there.
        Its result is then renamed, to `result.step=12.json`.

    Raises:
      UserError: as `check`; or another process uses it. Then it is left as it was.
    """
    check(path, config)
    # A run that has ended may be on a read-only disk.
    with lock.locked(path, optional=storage.exists(path / RESULT)):
        check(path, config)  # again, now that no other process can begin there
        resumes = storage.exists(path / CONFIG)
        extends = asks_for_more(path, config)
        if extends and extension is None:
            _check_same_config(path, config)
        if extends or not storage.exists(path / RESULT):
            _sweep(path)
        if extends:
            assert extension is not None  # without one, it was refused above
            _extend(path, config, extension)
        if not resumes:
            storage.write_json(path / CONFIG, load.to_store(config))
        yield resumes


def asks_for_more(path: Path, config: Mapping[str, Any]) -> bool:
    """Whether a run is there whose config differs in limits that this one raises."""
    if not storage.exists(path / CONFIG):
        return False
    old = flatten(read_config(path))
    new = flatten(config)
    if old.keys() != new.keys():
        return False
    different = _different_fields(old, new)
    return bool(different) and set(different) == raised(old, new).keys()


def raised(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, list[int]]:
    """The limits that a config raises above another's: `{'train.steps': [12, 24]}`."""
    old = flatten(old)
    new = flatten(new)
    limits = {}
    for field in LIMITS:
        if field in old and field in new and _is_more(old[field], new[field]):
            limits[field] = [old[field], new[field]]
    return limits


def _is_more(old: Any, new: Any) -> bool:
    if not isinstance(old, int) or not isinstance(new, int) or old == 0:
        return False
    return new == 0 or new > old


def _extend(
    path: Path, config: Mapping[str, Any], extension: Mapping[str, Any]
) -> None:
    """Makes a run go on; a kill in between leaves it resumable and not finished."""
    if (path / RESULT).exists():
        step = storage.read_json(path / RESULT).get('step')
        os.replace(path / RESULT, path / f'result.step={step}.json')
    before = extensions(path)
    if before[-1:] != [extension]:
        storage.write_json(path / EXTENSIONS, [*before, extension])
    storage.write_json(path / CONFIG, load.to_store(config))


def extensions(path: Path) -> list[dict[str, Any]]:
    """How a run was extended, the earliest first."""
    file = path / EXTENSIONS
    return storage.read_json(file) if file.exists() else []


def read_config(path: Path) -> dict[str, Any]:
    """The config of the run in `path`, nested, as the present version says it.

    Raises:
      UserError: this is not the directory of a run, or it is of another version that
        cannot be read.
    """
    _check_name(path)
    file = path / CONFIG
    if not storage.exists(file):
        raise UserError(
            f'{path} is not the directory of a run: it holds no config.json'
        )
    return load.read_stored(file)


def is_converted(config: Mapping[str, Any]) -> bool:
    """Whether a run's config is that of a checkpoint which was converted to a run."""
    flat = flatten(config)
    # A run that is trained here has such a tokenizer from the run it begins with.
    return flat.get('tokenizer.kind') == 'published' and not flat.get('init_from')


def _check_trains(path: Path) -> None:
    """Refuses a converted checkpoint, which has no state of an optimizer."""
    if storage.exists(path / CONFIG) and is_converted(read_config(path)):
        raise UserError(
            f'{path} is a converted checkpoint, which stays as it is: to train on from '
            f'it give --config.init_from={path}, and another --workdir'
        )


def _check_same_config(path: Path, config: Mapping[str, Any]) -> None:
    """Refuses a config that is not the one of the run that is there."""
    old = flatten(read_config(path))
    new = flatten(config)
    if old.keys() != new.keys():
        strange = ', '.join(sorted(old.keys() ^ new.keys()))
        raise UserError(
            f'{path} was begun with a config of other fields ({strange}), perhaps by '
            'another version of this code: end it with the commit of its '
            'environment.json, or begin a new run in another --workdir'
        )
    fields = _different_fields(old, new)
    if fields:
        differences = '; '.join(
            f'{field} is {_json(old[field])}, not {_json(new[field])}'
            for field in fields
        )
        raise UserError(
            f'{path} holds a run of another config: there {differences}. '
            'Give its settings to resume it, or another --workdir to begin a new run'
        )


def _check_no_other_files(path: Path) -> None:
    """Refuses a directory that is no run's and holds what a run would overwrite."""
    for name in _OVERWRITTEN:
        if storage.exists(path / name):
            raise UserError(
                f'{path} holds {name} and is not the directory of a run, for it holds '
                'no config.json: choose another --workdir'
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
    reason = storage.obstacle(path)
    if reason:
        raise UserError(
            f'cannot write to {path}: {reason}; name another directory with --workdir'
        )


def _sweep(path: Path) -> None:
    """Removes what a killed process of this run had not written to its end."""
    storage.sweep(path, held=True)
    storage.sweep(path / 'tensorboard', held=True)
    storage.sweep(path / 'translations', held=False)  # another process may evaluate


def _different_fields(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The fields of two flat configs whose values must not differ and do, in order."""
    return [
        field
        for field in sorted(old)
        if not field.startswith(_ANY) and _json(old[field]) != _json(new[field])
    ]


def _json(value: Any) -> str:
    # As the stored config was written: in JSON a tuple is a list.
    return json.dumps(value, ensure_ascii=False)
