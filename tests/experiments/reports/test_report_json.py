"""Tests of the answer as JSON: the report's numbers, in the documented structure."""

import json
import re

import pages
import pytest
from made_runs import REFERENCES, fail, make
from test_sweep_plans import TUNE, by_value, finish, planned

from experiments import report
from experiments.reports import designs, findings, json_answer, page
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


def test_answer_has_the_numbers_of_the_tables(study, answer):
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
    (effect, *_), table = answer['effects'], designs.effects(study)
    assert table is not None and (effect['f'], effect['p']) == tuple(table.rows[0][2:4])
    (chosen, *_) = designs.trials(study, designs.tried(study)).rows
    trial = answer['budget']['tuning']['trials'][0]
    assert (trial['arm'], trial['value']) == chosen[:2]
    (further,) = answer['further']
    assert further['contrasts'][0]['equivalent'] is None  # the margin is for BLEU
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


def test_answer_has_the_documented_structure(study, answer):
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


def test_json_flag_prints_the_answer_alone(study, monkeypatch, command):
    paths = [str(run.path) for run in study.runs]
    monkeypatch.setattr(page, 'write', pytest.fail)
    found = json.loads(command(report, *paths, '--json', '--measure=test loss').out)
    assert found['measure']['score'] == 'loss' and not found['declared']
