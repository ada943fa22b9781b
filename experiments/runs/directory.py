"""A run's directory: its name, its config, and that one process at a time uses it."""

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
from flaxformer_lite.config import spec

Config = Mapping[str, Any]  # nested, or flat: 'model.num_heads'
RUNS = Path('runs')  # where directories of runs are that no flag names
LONGEST_NAME = 60
CONFIG = load.CONFIG
RESULT = 'result.json'
LOCK = '.lock'
# What a run would do in a directory.
BEGINS = 'begins'
RESUMES = 'resumes'
GOES_FURTHER = 'goes further'
HAS_ENDED = 'has ended'
# Limits that may be raised, so that a run trains for longer.
_LIMITS = ('train.steps', 'train.epochs')
# Of these a run's result does not depend, but for rounding; it goes on with others.
_ANY = ('mesh.', 'train.hooks')
# What a run would overwrite.
_OVERWRITTEN = (RESULT, 'metrics.jsonl', 'tokenizer.model', 'checkpoints')


def run_name(config_name: str, overrides: Config) -> str:
    """The name of the run's directory: `wmt_small,model.num_heads=8`.

    The same settings in any order give the same name; different settings never do. What
    a file system might not keep or distinguish (other characters, capitals) is
    replaced; a longer name has the last words of the fields, and is cut. A hash of the
    whole name is then added.
    """
    settings = [f'{k}={_as_text(v)}' for k, v in sorted(overrides.items())]
    name = ','.join([config_name, *settings])
    safe = re.sub(r'[^a-z0-9._=,+-]+', '_', name.lower())
    is_short = len(safe) <= LONGEST_NAME
    if is_short and safe == name and not safe.endswith('.'):
        return safe
    short = re.sub(r',[a-z_.]+\.', ',', safe)
    short = short[: LONGEST_NAME - 9].rstrip('._')
    digest = hashlib.sha256(name.encode(errors='surrogatepass')).hexdigest()
    return f'{short}~{digest[:8]}'


def folder_name(text: str) -> str:
    """The name of a folder for an arm, or for a value: `ReZero, h=4` → `rezero_h=4`.

    Different texts may have the same one.
    """
    return re.sub(r'[^\w.=+-]+', '_', text.lower()).strip('._')[:LONGEST_NAME]


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def check_directory(path: Path, config: Config) -> str:
    """What a run of this config would do in a directory; writes nothing.

    Returns:
      `BEGINS`, `RESUMES`, `GOES_FURTHER`, which is to more steps or epochs than the run
      that is there was to make, or `HAS_ENDED`: there is its result, and nothing to do.

    Raises:
      UserError: it cannot be written to, it belongs to a run of another config, to a
        converted checkpoint, or to something that is no run.
    """
    there = state(path, config)
    reason = storage.obstacle(path)
    if reason and there != HAS_ENDED:  # a result is only shown
        raise UserError(
            f'cannot write to {path}: {reason}; name another directory with --workdir'
        )
    return there


def state(path: Path, config: Config) -> str:
    """As `check_directory`, whether or not the directory can be written to."""
    if not storage.exists(path / CONFIG):
        for name in _OVERWRITTEN:
            if storage.exists(path / name):
                raise UserError(
                    f'{path} holds {name} and is not the directory of a run, for it '
                    'holds no config.json: choose another --workdir'
                )
        return BEGINS
    stored = read_config(path)
    if is_converted(stored):
        raise UserError(
            f'{path} is a converted checkpoint, which stays as it is: to train on from '
            f'it give --config.init_from={path}, and another --workdir'
        )
    there = flatten(stored)
    here = flatten(config)
    fields = _different_fields(there, here)
    if fields and all(_is_raised_limit(field, there, here) for field in fields):
        return GOES_FURTHER
    if fields:
        differences = [
            f'{field} is {_json(there.get(field))}, not {_json(here.get(field))}'
            for field in fields
        ]
        raise UserError(
            f'{path} holds a run of another config: there {"; ".join(differences)}. '
            'Give its settings to resume it, or another --workdir, or the file of its '
            'sweep another name, to begin a new run'
        )
    return HAS_ENDED if storage.exists(path / RESULT) else RESUMES


@contextmanager
def open_run(path: Path, config: Config) -> Iterator[bool]:
    """Locks a run's directory for this process; yields whether the run already existed.

    Removes the result if `config` asks for more steps or epochs.

    Raises:
      UserError: as `check_directory`, which it calls once no other process can begin
        there; or another process uses it.
    """
    with storage.locked(path / LOCK):
        state = check_directory(path, config)
        if state != HAS_ENDED:
            # What a killed process of this run had not written to its end.
            storage.remove_leftovers(path)
            storage.remove(path / RESULT)
        if state in (BEGINS, GOES_FURTHER):
            storage.write_json(path / CONFIG, load.to_store(config))
        yield state != BEGINS


def read_config(path: Path) -> dict[str, Any]:
    """The config of the run in `path`, nested, as the present version says it.

    Raises:
      UserError: this is not the directory of a run, or it is of another version that
        cannot be read.
    """
    file = path / CONFIG
    if not storage.exists(file):
        raise UserError(
            f'{path} is not the directory of a run: it holds no config.json'
        )
    return load.read_stored(file)


def is_converted(config: Config) -> bool:
    """Whether a run's config is that of a checkpoint which was converted to a run."""
    flat = flatten(config)
    parsed = map(spec.parse, spec.entries(flat.get('tokenizer', 'sentencepiece')))
    keeps_files = any(name == 'huggingface' and not x.get('path') for name, x in parsed)
    # A run that is trained here has such a tokenizer from the run it begins with.
    return keeps_files and not flat.get('init_from')


def _is_raised_limit(field: str, there: Config, here: Config) -> bool:
    """Returns whether a field limits training and is higher than before."""
    return field in _LIMITS and 0 < there[field] < here[field]


def _different_fields(there: Config, here: Config) -> list[str]:
    """The fields of two flat configs whose values must not differ and do, in order."""
    return [
        field
        for field in sorted(there.keys() | here.keys())
        if not field.startswith(_ANY)
        and _json(there.get(field)) != _json(here.get(field))
    ]


def _json(value: Any) -> str:
    # As the stored config was written: in JSON a tuple is a list.
    return json.dumps(value, ensure_ascii=False)
