"""The answer of a report for programs; docs/how_to/sweeps.md documents its fields.

A report stores it as `findings.ANSWER`.
"""

import json
from collections.abc import Sequence
from typing import Any

from experiments.reports import conditions, designs, findings
from experiments.reports.arms import Arm, Study
from experiments.sweeps import analysis
from experiments.sweeps.analysis import LEVEL, Contrast

SCHEMA = 1  # increased if a field is renamed or removed, or changes its meaning

Entries = dict[str, Any]  # JSON serializable


def as_dict(study: Study, notes: Sequence[str] = ()) -> Entries:
    """Returns the answer as values for JSON, with the numbers of the text report.

    Args:
      notes: Further warnings, as in `page.write`.
    """
    sweep = study.sweep
    design = study.design()
    warnings = [*designs.warnings(study), *conditions.warnings(study), *notes]
    return {
        'schema': SCHEMA,
        'sweep': sweep.name,
        'question': sweep.question,
        'level': LEVEL,
        'looks': design.looks,
        'blocks': design.blocks,
        'trials': [
            {'arm': arm, 'means': list(x.means), 'number': x.number}
            for arm, x in design.trials.items()
        ],
        'margin': study.margin,
        'margin_share': sweep.margin_share or None,
        **_differences(study),
        'further': [
            _differences(study._replace(measure=measure)) for measure in study.further
        ],
        'effects': [x._asdict() for x in designs.factor_effects(study)],
        'arms': [_arm(study, arm) for arm in study.ranked()],
        'conditions': [
            dict(zip(('name', 'value', 'arms'), row, strict=True))
            for row in conditions.facts(study).rows
        ],
        'budget': {'equal': sweep.equal, 'tuning': _tuning(study)},
        'warnings': warnings,
    }


def text(study: Study, notes: Sequence[str] = ()) -> str:
    # A tuned value may be an object.
    return json.dumps(as_dict(study, notes), indent=2, default=str)


def _differences(study: Study) -> Entries:
    """Returns the contrasts of the study's measure."""
    from_base = findings.from_base(study)
    declared = findings.declared_contrasts(study)
    verdicts = findings.verdicts(study, from_base)
    exploratory = []
    if declared:
        verdicts |= {x: findings.contrast_verdict(study.measure, x) for x in declared}
        exploratory = list(findings.undeclared(study, from_base).values())
    answer = declared or list(from_base.values())
    of_sentences = findings.sentence_tests(study, answer)

    def contrast(x: Contrast) -> Entries:
        test = None
        if x in of_sentences:
            seeds, of_both = of_sentences[x]
            test = of_both._asdict() | {'seeds': seeds}
        return findings.entries(x, verdicts[x]) | {'over_sentences': test}

    return {
        'measure': vars(study.measure),
        'declared': bool(declared),
        'contrasts': list(map(contrast, answer)),
        'exploratory': list(map(contrast, exploratory)),
    }


def _arm(study: Study, arm: Arm) -> Entries:
    scores = arm.by_seeds(study.measure)
    costs = {entry: _spread(arm.cost(entry)) for entry in findings.COSTS}
    runs = []
    for run in arm.runs:
        score = scores.get(run.seeds) if run in arm.scored else None
        about = {'path': str(run.path), 'seed': run.seed, 'status': run.status}
        runs.append(about | {'data': run.config.get('data'), 'score': score})
    return {
        'name': arm.name,
        'base': study.bases[arm.name],
        'levels': study.sweep.levels.get(arm.name, {}),
        'score': _spread(arm.spread(study.measure)),
        'costs': costs,
        'published': study.sweep.published.get(arm.name, {}),
        'runs': runs,
    }


def _tuning(study: Study) -> Entries | None:
    tune = study.sweep.tune
    if tune is None:
        return None
    trials = []
    for arm, scores, chosen in designs.tried(study):
        for value, of_value in scores.items():
            about = {'arm': arm, 'value': value, 'chosen': value == chosen}
            trials.append(about | {'score': _spread(analysis.spread(of_value))})
    return {'field': tune.field, 'set': tune.set, 'trials': trials}


def _spread(found: analysis.Spread | None) -> Entries | None:
    return None if found is None else found._asdict()
