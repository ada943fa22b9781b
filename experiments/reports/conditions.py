"""What was compared, and what keeps a comparison from being fair."""

from collections.abc import Sequence

from experiments.command_line import console
from experiments.reports import scores
from experiments.reports.arms import Arm, Study, differing
from experiments.reports.tables import Table
from experiments.runs import reading
from experiments.runs.reading import Run

# A difference in one of these is a difference in what is asked only where a sweep says
# so.
CONDITIONS = (
    *('data', 'tokenizer.', 'batch.', 'evaluation.', 'checkpoint.'),
    *('train.steps', 'train.epochs', 'train.patience'),
)
_EQUAL_COST = 0.02  # share by which parameters or tokens may differ unmentioned


def facts(study: Study) -> Table:
    """What all arms have in common, and in what they differ."""
    arms_of: dict[str, dict[str, dict[str, None]]] = {}  # fact → value → arms
    for arm in study.arms:
        for run in arm.runs:
            for name, value in _facts(run, study).items():
                arms_of.setdefault(name, {}).setdefault(value, {})[arm.name] = None
    rows = []
    for name, values in arms_of.items():
        for value, arms in values.items():
            rows.append((name, value, 'all' if len(values) == 1 else '; '.join(arms)))
    columns = ('what', 'value', 'arms')
    return Table('compared', 'What was compared', columns, tuple(rows))


def _facts(run: Run, study: Study) -> dict[str, str]:
    measure = study.measure
    scored = run.evaluations.get(measure.set, {})
    signature = 'chrf' if measure.score == 'chrf' else 'bleu'
    devices = run.environment.get('devices', {})
    known = {
        'data': run.config.get('data'),
        'direction': scored.get('direction'),
        f'sentences of {measure.set}': scored.get('sentences'),
        'signature': scored.get(f'{signature}_signature'),
        'steps': run.result.get('step'),
        'target tokens seen': run.tokens and f'{run.tokens / 1e6:.3g} million',
        'commit': _commit(run),
        'devices': ', '.join(f'{n} × {kind}' for kind, n in devices.items()) or None,
        'jax': run.environment.get('packages', {}).get('jax'),
    }
    return {name: console.cell(value) for name, value in known.items()}


def _commit(run: Run) -> str:
    """The commit that a run was made with, and whether files were changed."""
    git = run.environment.get('git')
    if not git:
        return 'not known'
    changed = ' with changes' if git.get('changed') else ''
    return f'{str(git.get("commit"))[:10]}{changed}'


def warnings(study: Study) -> list[str]:
    """What a reader must know before believing the answer, in sentences."""
    return [
        *_lacking(study),
        *_not_finished(study),
        *_twice(study),
        *_beyond_the_question(study),
        *_unequal_results(study),
        *_unequal_cost(study),
    ]


def _lacking(study: Study) -> list[str]:
    """Runs of the sweep that are not there; seeds that other arms have."""
    lines = []
    if study.sweep is not None:
        there = {run.path.resolve().name for arm in study.arms for run in arm.runs}
        for run in study.sweep.runs:
            if run.path.name not in there:
                lines.append(f'Missing: {run.arm}, seed {run.seed} ({run.path}).')
        return lines
    seeds = dict.fromkeys(run.seed for arm in study.arms for run in arm.runs)
    for arm in study.arms:
        there = {run.seed for run in arm.runs}
        lacking = [seed for seed in seeds if seed not in there]
        if lacking:
            lines.append(
                f'{arm.name} has no run of seed {", ".join(lacking)}, which other '
                'arms have.'
            )
    return lines


def _not_finished(study: Study) -> list[str]:
    lines = []
    for arm in study.arms:
        for run in arm.runs:
            if run.finished:
                continue
            step = console.cell(run.result.get('step'))
            words = {
                reading.DIVERGED: 'diverged: its loss or gradient was no longer finite',
                reading.FAILED: 'failed',
                reading.CONVERTED: 'is a converted checkpoint',
            }.get(run.status, 'has not finished')
            reason = f' ({run.message})' if run.message else ''
            lines.append(
                f'{arm.name}, seed {run.seed} {words}, at step {step}{reason}; it is '
                'in no mean.'
            )
    return lines


def _twice(study: Study) -> list[str]:
    lines = []
    for arm in study.arms:
        counted = arm.scored
        for run in arm.runs:
            if run.finished and run not in counted:
                lines.append(
                    f'{run.path} has the seeds of another run of {arm.name}: it is no '
                    'independent run, and in no mean.'
                )
    return lines


def _beyond_the_question(study: Study) -> list[str]:
    """Fields in which arms differ beside those that are asked for."""
    asked = None if study.sweep is None else study.sweep.fields
    lines = []
    for arm in study.arms:
        fields = differing([*study.base.runs, *arm.runs])
        if asked is None:
            beyond = [field for field in fields if field.startswith(CONDITIONS)]
        else:
            beyond = [field for field in fields if field not in asked]
        if beyond:
            lines.append(
                f'{arm.name} differs from {study.base.name} in more than the question '
                f'asks: {_values(beyond, arm, study.base)}.'
            )
        elif asked is None and len(fields) > 1:
            lines.append(
                f'{arm.name} differs from {study.base.name} in {len(fields)} fields '
                f'({", ".join(fields)}): what each of them does cannot be told apart.'
            )
    return lines


def _values(fields: Sequence[str], arm: Arm, base: Arm) -> str:
    parts = []
    for field in fields:
        values = [one.runs[0].config.get(field) for one in (arm, base)]
        parts.append(f'{field} is {values[0]}, not {values[1]}')
    return '; '.join(parts)


def _unequal_results(study: Study) -> list[str]:
    """Signatures, directions and commits that are not the same everywhere."""
    runs = [run for arm in study.arms for run in arm.scored]
    consequence = {
        'signature': 'these scores cannot be compared',
        'direction': 'these scores cannot be compared',
        f'sentences of {study.measure.set}': 'these scores are of other sentences',
        'commit': 'a difference may come from the code',
        'devices': 'roundings differ, and times cannot be compared',
        'jax': 'roundings differ, and times cannot be compared',
    }
    known = [_facts(run, study) for run in runs]
    lines = []
    for name, words in consequence.items():
        if len({values[name] for values in known}) > 1:
            lines.append(f'Not the same {name} in all runs: {words}.')
    changed = [run for run in runs if (run.environment.get('git') or {}).get('changed')]
    if changed:
        lines.append(
            f'{len(changed)} of {len(runs)} runs were made with files changed since '
            'their commit, which does not name that code.'
        )
    return lines


def _unequal_cost(study: Study) -> list[str]:
    lines = []
    for entry in ('parameters', 'training_flops', 'tokens'):
        costs = [scores.cost(arm, entry) for arm in study.arms]
        means = [found.mean for found in costs if found is not None]
        if means and max(means) > min(means) * (1 + _EQUAL_COST):
            words = scores.COSTS.get(entry, 'target tokens seen')
            lines.append(
                f'Not at equal cost: {words} from {_brief(min(means))} to '
                f'{_brief(max(means))}.'
            )
    return lines


def _brief(value: float) -> str:
    return f'{value:.3g}' if value >= 1e7 else console.cell(round(value))
