"""Runs at a glance: a row an arm for a terminal, a row a run for CSV."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from experiments.reports import statistics
from experiments.reports.arms import Arm, common_path, differing
from experiments.reports.read import Run
from experiments.reports.tables import Table


def entry(run: Run) -> dict[str, Any]:
    """What is known of a run, for JSON."""
    known = {
        'run': str(run.path),
        'status': run.status,
        'step': run.result.get('step'),
        'steps': _steps(run),
        'config': run.config,
        'parameters': run.result.get('parameters'),
        'tokens_per_second': run.result.get('tokens_per_second'),
        'dev_loss': _dev_loss(run),
        'evaluations': run.evaluations,
    }
    return known | ({'message': run.message} if run.message else {})


def _steps(run: Run) -> int | None:
    """How many there are to be; None where epochs end the run, or it is not trained."""
    if run.status == 'converted':
        return None
    return run.config.get('train.steps') or None


def _dev_loss(run: Run) -> float | None:
    losses = [row.get('loss') for row in run.dev_rows()]
    return losses[-1] if losses else None


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
    for name in ('parameters', 'tokens_per_second', 'dev_loss'):
        result[name] = [known[name] for known in entries]
    for name in _union(run.evaluations for run in runs):
        scores = [run.evaluations.get(name, {}) for run in runs]
        for score in ('bleu', 'bleu_signature'):
            result[f'{name} {score}'] = [values.get(score) for values in scores]
    return result


def _union(dictionaries: Iterable[dict[str, Any]]) -> list[str]:
    """The keys of all, each once, in the order of their first appearance."""
    return list(dict.fromkeys(key for dictionary in dictionaries for key in dictionary))


def table(arms: Sequence[Arm]) -> Table:
    """A row for each arm: its numbers are means over its finished runs.

    Where none has finished, they are means over what the others have so far.
    """
    runs = [run for arm in arms for run in arm.runs]
    fields = differing(runs)
    sets = _union(run.evaluations for run in runs)
    scores = [f'{name} bleu' for name in sets]
    rows = []
    for arm in arms:
        counted = arm.scored or list(arm.runs)
        row = _state(arm, counted)
        row += [arm.runs[0].config.get(field) for field in fields]
        for name in ('parameters', 'tokens_per_second', 'dev_loss'):
            row.append(_mean([entry(run)[name] for run in counted]))
        for name in sets:
            evaluations = [run.evaluations.get(name, {}) for run in counted]
            row.append(_mean([values.get('bleu') for values in evaluations]))
        rows.append(tuple(row))
    names = ('run', 'seeds', 'status', 'step', 'steps', *fields)
    costs = ('parameters', 'tokens_per_second', 'dev_loss')
    return Table(
        'runs', 'Runs', (*names, *costs, *scores), tuple(rows), frozenset(scores)
    )


def _state(arm: Arm, counted: Sequence[Run]) -> list[Any]:
    """Where an arm's runs are, how many are counted, and how far they have come."""
    known = [entry(run) for run in counted]
    path = common_path(arm.runs)
    status = _statuses([run.status for run in arm.runs])
    step = _span({run['step'] for run in known if run['step'] is not None})
    return [path, len(counted), status, step, known[0]['steps']]


def _statuses(statuses: Sequence[str]) -> str:
    """How runs ended: 'finished', or '2 finished, 1 diverged'."""
    counts = Counter(statuses)
    if len(counts) == 1:
        return statuses[0]
    return ', '.join(f'{count} {status}' for status, count in counts.items())


def _span(steps: Collection[int]) -> Any:
    """The one step that all have come to, or the first and the last of several."""
    if not steps:
        return None
    first, last = min(steps), max(steps)
    return first if first == last else f'{first:,}–{last:,}'


def _mean(values: Sequence[float | None]) -> Any:
    """The mean over seeds; a number of its own where there is one, or all are equal."""
    there = [value for value in values if value is not None]
    if len(set(there)) == 1:
        return there[0]
    return statistics.spread(there)


def signatures(runs: Sequence[Run]) -> list[str]:
    """The signature of all BLEU scores, or which runs have which."""
    runs_by_signature: dict[str, list[str]] = {}
    for run in runs:
        scores = run.evaluations.values()
        for signature in {score.get('bleu_signature') for score in scores}:
            if signature is None:
                continue
            runs_by_signature.setdefault(signature, []).append(str(run.path))
    if len(runs_by_signature) <= 1:
        return [f'bleu: {signature}' for signature in runs_by_signature]
    lines = [
        'Not all of these BLEU scores can be compared, for their signatures differ:'
    ]
    for signature, names in sorted(runs_by_signature.items()):
        lines.append(f'{signature}: {", ".join(names)}')
    return lines
