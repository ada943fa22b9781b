"""A run's metrics: `metrics.jsonl`, a JSON object a line."""

import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from experiments import metrics, storage
from experiments.config.schema import ExperimentConfig
from experiments.errors import UserError
from experiments.metrics.base import Metric
from experiments.runs import entries

NAME = 'metrics.jsonl'
Row = dict[str, Any]


class MetricsLog:
    """Appends rows to `metrics.jsonl`.

    Opened to resume a run, it keeps the rows up to the checkpoint's step and drops
    later ones, so that none is there twice. The final scores have the step of the last
    checkpoint, and come after it.

    Args:
      path: the run's directory; None where nothing is to be written, as by each process
        but the first.
      step: the checkpoint's; 0 for a new run.
      complete: is given each row before it is written, and may add to it.

    Raises:
      UserError: the disk is full, or the directory cannot be written to; so do all
        methods.
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
            rows = [
                row
                for row in read_rows(path)
                if row['step'] <= step and row['kind'] != 'final'
            ]
            storage.write(self._file, ''.join(map(_line, rows)))

    def write(self, step: int, kind: str, **values: Any) -> None:
        """Adds a row `{"step": …, "kind": "train", "eval", …, "time": …, **values}`.

        Values are numbers of Python or NumPy, text or None. A number that is not finite
        becomes null, for JSON has none.
        """
        if self._file is None:
            return
        row = {'step': step, 'kind': kind, 'time': round(time.time(), 3)}
        row |= {name: _plain(value) for name, value in values.items()}
        self._complete(row)
        storage.append(self._file, _line(row).encode())

    def flush(self) -> None:
        """Makes sure that all rows are on disk."""
        if self._file is not None:
            with storage.as_user_error('write', self._file):
                storage.sync(self._file)


def read_rows(path: Path) -> list[Row]:
    """Returns the rows of a run, without a last line that a kill cut short.

    Raises:
      UserError: The file cannot be read, or a line isn't a row.
    """
    return list(iterate_rows(path))


def iterate_rows(path: Path) -> Iterator[Row]:
    """Yields the rows as `read_rows` does, and holds one of them at a time."""
    file = path / NAME
    if not storage.exists(file):
        return
    for number, line in enumerate(storage.lines(file), 1):
        # What follows the last line end is not a row yet.
        if line.endswith(b'\n'):
            yield _row(line, f'{file}, line {number}')


def deciding_metric(config: ExperimentConfig) -> Metric:
    """The metric that says which checkpoints are best."""
    return metrics.deciding(config.evaluation.metrics, config.evaluation.best)


def dev_scores(path: Path, metric: Metric) -> dict[int, float]:
    """Step → score of the dev set, higher for better, in the order of a run's log."""
    return {
        row['step']: metric.rank(row[metric.name])
        for row in read_rows(path)
        if row['kind'] == 'eval' and row.get(metric.name) is not None
    }


def _row(line: bytes, where: str) -> Row:
    fix = 'Delete this line'
    try:
        row = storage.parse_json(line)
    except ValueError as error:
        raise UserError(f'{where}: not a row of metrics ({error}). {fix}') from None
    entries.check(where, fix, row, entries.ROW, entries.OPTIONAL)
    return row


def _line(row: Row) -> str:
    return json.dumps(row, ensure_ascii=False, allow_nan=False) + '\n'


def _plain(value: Any) -> Any:
    """The value as JSON can hold it."""
    if hasattr(value, 'item'):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
