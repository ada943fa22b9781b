"""A run's metrics: `metrics.jsonl`, a JSON object a line, and TensorBoard events."""

import json
import math
import os
import sys
import time
from io import FileIO
from pathlib import Path
from typing import Any

from experiments import storage
from experiments.errors import UserError
from experiments.runs import tensorboard
from flaxformer_lite.ranges import shown

NAME = 'metrics.jsonl'
_LARGEST_STEP = 2**63 - 1  # of TensorBoard
_REMEDY = ': delete this line'


class MetricsLog:
    """Appends rows to `metrics.jsonl`, and their numbers to TensorBoard's events.

    Opened to resume a run, it keeps the rows up to the checkpoint's step and drops
    later ones, so that none is there twice. The final scores have the step of the last
    checkpoint, and come after it. The events are written again from the rows that stay:
    what was not yet on disk comes back, and TensorBoard sees a run without restarts.

    Args:
      path: the run's directory.
      step: the checkpoint's; 0 for a new run.

    Raises:
      UserError: the disk is full, or the directory cannot be written to; so do all
        methods.
    """

    def __init__(self, path: Path, step: int = 0):
        rows = [
            row
            for row in read_rows(path)
            if row['step'] <= step and row['kind'] != 'final'
        ]
        storage.write(path / NAME, ''.join(map(_line, rows)))
        events = _begin_events(path / 'tensorboard', rows)
        # Not buffered: a kill loses nothing, only a power cut could.
        self._files = [_open(path / NAME), _open(events)]

    def write(self, step: int, kind: str, **values: Any) -> None:
        """Adds a row `{"step": …, "kind": "train", "eval", …, "time": …, **values}`.

        Values are numbers of Python or NumPy, text or None. A number that is not finite
        becomes null, for JSON has none.
        """
        row = {'step': step, 'kind': kind, 'time': round(time.time(), 3)}
        row |= {name: _plain(value) for name, value in values.items()}
        for file, data in zip(
            self._files, (_line(row).encode(), _events(row)), strict=True
        ):
            _append(file, data)

    def flush(self) -> None:
        """Makes sure that all rows are on disk."""
        for file in self._files:
            try:
                os.fsync(file.fileno())
            except OSError as error:
                raise _unwritten(file.name, error) from error

    def close(self) -> None:
        for file in self._files:
            file.close()


class NoMetricsLog:
    """Writes nothing: that of each process but the first, which alone writes."""

    def write(self, step: int, kind: str, **values: Any) -> None:
        pass

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


def _append(file: FileIO, data: bytes) -> None:
    try:
        while data:  # a disk that is nearly full takes only some of it
            data = data[file.write(data) :]
    except OSError as error:
        raise _unwritten(file.name, error) from error


def _open(file: Path) -> FileIO:
    try:
        return open(file, 'ab', buffering=0)
    except OSError as error:
        raise _unwritten(file, error) from error


def _unwritten(file: Path | str, error: OSError) -> UserError:
    return UserError(f'cannot write {file}: {error.strerror}')


def _begin_events(folder: Path, rows: list[dict[str, Any]]) -> Path:
    """A new file of events with these rows, in place of those that are there.

    TensorBoard does not notice when a file that it reads becomes shorter, so each start
    has a file of its own.
    """
    for file in folder.glob('events.out.tfevents.*'):
        storage.remove(file)
    file = folder / f'events.out.tfevents.{time.time_ns()}'
    version = tensorboard.version(time.time())
    storage.write(file, version + b''.join(map(_events, rows)))
    return file


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a run; not a last line that a kill cut short.

    Raises:
      UserError: the file cannot be read, or a line is not a row.
    """
    file = path / NAME
    if not storage.exists(file):
        return []
    try:
        # What follows the last line end is not a row yet.
        *lines, _ = file.read_bytes().split(b'\n')
    except OSError as error:
        raise UserError(f'cannot read {file}: {error.strerror}') from error
    return [_row(line, f'{file}, line {i}') for i, line in enumerate(lines, 1)]


def dev_scores(path: Path) -> dict[int, float]:
    """Step → BLEU of the dev set, in order, as a run has logged it."""
    return {
        row['step']: row['bleu']
        for row in read_rows(path)
        if row['kind'] == 'eval' and row.get('bleu') is not None
    }


def _row(line: bytes, where: str) -> dict[str, Any]:
    try:
        row = storage.parse_json(line)
    except ValueError as error:
        raise UserError(f'{where}: not a row of metrics ({error}){_REMEDY}') from error
    if not isinstance(row, dict) or not row.keys() >= {'step', 'kind'}:
        raise UserError(f'{where}: not a row of metrics{_REMEDY}')
    for name, value in row.items():
        if not _is_allowed(name, value):
            raise UserError(f'{where}: {name} cannot be {shown(value)}{_REMEDY}')
    return row


def _is_allowed(name: str, value: Any) -> bool:
    """Whether a row can have this value: `write` gives it, TensorBoard can show it."""
    if name == 'step':
        return type(value) is int and 0 <= value <= _LARGEST_STEP
    if isinstance(value, int | float):
        return name != 'kind' and abs(value) <= sys.float_info.max
    if name == 'time':
        return False
    return isinstance(value, str) or (value is None and name != 'kind')


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False, allow_nan=False) + '\n'


def _plain(value: Any) -> Any:
    """The value as JSON can hold it."""
    if hasattr(value, 'item'):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _events(row: dict[str, Any]) -> bytes:
    """An event for each number of a row, named `train/loss` or `eval/val/loss`."""
    group = '/'.join(str(row[key]) for key in ('kind', 'set') if row.get(key))
    time_of_row = row.get('time', 0)
    events = []
    for name, value in row.items():
        if name in ('step', 'time') or not isinstance(value, int | float):
            continue
        tag = f'{group}/{name}'
        events.append(tensorboard.scalar(time_of_row, row['step'], tag, value))
    return b''.join(events)
