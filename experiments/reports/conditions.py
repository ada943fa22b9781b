"""What was compared, and what keeps a comparison from being fair."""

from experiments.command_line import console
from experiments.reports.arms import Arm, Study, differing
from experiments.reports.tables import Table
from experiments.runs.reading import Run

# A difference in one of these is a difference in what is asked only where a sweep says
# so.
CONDITIONS = (
    'data',
    'tokenizer.',
    'batch.',
    'evaluation.',
    'checkpoint.',
    'train.steps',
    'train.epochs',
    'train.patience',
)
_EQUAL_COST = 0.02  # share by which a cost may differ unmentioned
_COSTS = {
    'parameters': 'parameters',
    'training_flops': 'training FLOPs',
    'tokens': 'target tokens seen',
}


def facts(study: Study) -> Table:
    """What all arms have in common, and in what they differ."""
    known = [(arm.name, _facts(run, study)) for arm in study.arms for run in arm.runs]
    rows = []
    for name in dict.fromkeys(name for _, found in known for name in found):
        arms_of: dict[str, dict[str, None]] = {}  # by the value
        for arm, found in known:
            arms_of.setdefault(found[name], {})[arm] = None
        for value, arms in arms_of.items():
            whose = 'all' if len(arms_of) == 1 else '; '.join(arms)
            rows.append((name, value, whose))
    columns = ('what', 'value', 'arms')
    return Table('compared', 'What was compared', columns, tuple(rows))


def _facts(run: Run, study: Study) -> dict[str, str]:
    """What a run was made from and with, by name, as text; the same names of all."""
    measure = study.measure
    scored = run.evaluations.get(measure.set, {})
    signature = 'chrf' if measure.score == 'chrf' else 'bleu'
    devices = [
        f'{n} × {kind}' for kind, n in run.environment.get('devices', {}).items()
    ]
    git = run.environment.get('git') or {}
    commit = str(git.get('commit', 'not known'))[:10]
    if git.get('changed'):
        commit += ' with changes'
    known = {
        'data': run.config.get('data'),
        'direction': scored.get('direction'),
        f'sentences of {measure.set}': scored.get('sentences'),
        'signature': scored.get(f'{signature}_signature'),
        'steps': run.result.get('step'),
        'target tokens seen': run.tokens and f'{run.tokens / 1e6:.3g} million',
        'commit': commit,
        'devices': ', '.join(devices) or None,
        'jax': run.environment.get('packages', {}).get('jax'),
    }
    return {name: console.cell(value) for name, value in known.items()}


def warnings(study: Study) -> list[str]:
    """What a reader must know before believing the answer, in sentences."""
    return [
        *_missing(study),
        *_in_no_mean(study),
        *_beyond_the_question(study),
        *_unequal_results(study),
        *_unequal_cost(study),
    ]


def _missing(study: Study) -> list[str]:
    """The runs of the sweep that are not there."""
    there = {run.path.resolve().name for arm in study.arms for run in arm.runs}
    lines = []
    for run in study.sweep.runs if study.sweep else ():
        if run.path.name not in there:
            lines.append(f'Missing: {run.arm}, seed {run.seed} ({run.path}).')
    return lines


def _in_no_mean(study: Study) -> list[str]:
    """The runs that have not finished, and those that are another one again."""
    lines = []
    for arm in study.arms:
        for run in arm.runs:
            if run.finished and run not in arm.scored:
                lines.append(
                    f'{run.path} has the seeds of another run of {arm.name}: it is no '
                    'independent run, and in no mean.'
                )
            if not run.finished:
                reason = f' ({run.message})' if run.message else ''
                lines.append(
                    f'{arm.name}, seed {run.seed}: {run.status} at step '
                    f'{run.result["step"]:,}{reason}; it is in no mean.'
                )
    return lines


def _beyond_the_question(study: Study) -> list[str]:
    """Fields in which arms differ beside those that are asked for.

    A sweep asks for the fields that its arms set. Without one, every field may be the
    question, save `CONDITIONS`.
    """
    asked = None if study.sweep is None else study.sweep.fields
    lines = []
    for arm in study.arms:
        fields = differing([*study.base.runs, *arm.runs])
        if asked is None:
            beyond = [field for field in fields if field.startswith(CONDITIONS)]
        else:
            beyond = [field for field in fields if field not in asked]
        beyond = [_difference(field, arm, study.base) for field in beyond]
        if beyond:
            lines.append(
                f'{arm.name} differs from {study.base.name} in more than the question '
                f'asks: {"; ".join(beyond)}.'
            )
    return lines


def _difference(field: str, arm: Arm, base: Arm) -> str:
    """What an arm has in a field, and what the base has; both have runs."""
    value = arm.runs[0].config.get(field)
    wanted = base.runs[0].config.get(field)
    return f'{field} is {value}, not {wanted}'


def _unequal_results(study: Study) -> list[str]:
    """Signatures, sentences and commits that are not the same everywhere."""
    consequences = {
        'signature': 'these scores cannot be compared',
        f'sentences of {study.measure.set}': 'these scores are of other sentences',
        'commit': 'a difference may come from the code',
    }
    known = [_facts(run, study) for arm in study.arms for run in arm.scored]
    lines = []
    for name, words in consequences.items():
        if len({values[name] for values in known}) > 1:
            lines.append(f'Not the same {name} in all runs: {words}.')
    return lines


def _unequal_cost(study: Study) -> list[str]:
    """Costs whose means over seeds are further apart than `_EQUAL_COST`."""
    lines = []
    for entry, words in _COSTS.items():
        costs = [arm.cost(entry) for arm in study.arms]
        means = sorted(found.mean for found in costs if found is not None)
        if means and means[-1] > means[0] * (1 + _EQUAL_COST):
            range_of_means = f'{means[0]:,.6g} to {means[-1]:,.6g}'
            lines.append(f'Not at equal cost: {words} from {range_of_means}.')
    return lines
