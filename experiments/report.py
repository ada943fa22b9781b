"""Compares runs by their directories: configs where they differ, size, speed, scores.

python -m experiments.report runs/wmt_small* [--csv | --json]
"""

import csv
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from experiments.command_line import console, flags
from experiments.command_line.errors import UserError
from experiments.config.flat import flatten
from experiments.runs import metrics_log, result_file
from experiments.runs.directory import RESULT, read_config
from experiments.storage import files


def read_run(path: Path) -> dict[str, Any]:
    """What is known of a run, finished or not.

    Raises:
      UserError: this is not the directory of a run, or a file of it cannot be read.
    """
    config = flatten(read_config(path))
    rows = metrics_log.read(path)
    finished = files.exists(path / RESULT)
    result = result_file.read(path, whole=False) if finished else _so_far(rows)
    return {
        'run': str(path),
        'status': 'finished' if finished else 'unfinished',
        'step': result.get('step'),
        'steps': config.get('train.steps') or None,  # 0: it is epochs that end the run
        'config': config,
        'parameters': result.get('parameters'),
        'tokens_per_second': result.get('tokens_per_second'),
        'dev_loss': _dev_loss(rows),
        'evaluations': result['evaluations'],
    }


def _so_far(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The part of a result that the metrics of an unfinished run give."""
    result: dict[str, Any] = {'step': rows[-1]['step'] if rows else 0}
    for row in rows:
        if row['kind'] == 'train' and 'tokens_per_second' in row:
            result['tokens_per_second'] = row['tokens_per_second']
    result['evaluations'] = {}
    for row in _evaluations(rows):
        if 'set' in row:
            result['evaluations'][row['set']] = row
    return result


def _dev_loss(rows: Sequence[dict[str, Any]]) -> float | None:
    """The last loss on the dev set, which is the set that is evaluated first."""
    evaluations = _evaluations(rows)
    if not evaluations:
        return None
    dev = evaluations[0].get('set')
    losses = [row.get('loss') for row in evaluations if row.get('set') == dev]
    return losses[-1]


def _evaluations(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row['kind'] == 'eval']


def columns(runs: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Column name → the value of each run.

    Of the config's fields, those that are not the same in all runs.
    """
    result = {}
    for name in ('run', 'status', 'step', 'steps'):
        result[name] = [run[name] for run in runs]
    for field in _union(run['config'] for run in runs):
        values = [run['config'].get(field) for run in runs]
        if any(value != values[0] for value in values):
            result[field] = values
    for name in ('parameters', 'tokens_per_second', 'dev_loss'):
        result[name] = [run[name] for run in runs]
    for name in _union(run['evaluations'] for run in runs):
        scores = [run['evaluations'].get(name, {}) for run in runs]
        for score in ('bleu', 'bleu_signature'):
            result[f'{name} {score}'] = [values.get(score) for values in scores]
    return result


def _union(dictionaries: Iterable[dict[str, Any]]) -> list[str]:
    """The keys of all, each once, in the order of their first appearance."""
    return list(dict.fromkeys(key for dictionary in dictionaries for key in dictionary))


def as_table(runs: Sequence[dict[str, Any]]) -> str:
    """The columns as text, and below the signatures of the BLEU scores."""
    shown = {}
    for name, values in columns(runs).items():
        if not name.endswith('_signature'):
            shown[name] = values
    scores = [name for name in shown if name.endswith(' bleu')]
    rows = list(zip(*shown.values(), strict=True))
    table = console.table(list(shown), rows, scores)
    return '\n'.join([table, *_signatures(runs)])


def _signatures(runs: Sequence[dict[str, Any]]) -> list[str]:
    """The signature of all BLEU scores, or which runs have which."""
    runs_by_signature: dict[str, list[str]] = {}
    for run in runs:
        scores = run['evaluations'].values()
        for signature in {score.get('bleu_signature') for score in scores} - {None}:
            runs_by_signature.setdefault(signature, []).append(run['run'])
    if len(runs_by_signature) <= 1:
        return [f'bleu: {signature}' for signature in runs_by_signature]
    lines = [
        'Not all of these BLEU scores can be compared, for their signatures differ:'
    ]
    for signature, names in sorted(runs_by_signature.items()):
        lines.append(f'{signature}: {", ".join(names)}')
    return lines


def main() -> None:
    parser = flags.Parser(__doc__)
    parser.add_argument('runs', nargs='+', help='directories of runs')
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        '--csv', action='store_true', help='comma-separated, for a spreadsheet'
    )
    form.add_argument(
        '--json', action='store_true', help='with the whole configs and results'
    )
    args = parser.parse_args()

    runs = _read_runs(args.runs)
    if args.json:
        print(files.json_text(runs), end='')
    elif args.csv:
        _write_csv(columns(runs))
    else:
        print(as_table(runs))


def _read_runs(paths: Iterable[str]) -> list[dict[str, Any]]:
    """What is known of each run; what is no run is reported on stderr."""
    runs = []
    for path in paths:
        try:
            runs.append(read_run(Path(path)))
        except UserError as error:
            print(f'left out: {error}', file=sys.stderr)
    if not runs:
        raise UserError('there is no run to report')
    return runs


def _write_csv(table: dict[str, list[Any]]) -> None:
    writer = csv.writer(sys.stdout, lineterminator='\n')
    writer.writerow(table)
    writer.writerows(zip(*table.values(), strict=True))


if __name__ == '__main__':
    flags.main(main)
