"""Run status and results, read from a run's directory. Never writes.

A damaged file raises a UserError: `FILE: field: problem`.
"""

import dataclasses
import glob
import itertools
import math
import os
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments import errors, metrics, storage
from experiments.command_line import console
from experiments.config.load import flatten
from experiments.config.schema import fields
from experiments.errors import UserError
from experiments.runs import directory, entries, failure, metrics_log

NOT_STARTED = 'not begun'
RUNNING = 'running'  # a process uses the directory
STOPPED = 'stopped'  # the same command resumes it
FINISHED = 'finished'
DIVERGED = failure.DIVERGED
FAILED = failure.FAILED
CONVERTED = 'converted'  # never trained here
# The fields in which the runs of one arm may differ.
SEEDS = ('train.seed', 'train.init_seed', 'train.data_seed', 'train.dropout_seed')
ENVIRONMENT = 'environment.json'
Entries = dict[str, Any]  # of a JSON file, or of a row of metrics

# Patterns of run directories in a folder: runs, an arm, a sweep, several sweeps.
_RUN_PATTERNS = ('*', '*/seed=*', '*/*/seed=*', '*/*/*/seed=*')
_RESTORE_HINT = 'Restore the file, or remove it and rerun the command to score the run.'
_SCORE_HINT = 'Score the run again with experiments.evaluate.'
_REMOVE_HINT = 'Remove the file. Resuming the run writes a new one.'


class RunStatus(NamedTuple):
    """The status of a run.

    Attributes:
      status: One of the statuses above.
      message: The error that ended the run.
      result: Its `result.json`; empty unless it has finished.
    """

    status: str
    message: str = ''
    result: Entries = {}


class Translations(NamedTuple):
    sources: list[str]
    references: list[tuple[str, ...]]
    outputs: list[str]


@dataclasses.dataclass(frozen=True)
class Run:
    """A run, read from its directory.

    Attributes:
      config: The fields of its config by full name, such as 'train.steps'.
      result: Its `result.json`. For an unfinished run, the entries that its metrics
        already determine. Includes sets that were scored later.
    """

    path: Path
    config: Entries
    status: str
    message: str
    result: Entries
    rows: list[Entries]
    environment: Entries

    @property
    def finished(self) -> bool:
        return self.status == FINISHED

    @property
    def seeds(self) -> tuple[Any, ...]:
        """The seeds in use, each its own or `train.seed`: equal for equal runs."""
        first, *others = [self.config.get(field) for field in SEEDS]
        return (first, *(first if seed is None else seed for seed in others))

    @property
    def seed(self) -> str:
        """The seeds as text: `3`, or `3, data_seed 5`."""
        first = self.seeds[0]
        words = [str(first)]
        for field, seed in zip(SEEDS, self.seeds, strict=True):
            if seed != first:
                words.append(f'{field.removeprefix("train.")} {seed}')
        return ', '.join(words)

    @property
    def tokens(self) -> float | None:
        """Number of target tokens in training, if the run has finished."""
        result = self.result
        return _product(result.get('tokens_per_second'), result.get('train_seconds'))

    @property
    def batch_flops(self) -> float | None:
        flops = self.result.get('flops_per_token')
        return _product(flops, self.config.get('batch.tokens'))

    @property
    def training_flops(self) -> float | None:
        return _product(self.batch_flops, self.result['step'])

    @property
    def evaluations(self) -> dict[str, Entries]:
        return self.result['evaluations']

    @property
    def texts(self) -> dict[str, str]:
        """Digests of the training text and of the scored sets, as far as known."""
        return texts(self.result)

    @property
    def metrics(self) -> list[str]:
        """Names of the metrics of its translations, the deciding one first."""
        names = list(metrics.by_name(self.metrics_spec))
        best = self.config.get('evaluation.best') or names[0]
        scored = map(metric_names, self.evaluations.values())
        return list(dict.fromkeys([best, *names, *itertools.chain(*scored)]))

    @property
    def metrics_spec(self) -> str:
        default = fields()['evaluation.metrics'].default
        return self.config.get('evaluation.metrics', default)

    def dev_rows(self) -> list[Entries]:
        rows = [row for row in self.rows if row['kind'] == 'eval']
        return [row for row in rows if row.get('set') == rows[0].get('set')]


def _product(*factors: Any) -> float | None:
    return None if None in factors else math.prod(factors)


def texts(result: Entries) -> dict[str, str]:
    """Returns the digest of each text of a result; earlier versions have none."""
    found = {'training text': result.get('training_text_sha256')}
    for name, scores in result.get('evaluations', {}).items():
        found[f'text of {name}'] = scores.get('text_sha256')
    return {name: digest for name, digest in found.items() if digest}


class TextDifference(NamedTuple):
    text: str
    path: Path
    other: Path

    def __str__(self) -> str:
        return f'{self.path} and {self.other} differ in their {self.text}'


def text_differences(
    runs: Iterable[tuple[Path, Hashable, Mapping[str, str]]],
) -> list[TextDifference]:
    """Returns the texts that differ although runs have the same data, with two runs.

    Args:
      runs: The path, the data and the `texts` of each run.
    """
    first = {}
    found = {}
    for path, data, of_run in runs:
        for name, digest in of_run.items():
            key = data, name
            other, expected = first.setdefault(key, (path, digest))
            if digest != expected:
                found.setdefault(key, TextDifference(name, other, path))
    return list(found.values())


def check_texts(differences: Iterable[TextDifference]) -> None:
    """Raises UserError if runs to compare have different text."""
    for difference in differences:
        raise UserError(f'{difference}. Move the runs on one of the texts away.')


def metric_names(scores: Mapping[str, Any]) -> list[str]:
    return [name for name in scores if f'{name}_signature' in scores]


def runs_in(folder: Path) -> list[Path]:
    """Returns a folder that is a run, or else the runs in it and its sweeps."""
    if os.path.exists(folder / directory.CONFIG):
        return [folder]
    found: list[Path] = []
    for place in _RUN_PATTERNS:
        files = sorted(glob.glob(f'{place}/{directory.CONFIG}', root_dir=folder))
        found += [(folder / file).parent for file in files]
    return found


def read_run(path: Path) -> Run:
    """Reads the run in a directory, finished or not."""
    config = _read_config(path)
    rows = metrics_log.read_rows(path)
    status, message, result = run_status(path)
    if status != FINISHED:
        result = _result_so_far(rows)
    final = result.get('averaged_steps', [])
    if directory.is_converted(config):
        status = CONVERTED
        final = [result['step']]
    if final:
        for name, scores in _scores_beside_translations(path, final).items():
            result['evaluations'].setdefault(name, scores)
    return Run(path, config, status, message, result, rows, read_environment(path))


def run_status(path: Path) -> RunStatus:
    """Returns the status of a run, whose directory need not exist."""
    if storage.exists(path / directory.RESULT):
        return RunStatus(FINISHED, result=read_result(path))
    entry = failure.read_failure(path)
    if entry is not None:
        return RunStatus(entry['status'], str(entry.get('message', '')))
    if not storage.is_free(path / directory.LOCK):
        return RunStatus(RUNNING)
    has_begun = storage.exists(path / directory.CONFIG)
    return RunStatus(STOPPED if has_begun else NOT_STARTED)


def read_result(path: Path) -> Entries:
    """Returns the result of a run; UserError if it is missing."""
    file = path / directory.RESULT
    result = storage.read_json(file, entries.Result, _RESTORE_HINT)
    for name, scores in result['evaluations'].items():
        within = f'evaluations.{name}'
        entries.check_scores(file, scores, entries.FinalScores, _RESTORE_HINT, within)
    return result


def read_environment(path: Path) -> Entries:
    """Returns `environment.json`, or {} if it is missing."""
    file = path / ENVIRONMENT
    if not storage.exists(file):
        return {}
    return storage.read_json(file, entries.Environment, _REMOVE_HINT)


def _read_config(path: Path) -> Entries:
    config = flatten(directory.read_config(path))
    with errors.prefix_errors(path / directory.CONFIG):
        metrics.by_name(config.get('evaluation.metrics', 'bleu'))
    return config


def _result_so_far(rows: Iterable[Entries]) -> Entries:
    result: Entries = {'step': 0, 'evaluations': {}}
    for row in rows:
        result['step'] = row['step']
        if row['kind'] == 'train' and 'tokens_per_second' in row:
            result['tokens_per_second'] = row['tokens_per_second']
        if row['kind'] == 'eval' and 'set' in row:
            result['evaluations'][row['set']] = row
            result['training_text_sha256'] = row.get('training_text_sha256')
    return result


def _scores_beside_translations(path: Path, steps: Sequence[int]) -> Entries:
    outputs = outputs_path(path, '*', max(steps), len(steps))
    pattern = outputs.with_suffix('.json')
    found = {}
    for file in sorted(pattern.parent.glob(pattern.name)):
        found[file.name.partition('.step=')[0]] = _read_scores(file)
    return found


def _read_scores(file: Path) -> Entries:
    scores = storage.read_json(file)
    entries.check_scores(file, scores, entries.SetScores, _SCORE_HINT)
    return scores


def scored_texts(path: Path) -> dict[str, str]:
    """Returns the digest of each set that the run was scored on, at any step."""
    found = texts(read_run(path).result)
    for file in sorted((path / 'translations').glob('*.json')):
        scores = _read_scores(file)
        found |= texts({'evaluations': {scores['set']: scores}})
    return found


def outputs_path(path: Path, name: str, step: int, mean_of: int = 1) -> Path:
    """Returns the path of a set's translations; their scores have the suffix `.json`.

    They come from the mean of `mean_of` checkpoints up to `step`.
    """
    mean = f',mean_of={mean_of}' if mean_of > 1 else ''
    return path / 'translations' / f'{name}.step={step}{mean}.txt'


def read_translations(run: Run, name: str) -> Translations | None:
    """Returns the final translations of a set, if they exist."""
    steps = run.result.get('averaged_steps')
    if not steps:
        return None
    outputs = outputs_path(run.path, name, max(steps), len(steps))
    folder = outputs.parent
    there = len(list(folder.glob(f'{glob.escape(name)}.reference*.txt')))
    columns = _read_columns([*pair_paths(folder, name, there), outputs])
    if not columns:
        return None
    sources, *references, lines = columns
    rows = zip(*references, strict=True)
    # A blank second reference counts as missing.
    known = [(first, *filter(None, others)) for first, *others in rows]
    return Translations(sources, known, lines)


def pair_paths(folder: Path, name: str, references: int) -> list[Path]:
    """Returns the paths of a set's sources, first references, second references, …."""
    endings = ['source', 'reference']
    endings += [f'reference{number}' for number in range(2, references + 1)]
    return [folder / f'{name}.{ending}.txt' for ending in endings]


def _read_columns(files: Sequence[Path]) -> list[list[str]]:
    if not all(map(storage.exists, files)):
        return []
    columns = []
    for file in files:
        with storage.as_user_error('read', file):
            columns.append(file.read_bytes().decode().split('\n')[:-1])
        if len(columns[-1]) != len(columns[0]):
            raise UserError(
                f'{file}: has {console.count_noun(len(columns[-1]), "line")}, but the '
                f'sources have {len(columns[0])}. {_SCORE_HINT}'
            )
    return columns
