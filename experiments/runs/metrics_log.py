"""A run's metrics: `metrics.jsonl`, one JSON object per line."""

import json
import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from experiments import storage
from experiments.errors import UserError
from experiments.metrics.base import Metric
from experiments.runs import entries

NAME = 'metrics.jsonl'
ARCHIVE = 'metrics.before.jsonl'  # rows of earlier attempts, whose checkpoints are gone
Row = dict[str, Any]


class MetricsLog:
    """A writer that appends rows to `metrics.jsonl`.

    A resumed run keeps the rows up to the checkpoint's step, without final scores, so
    that no row is duplicated.

    Args:
      path: The run's directory; None, as in all processes but the first, disables it.
      step: The checkpoint's step; 0 for a new run.
      complete: Called with each row before it is written. Hooks add their values here.
    """

    def __init__(
        self,
        path: Path | None,
        step: int = 0,
        complete: Callable[[Row], None] = lambda row: None,
    ):
        self._file = path / NAME if path else None
        self._complete = complete
        if path and self._file:
            rows = _resumed_rows(read_rows(path), step)
            storage.write(self._file, ''.join(map(_line, rows)))

    def write(self, step: int, kind: str, **values: Any) -> None:
        """Adds a row `{"step": …, "kind": "train", "eval", …, "time": …, **values}`.

        Values are numbers, also NumPy's, text or None. Non-finite numbers become null.
        """
        if self._file is None:
            return
        row = {'step': step, 'kind': kind, 'time': round(time.time(), 3)}
        row |= {name: _plain(value) for name, value in values.items()}
        self._complete(row)
        storage.append(self._file, _line(row).encode())

    def flush(self) -> None:
        if self._file is not None:
            with storage.as_user_error('write', self._file):
                storage.sync(self._file)


def read_rows(path: Path) -> list[Row]:
    """Returns the rows of a run, without a last line that a kill cut short."""
    file = path / NAME
    if not storage.exists(file):
        return []
    with storage.as_user_error('read', file):
        lines = file.read_bytes().splitlines(keepends=True)
    return [
        _row(line, f'{file}, line {number}')
        for number, line in enumerate(lines, 1)
        if line.endswith(b'\n')
    ]


def _resumed_rows(rows: Iterable[Row], step: int) -> list[Row]:
    return [row for row in rows if row['step'] <= step and row['kind'] != 'final']


def archive_rows(path: Path) -> int:
    """Moves the rows of a run that restarts to the end of `metrics.before.jsonl`.

    Returns their last step, or 0 without rows.
    """
    rows = read_rows(path)
    if not rows:
        return 0
    storage.append(path / ARCHIVE, ''.join(map(_line, rows)).encode())
    storage.write(path / NAME, '')
    return max(row['step'] for row in rows)


def dev_scores(rows: Iterable[Row], metric: Metric) -> dict[int, float]:
    """Returns the dev set scores by step, higher is better."""
    return {
        row['step']: metric.rank(row[metric.name])
        for row in rows
        if row['kind'] == 'eval' and row.get(metric.name) is not None
    }


def _row(line: bytes, where: str) -> Row:
    fix = 'Delete this line.'
    try:
        row = msgspec.json.decode(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f'{where}: not a row of metrics ({error}). {fix}') from None
    entries.check_scores(where, row, entries.Row, fix)
    return row


def _line(row: Row) -> str:
    return json.dumps(row, ensure_ascii=False, allow_nan=False) + '\n'


def _plain(value: Any) -> Any:
    if hasattr(value, 'item'):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
