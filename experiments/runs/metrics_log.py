"""A run's metrics: `metrics.jsonl`, a JSON object a line, and TensorBoard events.

The packages that write events import TensorFlow, or PyTorch where it is installed,
which takes seconds at the start of every run. So their few formats are written out
here: protocol-buffer Event messages in TFRecords.
"""

import json
import math
import os
import struct
import time
from io import FileIO
from pathlib import Path
from typing import Any

from experiments import storage
from experiments.errors import UserError
from experiments.metrics.base import Metric

NAME = 'metrics.jsonl'
LARGEST = 3.4028234663852886e38  # of a float32


class MetricsLog:
    """Appends rows to `metrics.jsonl`, and their numbers to TensorBoard's events.

    Opened to resume a run, it keeps the rows up to the checkpoint's step and drops
    later ones, so that none is there twice. The final scores have the step of the last
    checkpoint, and come after it. The events are written again from the rows that stay,
    in a new file: TensorBoard does not notice when one becomes shorter.

    Args:
      path: the run's directory; None where nothing is to be written, as by each process
        but the first.
      step: the checkpoint's; 0 for a new run.

    Raises:
      UserError: the disk is full, or the directory cannot be written to; so do all
        methods.
    """

    def __init__(self, path: Path | None, step: int = 0):
        self._files: list[FileIO] = []
        if path is None:
            return
        rows = [
            row
            for row in read_rows(path)
            if row['step'] <= step and row['kind'] != 'final'
        ]
        storage.write(path / NAME, ''.join(map(_line, rows)))
        folder = path / 'tensorboard'
        for file in folder.glob('*tfevents*'):
            storage.remove(file)
        events = folder / f'events.out.tfevents.{time.time_ns()}'
        storage.write(events, version(time.time()) + b''.join(map(_events, rows)))
        # Not buffered: a kill loses nothing, only a power cut could.
        self._files = [open(file, 'ab', buffering=0) for file in (path / NAME, events)]

    def write(self, step: int, kind: str, **values: Any) -> None:
        """Adds a row `{"step": …, "kind": "train", "eval", …, "time": …, **values}`.

        Values are numbers of Python or NumPy, text or None. A number that is not finite
        becomes null, for JSON has none.
        """
        row = {'step': step, 'kind': kind, 'time': round(time.time(), 3)}
        row |= {name: _plain(value) for name, value in values.items()}
        both = (_line(row).encode(), _events(row))
        for file, data in zip(self._files, both, strict=False):
            _append(file, data)

    def flush(self) -> None:
        """Makes sure that all rows are on disk."""
        for file in self._files:
            with storage.as_user_error('write', Path(file.name)):
                os.fsync(file.fileno())

    def close(self) -> None:
        for file in self._files:
            file.close()


def _append(file: FileIO, data: bytes) -> None:
    with storage.as_user_error('write', Path(file.name)):
        while data:  # a disk that is nearly full takes only some of it
            data = data[file.write(data) :]


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a run; not a last line that a kill cut short.

    Raises:
      UserError: the file cannot be read, or a line is not a row.
    """
    file = path / NAME
    if not storage.exists(file):
        return []
    with storage.as_user_error('read', file):
        # What follows the last line end is not a row yet.
        *lines, _ = file.read_bytes().split(b'\n')
    return [_row(line, f'{file}, line {i}') for i, line in enumerate(lines, 1)]


def dev_scores(path: Path, metric: Metric) -> dict[int, float]:
    """Step → score of the dev set, higher for better, in the order of a run's log."""
    return {
        row['step']: metric.rank(row[metric.name])
        for row in read_rows(path)
        if row['kind'] == 'eval' and row.get(metric.name) is not None
    }


def _row(line: bytes, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
        if not isinstance(row['step'], int) or not isinstance(row['kind'], str):
            raise TypeError('step is a whole number, kind a text')
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f'{where}: not a row of metrics ({error}): delete this line'
        ) from error
    return row


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
        events.append(scalar(time_of_row, row['step'], tag, value))
    return b''.join(events)


def version(time: float) -> bytes:
    """The record that a file of events begins with."""
    return _record(_double(1, time) + _bytes(3, b'brain.Event:2'))


def scalar(time: float, step: int, name: str, value: float) -> bytes:
    """The record of one value. `time` is in seconds since 1970."""
    if abs(value) > LARGEST:
        value = math.copysign(math.inf, value)
    number = _key(2, 5) + struct.pack('<f', value)
    summary = _bytes(1, _bytes(1, name.encode()) + number)
    return _record(_double(1, time) + _key(2, 0) + _varint(step) + _bytes(5, summary))


def _record(data: bytes) -> bytes:
    length = struct.pack('<Q', len(data))
    return length + _checksum(length) + data + _checksum(data)


def _key(field: int, wire_type: int) -> bytes:
    return bytes([field << 3 | wire_type])


def _double(field: int, value: float) -> bytes:
    return _key(field, 1) + struct.pack('<d', value)


def _bytes(field: int, value: bytes) -> bytes:
    return _key(field, 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; the eighth says that more follow."""
    digits = []
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])


def _checksum(data: bytes) -> bytes:
    """CRC-32C, rotated and shifted as TFRecords have it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack('<I', ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _table_entry(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value


_TABLE = [_table_entry(byte) for byte in range(256)]
