"""Conditions of a comparison, and warnings if it isn't fair."""

import collections
import shlex

from scipy import stats

from experiments.command_line import console
from experiments.reports.arms import Study, different_text, differing_fields
from experiments.reports.tables import Table
from experiments.runs.reading import Run
from experiments.storage import run_title

# Fields that a comparison holds constant unless the sweep's arms set them.
CONDITIONS = (
    'data',
    'tokenizer',
    'batch.',
    'evaluation.',
    'checkpoint.',
    'train.steps',
    'train.epochs',
    'train.patience',
)
_DIGEST_LENGTH = 16  # hexadecimal digits of a digest
_COST_TOLERANCE = 1.02  # the factor by which costs may differ without a warning
_COSTS = {
    'parameters': 'parameters',
    'training_flops': 'training FLOPs',
    'tokens': 'training target tokens',
}


def facts(study: Study) -> Table:
    """Returns the table of conditions, equal or different between arms."""
    rows = []
    if study.sweep.arms:
        declared = f'{study.sweep.name}.py, SHA-256 {study.sweep.digest[:16]}'
        rows.append(('sweep file', declared, 'all'))
    # A run without a score describes its arm only if the arm has no other.
    known = [
        (arm.name, _facts(run, study))
        for arm in study.arms
        for run in arm.scored or arm.runs
    ]
    _, first = known[0]
    for name in first:
        arms = collections.defaultdict(dict)  # by value, each once
        for arm, values in known:
            arms[values[name]][arm] = None
        for value, whose in arms.items():
            names = '; '.join(whose) if len(arms) > 1 else 'all'
            rows.append((name, value, names))
    columns = ('condition', 'value', 'arms')
    return Table('conditions', 'Conditions', columns, rows)


def _facts(run: Run, study: Study) -> dict[str, str]:
    measure = study.measure
    scored = run.evaluations.get(measure.set, {})
    metric = measure.metric(run.metrics)
    scored_text = f'text of {measure.set}'
    digests = {name: digest[:_DIGEST_LENGTH] for name, digest in run.texts.items()}
    environment = run.environment
    counts = environment.get('devices', {})
    devices = [f'{count} × {kind}' for kind, count in counts.items()]
    git = environment.get('git') or {}
    commit = str(git.get('commit', 'unknown'))[:10]
    if git.get('changed'):
        commit += ' (modified)'
    known = {
        'data': run.config.get('data'),
        'training text': digests.get('training text'),
        'direction': scored.get('direction'),
        f'sentences in {measure.set}': scored.get('sentences'),
        scored_text: digests.get(scored_text),
        'signature': scored.get(f'{metric}_signature'),
        'steps': run.result.get('step'),
        'training target tokens': run.tokens and float(f'{run.tokens:.3g}'),
        'commit': commit,
        'devices': ', '.join(devices) or None,
        'jax': environment.get('packages', {}).get('jax'),
    }
    return {name: console.cell(value) for name, value in known.items()}


def warnings(study: Study) -> list[str]:
    """Returns sentences that a reader must know before believing the answer."""
    lines = [*_missing(study), *different_text(study.runs), *_excluded_runs(study)]
    parts = study.by_data
    for part in parts:  # data sets aren't compared with each other
        where = f'Compared with {part.base.name}: ' if len(parts) > 1 else ''
        found = [*_unasked_differences(part), *_unequal_results(part)]
        found += [*_unequal_cost(part), *_unequal_spread(part)]
        lines += [where + line for line in found]
    return lines


def _missing(study: Study) -> list[str]:
    there = {run_title(run.path.resolve()) for run in study.runs}
    lines = []
    for run in study.sweep.runs:
        if run_title(run.path) not in there:
            lines.append(f'Missing: {run.arm}, seed {run.seed} ({run.path}).')
    return lines


def _excluded_runs(study: Study) -> list[str]:
    lines = []
    for arm in study.arms:
        by_seeds = arm.by_seeds(study.measure)
        for run in arm.runs:
            if run in arm.scored:
                if run.seeds not in by_seeds:
                    lines.append(_without_score(study, run))
                continue
            if run.finished:
                lines.append(
                    f'{run.path}: excluded from the means, because another run of '
                    f'{arm.name} has the same seeds.'
                )
            else:
                reason = f' ({run.message})' if run.message else ''
                lines.append(
                    f'{arm.name}, seed {run.seed}: {run.status} at step '
                    f'{run.result["step"]:,}{reason}; excluded from the means.'
                )
    return lines


def _without_score(study: Study, run: Run) -> str:
    line = f'{run.path}: has no score for {study.measure}'
    if study.measure.set in run.evaluations:
        return f'{line}; excluded from the means.'
    return (
        f'{line}. Choose another --measure, or score all sets of its data with python '
        f'-m experiments.evaluate --workdir={shlex.quote(str(run.path))}.'
    )


def _unasked_differences(study: Study) -> list[str]:
    """Lists differing fields that arms don't set, or `CONDITIONS` without a sweep."""
    base = study.base
    lines = []
    for arm in study.arms:
        differences = []
        for field in differing_fields([*base.runs, *arm.runs]):
            if study.sweep.arms:
                is_studied = field in study.sweep.fields
            else:
                is_studied = not field.startswith(CONDITIONS)
            if not is_studied:
                value = arm.runs[0].config.get(field)
                expected = base.runs[0].config.get(field)
                differences.append(f'{field} is {value}, not {expected}')
        if differences:
            lines.append(
                f'{arm.name} also differs from {base.name} in other fields: '
                f'{"; ".join(differences)}.'
            )
    return lines


def _unequal_results(study: Study) -> list[str]:
    sentences = f'sentences in {study.measure.set}'
    consequences = {
        'signature': 'Runs have different signatures: the scores are not comparable.',
        sentences: f'Runs have different numbers of {sentences}.',
        'commit': 'Runs have different commits: a difference may come from the code.',
    }
    known = [
        _facts(run, study)
        for arm in study.arms
        for run in arm.scored
        if study.measure.set in run.evaluations
    ]
    lines = [
        line
        for name, line in consequences.items()
        if len({values[name] for values in known}) > 1
    ]
    text = f'text of {study.measure.set}'
    digests = {run.texts.get(text) for arm in study.arms for run in arm.scored}
    if len(digests - {None}) > 1:
        lines.append(f'Runs have a different {text}: the scores are not comparable.')
    return lines


def _unequal_cost(study: Study) -> list[str]:
    by_name = {arm.name: arm for arm in study.arms}
    compared: list[tuple[str, ...]] = [tuple(by_name)]
    if study.sweep.contrasts:
        compared = [pair for pair in study.sweep.contrasts if set(pair) <= set(by_name)]
    lines = []
    for entry, words in _COSTS.items():
        unequal = []
        for names in compared:
            costs = [by_name[name].cost(entry) for name in names]
            means = [cost.mean for cost in costs if cost is not None]
            if means and max(means) > _COST_TOLERANCE * min(means):
                unequal.append((max(means) / min(means), min(means), max(means), names))
        if not unequal:
            continue
        _, least, most, names = max(unequal)
        line = f'{words} range from {console.cell(least)} to {console.cell(most)}'
        if study.sweep.contrasts:
            line += f' for {" and ".join(names)}'
        if len(unequal) > 1:
            line += f' (the largest of {len(unequal)} unequal contrasts)'
        lines.append(f'Unequal cost: {line}.')
    return lines


def _unequal_spread(study: Study) -> list[str]:
    values = [list(arm.by_seeds(study.measure).values()) for arm in study.arms]
    several = [of_arm for of_arm in values if len(of_arm) > 1]
    spread = [of_arm for of_arm in several if len(set(of_arm)) > 1]
    is_unequal = 0 < len(spread) < len(several)
    if len(spread) == len(several) > 1:
        is_unequal = stats.bartlett(*spread).pvalue < 0.01
    if not is_unequal:
        return []
    return [
        'The variance between seeds differs between arms. The confidence intervals '
        'assume equal variance, so they are too narrow for arms with more variance.'
    ]
