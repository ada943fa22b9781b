"""Tests of the answer as JSON: the report's numbers, in the documented structure."""

import json
import re

import pages
import pytest
from made_runs import REFERENCES, fail, make
from test_sweep_plans import TUNE, by_value, finish, planned

from experiments import report
from experiments.reports import conditions, designs, findings, json_answer, page
from experiments.reports.arms import study as make_study
from experiments.runs import reading
from experiments.sweeps import planning

FACTORS = {
    'model.residual': ['pre_norm', 'post_norm'],
    'model.num_heads': [1, 2],
}
KINDS = {'text': str, 'boolean': bool, 'number': (int, float), 'object': dict}


@pytest.fixture(scope='module')
def study(tmp_path_factory):
    """Four arms of three seeds with a declared contrast, tuning and a failed run."""
    folder = tmp_path_factory.mktemp('sweep')
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        asked = [('post_norm, 1', 'pre_norm, 1')]
        sweep = planned(
            folder,
            arms=...,
            factors=FACTORS,
            base='pre_norm, 1',
            seeds=[0, 1, 2],
            contrasts=asked,
            margin=0.5,
            tune=TUNE,
            measure=['test bleu', 'test chrf'],
        )
        for run in sweep.trials:
            finish(run, by_value(run))
        sweep = planning.plan(sweep)
        for number, run in enumerate(sweep.runs):
            score = 30.0 + run.seed + number**2 / 40
            outputs = [*REFERENCES[:2], f'x {number}']
            make(run.path, score, outputs=outputs, train__seed=run.seed)
        (sweep.runs[-1].path / 'result.json').unlink()
        fail(sweep.runs[-1].path)
        yield make_study([reading.read_run(x.path) for x in sweep.runs], sweep)


@pytest.fixture(scope='module')
def answer(study):
    return json.loads(json.dumps(json_answer.as_dict(study, ['a note'])))


def test_contrasts_are_those_of_the_text_report(study, answer):
    from_base = findings.from_base(study)
    declared = findings.declared_contrasts(study)
    others = {arm: x for arm, x in from_base.items() if arm != 'post_norm, 1'}
    rows = {row[0]: row for row in findings.ranking(study, from_base).rows}
    assert answer['declared'] and len(declared) == 1 and len(others) == 2
    (of_table,) = findings.answer_table(study, from_base, declared).rows
    assert (answer['contrasts'][0]['verdict'], 0.5) == of_table[-2:]
    for found, x in zip(
        [*answer['contrasts'], *answer['exploratory']],
        [*declared, *others.values()],
        strict=True,
    ):
        assert {**found, **x._asdict()} == found
        assert found['detectable'] == x.detectable
        assert x in declared or found['verdict'] == rows[x.arm][-1]
    tests = findings.sentence_tests(study, declared)
    ((seeds, test),) = tests.values()
    expected = test._asdict() | {'seeds': seeds}
    assert answer['contrasts'][0]['over_sentences'] == expected
    assert seeds == 3 and answer['exploratory'][0]['over_sentences'] is None


def test_further_measures_have_their_own_contrasts(study, answer):
    (further,) = answer['further']
    chrf = study._replace(measure=study.further[0])
    assert further['measure'] == vars(chrf.measure)
    (contrast,) = findings.declared_contrasts(chrf)
    assert contrast._asdict().items() <= further['contrasts'][0].items()
    # The intervals of the deciding measure include the choice of the tuned value.
    assert [x['arm'] for x in answer['trials']] == list(study.sweep.arms)
    assert chrf.design().trials == {} and chrf.margin is None
    assert further['contrasts'][0]['equivalent'] is None
    assert answer['contrasts'][0]['equivalent'] is not None
    (table,) = findings.further_answers(study)
    assert table.name == 'answer_chrf'
    assert table.note.startswith('test bleu decides; test chrf does not. ')
    assert 'do not include the choice of tuned values, because bleu' in table.note


def test_effects_arms_and_budget_are_those_of_the_text_report(study, answer):
    table = designs.effects(study)
    assert table is not None
    for found, row in zip(answer['effects'], table.rows, strict=True):
        names = ' × '.join(found['factors'])
        freedom = ', '.join(map(str, found['freedom']))
        assert (names, freedom, found['f'], found['p']) == tuple(row)
    for found, arm in zip(answer['arms'], study.ranked(), strict=True):
        assert found['name'] == arm.name
        assert found['score'] == arm.spread(study.measure)._asdict()
        costs = {name: arm.cost(name) for name in findings.COSTS}
        expected = {name: x and x._asdict() for name, x in costs.items()}
        assert found['costs'] == expected
        by_path = {str(run.path): run for run in arm.runs}
        scores = arm.by_seeds(study.measure)
        for run in found['runs']:
            read = by_path.pop(run['path'])
            assert run['score'] == (scores[read.seeds] if read.finished else None)
            assert run['data'] == read.config['data']
        assert not by_path
    trials = designs.trials(study, designs.tried(study))
    tuning = answer['budget']['tuning']
    for found, row in zip(tuning['trials'], trials.rows, strict=True):
        assert (found['arm'], found['value']) == row[:2]
        assert found['score'] == row[2]._asdict() and found['chosen'] == (row[3] != '')
    rows = [tuple(x.values()) for x in answer['conditions']]
    assert rows == conditions.facts(study).rows
    assert [*designs.doubts(study), *conditions.warnings(study)] == (
        answer['warnings'][:-1]
    )
    assert answer['warnings'][-1] == 'a note'


def documented():
    """Returns path → type, from the table of the page."""
    text = pages.text('docs/how_to/sweeps.md').partition('## An answer for programs')[2]
    found = {}
    for names, kind in re.findall(r'^\| (`.*?`) \| (\w+\??) \|', text, re.MULTILINE):
        for name in re.findall('`(.*?)`', names):
            whole = [name]
            if name.startswith('….'):
                whole = [f'{x}[]{name[1:]}' for x in ('contrasts', 'exploratory')]
            found |= dict.fromkeys(whole, kind)
    return found


def values(value, path=''):
    """Yields the path and value of everything in a JSON value."""
    if isinstance(value, dict):
        yield path, value
        for name, inner in value.items():
            yield from values(inner, f'{path}.{name}'.lstrip('.'))
    elif isinstance(value, list):
        for inner in value:
            yield from values(inner, f'{path}[]')
    else:
        yield path, value


def test_the_structure_is_the_documented_one(study, answer):
    known = documented()
    alone = make_study(study.runs, None)
    seen = set()
    for of_study in (answer, json.loads(json.dumps(json_answer.as_dict(alone)))):
        assert of_study['schema'] == json_answer.SCHEMA == 1
        for path, value in values(of_study):
            if path not in known:
                continue
            seen.add(path)
            kind = known[path]
            if value is None:
                assert kind.endswith('?'), path
                continue
            name = kind.removesuffix('?')
            if name == 'spread':
                assert set(value) == {'mean', 'sd', 'n'}, path
            else:
                assert isinstance(value, KINDS[name]), path
                assert name != 'number' or not isinstance(value, bool), path
    assert seen == set(known)
    undocumented = {x.partition('[]')[0].partition('.')[0] for x, _ in values(answer)}
    assert undocumented - {''} == {re.split(r'\[\]|\.', x)[0] for x in known}
    entries = {x for x, _ in values(answer) if re.fullmatch(r'arms\[\]\.\w+', x)}
    assert entries <= set(known)
    assert set(answer['contrasts'][0]) == set(answer['exploratory'][0])
    assert {f'contrasts[].{x}' for x in answer['contrasts'][0]} <= set(known)


def test_the_command_prints_it_alone(study, monkeypatch, command):
    paths = [str(run.path) for run in study.runs]
    monkeypatch.setattr(page, 'write', pytest.fail)
    found = json.loads(command(report, *paths, '--json', '--measure=test loss').out)
    assert found['measure']['score'] == 'loss' and not found['declared']
