"""Reads a run for a report, finished or not: config, result, metrics, environment."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments import storage
from experiments.config.load import flatten
from experiments.errors import UserError
from experiments.evaluation import translation_files
from experiments.runs import directory, metrics_log, result_file

FAILURE = 'failure.json'
FAILED = ('diverged', 'failed')
# The fields in which the runs of one arm may differ.
SEEDS = ('train.seed', 'train.init_seed', 'train.data_seed', 'train.dropout_seed')
Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Run:
    """What is known of a run.

    Attributes:
      path: its directory.
      config: its fields, flat.
      status: finished, unfinished, converted, or one of `FAILED`.
      message: how it failed; empty if it did not.
      result: its `result.json`, or the part of it that the metrics give so far.
      rows: of its metrics.
      environment: its `environment.json`; empty where there is none.
    """

    path: Path
    config: dict[str, Any]
    status: str
    message: str
    result: dict[str, Any]
    rows: list[Row]
    environment: dict[str, Any]

    @property
    def finished(self) -> bool:
        return self.status == 'finished'

    @property
    def seeds(self) -> tuple[Any, ...]:
        """The seeds in use, each its own or `train.seed`: equal for equal runs."""
        first, *others = [self.config.get(field) for field in SEEDS]
        return (first, *(first if seed is None else seed for seed in others))

    @property
    def seed(self) -> str:
        """Its seeds in words: `3`, or `3, data_seed 5`."""
        first, *_ = self.seeds
        words = [str(first)]
        for field in SEEDS[1:]:
            if self.config.get(field) not in (None, first):
                words.append(f'{field.removeprefix("train.")} {self.config[field]}')
        return ', '.join(words)

    @property
    def tokens(self) -> float | None:
        """Target tokens that it was trained on; None where only the end would tell."""
        speed = self.result.get('tokens_per_second')
        seconds = self.result.get('train_seconds')
        if speed is None or seconds is None:
            return None
        return speed * seconds

    @property
    def evaluations(self) -> dict[str, dict[str, Any]]:
        """Scores by set."""
        return self.result['evaluations']

    def dev_rows(self) -> list[Row]:
        """The rows of the dev set, which is the one that is evaluated first."""
        rows = [row for row in self.rows if row['kind'] == 'eval']
        return [row for row in rows if row.get('set') == rows[0].get('set')]


def read(path: Path) -> Run:
    """What is known of the run in a directory.

    Raises:
      UserError: this is not the directory of a run, or a file of it cannot be read.
    """
    config = flatten(directory.read_config(path))
    rows = metrics_log.read_rows(path)
    status = 'converted' if directory.is_converted(config) else 'unfinished'
    message = ''
    if storage.exists(path / directory.RESULT):
        status = 'finished'
        result = result_file.read(path, whole=False)
    else:
        result = _so_far(rows)
        if status == 'converted':
            result['evaluations'] = _scored_since(path, result['step'])
        if storage.exists(path / FAILURE):
            status, message = _failure(path / FAILURE)
    return Run(path, config, status, message, result, rows, _environment(path))


def _so_far(rows: Sequence[Row]) -> dict[str, Any]:
    """The part of a result that the metrics of an unfinished run give."""
    result: dict[str, Any] = {'step': rows[-1]['step'] if rows else 0}
    result['evaluations'] = {}
    for row in rows:
        if row['kind'] == 'train' and 'tokens_per_second' in row:
            result['tokens_per_second'] = row['tokens_per_second']
        if row['kind'] == 'eval' and 'set' in row:
            result['evaluations'][row['set']] = row
    return result


def _scored_since(path: Path, step: int) -> dict[str, Any]:
    """Scores by set, of a run that nothing but `experiments.evaluate` has scored."""
    pattern = translation_files.outputs_path(path, '*', step).with_suffix('.json')
    found = {}
    for file in sorted(pattern.parent.glob(pattern.name)):
        found[file.name.partition('.step=')[0]] = result_file.read_scores(file)
    return found


def _failure(file: Path) -> tuple[str, str]:
    """Status and message of a run that ended by an error."""
    failure = storage.read_json(file)
    if not isinstance(failure, dict) or failure.get('status') not in FAILED:
        raise UserError(
            f'{file} does not say how a run failed: remove it, and start the run again'
        )
    return failure['status'], str(failure.get('message', ''))


def _environment(path: Path) -> dict[str, Any]:
    file = path / 'environment.json'
    environment = storage.read_json(file) if storage.exists(file) else {}
    return environment if isinstance(environment, dict) else {}


def lines(run: Run, name: str) -> tuple[list[str], list[str], list[str]] | None:
    """Sources, references and final translations of a set; None if they are not there.

    Raises:
      UserError: a file cannot be read, or they have not as many lines each.
    """
    steps = run.result.get('averaged_steps')
    if not steps:
        return None
    outputs = translation_files.outputs_path(run.path, name, max(steps), len(steps))
    paths = (
        outputs.with_name(f'{name}.source.txt'),
        outputs.with_name(f'{name}.reference.txt'),
        outputs,
    )
    if not all(storage.exists(path) for path in paths):
        return None
    sources, references, translations = [_lines(path) for path in paths]
    if not len(sources) == len(references) == len(translations):
        raise UserError(
            f'{outputs} has not as many lines as the sources and references beside '
            'it: score the run again with experiments.evaluate'
        )
    return sources, references, translations


def pairs(path: Path, name: str = '') -> list[tuple[str, str]]:
    """Sources and references of a set that the run was scored on; [] before that.

    Args:
      path: the run's directory.
      name: of the set; empty: `test`, or else the first one.

    Raises:
      UserError: a file cannot be read, or they have not as many lines each.
    """
    folder = path / 'translations'
    ending = '.source.txt'
    sets = sorted(x.name.removesuffix(ending) for x in folder.glob(f'*{ending}'))
    if not name and sets:
        name = 'test' if 'test' in sets else sets[0]
    reference = folder / f'{name}.reference.txt'
    if name not in sets or not storage.exists(reference):
        return []
    sources, references = _lines(folder / f'{name}{ending}'), _lines(reference)
    if len(sources) != len(references):
        raise UserError(
            f'{reference} has not as many lines as the sources beside it: score the '
            'run again with experiments.evaluate'
        )
    return list(zip(sources, references, strict=True))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding='utf-8').split('\n')[:-1]
    except (OSError, UnicodeError) as error:
        raise UserError(f'cannot read {path}: {error}') from error
