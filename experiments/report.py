"""Compares runs by what their directories hold: where their configs differ, size, speed and scores.

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
from experiments.runs import metrics_log
from experiments.runs import result as results
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
    result = results.read(path, whole=False) if finished else _so_far(rows)
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
    """What the metrics of an unfinished run say in place of its result."""
    result = {'step': rows[-1]['step'] if rows else 0}
    for row in rows:
        if row['kind'] == 'train':
            result |= {k: row[k] for k in ('tokens_per_second',) if k in row}
    return result | {
        'evaluations': {r['set']: r for r in _evaluations(rows) if 'set' in r}
    }


def _dev_loss(rows: Sequence[dict[str, Any]]) -> float | None:
    """The last loss on the set that is evaluated first, which is the dev set."""
    evaluations = _evaluations(rows)
    losses = [
        r.get('loss') for r in evaluations if r.get('set') == evaluations[0].get('set')
    ]
    return losses[-1] if losses else None


def _evaluations(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row['kind'] == 'eval']


def columns(runs: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Name → value of each run; of the config's fields those that are not the same in all."""
    result = {
        name: [run[name] for run in runs] for name in ('run', 'status', 'step', 'steps')
    }
    for field in _union(run['config'] for run in runs):
        values = [run['config'].get(field) for run in runs]
        if any(value != values[0] for value in values):
            result[field] = values
    for name in ('parameters', 'tokens_per_second', 'dev_loss'):
        result[name] = [run[name] for run in runs]
    for name in _union(run['evaluations'] for run in runs):
        for score in ('bleu', 'bleu_signature'):
            scores = [run['evaluations'].get(name, {}).get(score) for run in runs]
            result[f'{name} {score}'] = scores
    return result


def _union(dictionaries: Iterable[dict[str, Any]]) -> list[str]:
    """The keys of all, each once, in the order in which they are met."""
    return list(dict.fromkeys(key for dictionary in dictionaries for key in dictionary))


def as_table(runs: Sequence[dict[str, Any]]) -> str:
    """The columns as text and, below, what the BLEU scores are by."""
    shown = {
        name: v for name, v in columns(runs).items() if not name.endswith('_signature')
    }
    scores = [name for name in shown if name.endswith(' bleu')]
    table = console.table(list(shown), list(zip(*shown.values(), strict=True)), scores)
    return '\n'.join([table, *_signatures(runs)])


def _signatures(runs: Sequence[dict[str, Any]]) -> list[str]:
    used: dict[str, list[str]] = {}
    for run in runs:
        for signature in {
            s.get('bleu_signature') for s in run['evaluations'].values()
        } - {None}:
            used.setdefault(signature, []).append(run['run'])
    if len(used) <= 1:
        return [f'bleu: {signature}' for signature in used]
    lines = [
        f'{signature}: {", ".join(users)}' for signature, users in sorted(used.items())
    ]
    return [
        'Not all of these BLEU scores can be compared, for their signatures differ:',
        *lines,
    ]


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

    runs = []
    for path in args.runs:
        try:
            runs.append(read_run(Path(path)))
        except UserError as error:
            print(f'left out: {error}', file=sys.stderr)
    if not runs:
        raise UserError('there is no run to report')
    if args.json:
        print(files.json_text(runs), end='')
    elif args.csv:
        table = columns(runs)
        writer = csv.writer(sys.stdout, lineterminator='\n')
        writer.writerow(table)
        writer.writerows(zip(*table.values(), strict=True))
    else:
        print(as_table(runs))


if __name__ == '__main__':
    flags.main(main)
