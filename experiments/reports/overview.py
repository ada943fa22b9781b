"""Runs at a glance: a row an arm for a terminal, a row a run for CSV."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from experiments.reports import statistics
from experiments.reports.arms import Arm, common_path, differing
from experiments.reports.tables import Table
from experiments.runs.reading import Run


def entry(run: Run) -> dict[str, Any]:
    """What is known of a run, for JSON."""
    losses = [row.get('loss') for row in run.dev_rows()]
    # None where epochs end the run, or it is not trained.
    steps = None if run.status == 'converted' else run.config.get('train.steps')
    known = {
        'run': str(run.path),
        'status': run.status,
        'step': run.result.get('step'),
        'steps': steps or None,
        'config': run.config,
        'parameters': run.result.get('parameters'),
        'tokens_per_second': run.result.get('tokens_per_second'),
        'dev_loss': losses[-1] if losses else None,
        'evaluations': run.evaluations,
    }
    return known | ({'message': run.message} if run.message else {})


_COSTS = ('parameters', 'tokens_per_second', 'dev_loss')


def columns(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Column name → the value of each run.

    Of the config's fields, those that are not the same in all runs.
    """
    entries = [entry(run) for run in runs]
    result = {}
    for name in ('run', 'status', 'step', 'steps'):
        result[name] = [known[name] for known in entries]
    for field in _union(run.config for run in runs):
        values = [run.config.get(field) for run in runs]
        if any(value != values[0] for value in values):
            result[field] = values
    for name in _COSTS:
        result[name] = [known[name] for known in entries]
    for name in _union(run.evaluations for run in runs):
        for score in ('bleu', 'bleu_signature'):
            result[f'{name} {score}'] = [_score(run, name, score) for run in runs]
    return result


def _union(dictionaries: Iterable[dict[str, Any]]) -> list[str]:
    """The keys of all, each once, in the order of their first appearance."""
    return list(dict.fromkeys(key for dictionary in dictionaries for key in dictionary))


def _score(run: Run, name: str, score: str) -> Any:
    return run.evaluations.get(name, {}).get(score)


def table(arms: Sequence[Arm]) -> Table:
    """A row for each arm: its numbers are means over its finished runs.

    Where none has finished, they are means over what the others have so far.
    """
    runs = [run for arm in arms for run in arm.runs]
    fields = differing(runs)
    sets = _union(run.evaluations for run in runs)
    rows = []
    for arm in arms:
        counted = arm.scored or list(arm.runs)
        known = [entry(run) for run in counted]
        numbers = [[of_run[name] for of_run in known] for name in _COSTS]
        numbers += [[_score(run, name, 'bleu') for run in counted] for name in sets]
        rows.append(
            (
                common_path(arm.runs),
                len(counted),
                _statuses(arm),
                _span([of_run['step'] for of_run in known]),
                known[0]['steps'],
                *(arm.runs[0].config.get(field) for field in fields),
                *map(_mean, numbers),
            )
        )
    scores = [f'{name} bleu' for name in sets]
    names = ('run', 'seeds', 'status', 'step', 'steps', *fields, *_COSTS, *scores)
    return Table('runs', 'Runs', names, tuple(rows), frozenset(scores))


def _statuses(arm: Arm) -> str:
    """How runs ended: 'finished', or '2 finished, 1 diverged'."""
    counts = Counter(run.status for run in arm.runs)
    if len(counts) == 1:
        return arm.runs[0].status
    return ', '.join(f'{count} {status}' for status, count in counts.items())


def _span(steps: Sequence[int | None]) -> Any:
    """The one step that all have come to, or the first and the last of several."""
    there = {step for step in steps if step is not None}
    if len(there) < 2:
        return max(there, default=None)
    return f'{min(there):,}–{max(there):,}'


def _mean(values: Sequence[float | None]) -> Any:
    """The mean over seeds; a number of its own where there is one, or all are equal."""
    there = [value for value in values if value is not None]
    if len(set(there)) == 1:
        return there[0]
    return statistics.spread(there)


def signatures(runs: Sequence[Run]) -> list[str]:
    """The signature of all BLEU scores, or which runs have which."""
    found: dict[str, dict[str, None]] = {}
    for run in runs:
        for scores in run.evaluations.values():
            if scores.get('bleu_signature') is not None:
                found.setdefault(scores['bleu_signature'], {})[str(run.path)] = None
    if len(found) <= 1:
        return [f'bleu: {signature}' for signature in found]
    lines = [
        'Not all of these BLEU scores can be compared, for their signatures differ:'
    ]
    return lines + [f'{name}: {", ".join(found[name])}' for name in sorted(found)]
