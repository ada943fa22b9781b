"""A run's directory: name, config and lock."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from experiments import storage
from experiments.config import load
from experiments.config.load import flatten
from experiments.errors import UserError
from flaxformer_lite.config.spec import Component

Config = Mapping[str, Any]  # nested, or flat: 'model.num_heads'
RUNS = Path('runs')  # default parent of run directories
LONGEST_NAME = 60
CONFIG = load.CONFIG
RESULT = 'result.json'
LOCK = '.lock'
# The possible states of a run's directory, from `check_directory`.
NEW = 'begins'
RESUMABLE = 'resumes'
EXTENDED = 'goes further'
COMPLETE = 'has ended'
# Limits that can be raised to train an existing run for longer.
_LENGTH_FIELDS = ('train.steps', 'train.epochs')
# Fields that may differ when a run resumes: they change its result only by rounding.
_NEUTRAL_FIELDS = ('mesh.', 'train.hooks')
# Files that a new run would overwrite.
_OVERWRITTEN = (RESULT, 'metrics.jsonl', 'tokenizer.model', 'checkpoints')


def run_name(config_name: str, overrides: Config) -> str:
    """Returns the name of the run's directory, such as `wmt_small,model.num_heads=8`.

    The order of the settings doesn't matter, and different settings never share a name.
    A hash ends names that are cut or have characters that file systems may confuse.
    """
    settings = [f'{k}={_as_text(v)}' for k, v in sorted(overrides.items())]
    name = ','.join([config_name, *settings])
    safe = re.sub(r'[^a-z0-9._=,+-]+', '_', name.lower())
    is_short = len(safe) <= LONGEST_NAME
    if is_short and safe == name and not safe.endswith('.'):
        return safe
    short = re.sub(r',[a-z_]+\.', ',', safe)
    short = short[: LONGEST_NAME - 9].rstrip('._')
    digest = hashlib.sha256(name.encode(errors='surrogatepass')).hexdigest()
    return f'{short}~{digest[:8]}'


def folder_name(text: str) -> str:
    """Returns the folder name of an arm or a value: `ReZero, h=4` → `rezero_h=4`."""
    return re.sub(r'[^\w.=+-]+', '_', text.lower()).strip('._')[:LONGEST_NAME]


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def check_directory(path: Path, config: Config) -> str:
    """Returns the state of a directory for a run of this config; leaves it unchanged.

    The state is `EXTENDED` if the config has more steps or epochs than the stored
    one.
    """
    there = state(path, config)
    reason = storage.obstacle(path)
    if reason and there != COMPLETE:  # showing a finished run writes nothing
        raise UserError(
            f'{path}: cannot be written, {reason}. Choose another --workdir.'
        )
    return there


def state(path: Path, config: Config) -> str:
    """Returns the same as `check_directory`, also for a read-only directory."""
    if not storage.exists(path / CONFIG):
        for name in _OVERWRITTEN:
            if storage.exists(path / name):
                raise UserError(
                    f'{path} has {name} but no config.json, so it is not a run '
                    'directory. Choose another --workdir.'
                )
        return NEW
    stored = read_config(path)
    if is_converted(stored):
        raise UserError(
            f'{path} is a converted checkpoint, which is never overwritten. To train '
            f'from it, pass --config.init_from={path} and another --workdir.'
        )
    there = flatten(stored)
    here = flatten(config)
    fields = _different_fields(there, here)
    if fields and all(_is_raised_limit(field, there, here) for field in fields):
        return EXTENDED
    if fields:
        differences = [
            f'{field} is {_json(there.get(field))}, not {_json(here.get(field))}'
            for field in fields
        ]
        raise UserError(
            f'{path} holds a run with a different config: there, '
            f'{"; ".join(differences)}. Use its settings to resume it. To start a new '
            'run, choose another --workdir, or rename the sweep file.'
        )
    return COMPLETE if storage.exists(path / RESULT) else RESUMABLE


@contextmanager
def open_run(path: Path, config: Config) -> Iterator[None]:
    """Locks a run's directory for this process, and makes it for a new run.

    Removes the result if `config` asks for more steps or epochs.
    """
    with storage.lock(path / LOCK):
        state = check_directory(path, config)
        if state != COMPLETE:
            # A killed process of this run may have left incomplete files.
            for folder in (path, path / 'translations', path / 'published'):
                storage.remove_leftovers(folder)
            storage.remove(path / RESULT)
        if state in (NEW, EXTENDED):
            storage.write_json(path / CONFIG, load.to_store(config))
        yield


def read_config(path: Path) -> dict[str, Any]:
    """Returns the nested config of a run, converted to the current version."""
    return load.read_stored(path / CONFIG)


def is_converted(config: Config) -> bool:
    entries = Component.of(config.get('tokenizer', 'sentencepiece')).entries
    keeps_files = any(
        entry.name == 'huggingface' and not entry.arguments.get('path')
        for entry in entries
    )
    # A run trained here gets such a tokenizer from its init_from only.
    return keeps_files and not config.get('init_from')


def _is_raised_limit(field: str, there: Config, here: Config) -> bool:
    return field in _LENGTH_FIELDS and 0 < there[field] < here[field]


def _different_fields(there: Config, here: Config) -> list[str]:
    return [
        field
        for field in sorted(there.keys() | here.keys())
        if not field.startswith(_NEUTRAL_FIELDS)
        and _json(there.get(field)) != _json(here.get(field))
    ]


def _json(value: Any) -> str:
    # JSON stores a tuple as a list.
    return json.dumps(value, ensure_ascii=False)
