"""TensorBoard events: protocol buffers in TFRecords."""

import dataclasses
import math
import struct
import time

from experiments import storage
from experiments.hooks.base import Hook, Row, numbers

FLOAT32_MAX = 3.4028234663852886e38  # maximum of float32


@dataclasses.dataclass(kw_only=True)
class Tensorboard(Hook):
    """Writes an event for each number of a row, to `tensorboard/` of the run.

    A resume rewrites the events of the kept rows to a new file, since TensorBoard
    doesn't notice a file that has become shorter.
    """

    def start(self, run):
        folder = run.path / 'tensorboard'
        for file in folder.glob('*tfevents*'):
            storage.remove(file)
        self._file = folder / f'events.out.tfevents.{time.time_ns()}'
        events = b''.join(map(_events, run.rows))
        storage.write(self._file, version(time.time()) + events)

    def row(self, row):
        storage.append(self._file, _events(row))


def _events(row: Row) -> bytes:
    time_of_row = row.get('time', 0)
    events = [scalar(time_of_row, row['step'], *x) for x in numbers(row).items()]
    return b''.join(events)


def version(time: float) -> bytes:
    """Returns the record that begins a file."""
    return _record(_double(1, time) + _bytes(3, b'brain.Event:2'))


def scalar(time: float, step: int, name: str, value: float) -> bytes:
    """Returns the record of one value; `time` is in seconds since 1970."""
    if abs(value) > FLOAT32_MAX:
        value = math.copysign(math.inf, value)
    tag = _bytes(1, name.encode())
    number = _key(2, 5) + struct.pack('<f', value)
    summary = _bytes(1, tag + number)
    at = _double(1, time) + _key(2, 0) + _varint(step)
    return _record(at + _bytes(5, summary))


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
    """Encodes seven bits per byte, lowest first; the eighth bit marks further bytes."""
    digits = []
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])


def _checksum(data: bytes) -> bytes:
    """Computes CRC-32C, masked as in TFRecords."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    rotated = crc >> 15 | crc << 17
    masked = rotated + 0xA282EAD8
    return struct.pack('<I', masked & 0xFFFFFFFF)


def _table_entry(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value


_TABLE = [_table_entry(byte) for byte in range(256)]
