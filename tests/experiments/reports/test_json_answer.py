"""Tests of the answer as JSON: the report's numbers, in the documented structure."""

import json
import re

import golden_report
import pages
import pytest

from experiments import report
from experiments.reports import arms, designs, findings, json_answer, page


@pytest.fixture(scope='module')
def study(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp('sweep'))
        yield golden_report.make_factorial_study()


def as_json(study, *notes):
    return json.loads(json.dumps(json_answer.as_dict(study, list(notes))))


def test_answer_has_the_numbers_of_the_tables(study):
    answer = as_json(study, 'a note')
    from_base = findings.from_base(study)
    declared = findings.declared_contrasts(study)
    others = [x for arm, x in from_base.items() if arm != '2000, post']
    rows = {row[0]: row for row in findings.ranking(study, from_base).rows}
    assert answer['declared'] and len(declared) == 1 and others
    (of_table,) = findings.answer_table(study, from_base, declared).rows
    assert of_table[-1] == answer['contrasts'][0]['verdict']
    entries = [*answer['contrasts'], *answer['exploratory']]
    for entry, contrast in zip(entries, [*declared, *others], strict=True):
        assert {**entry, **contrast._asdict()} == entry
        assert entry['detectable'] == contrast.detectable
        assert contrast in declared or entry['verdict'] in rows[contrast.arm]
    (effect, *_), table = answer['effects'], designs.effects(study)
    assert (effect['f'], effect['p']) == tuple(table.rows[0][2:4])
    (first, *_) = designs.trials(study, designs.tried(study)).rows
    trial = answer['budget']['tuning']['trials'][0]
    assert (trial['arm'], trial['value']) == first[:2]
    (further,) = answer['further']
    assert further['contrasts'][0]['equivalent'] is None  # the margin is for BLEU
    assert answer['warnings'][-1] == 'a note'


def documented_types():
    """Returns path → type, from the table of the page."""
    text = pages.text('docs/how_to/sweeps.md').partition('## An answer for programs')[2]
    types = {}
    for names, kind in re.findall(r'^\| (`.*?`) \| (\w+\??) \|', text, re.MULTILINE):
        for name in re.findall('`(.*?)`', names):
            paths = [name]
            if name.startswith('….'):
                paths = [f'{x}[]{name[1:]}' for x in ('contrasts', 'exploratory')]
            types |= dict.fromkeys(paths, kind)
    return types


def values(value, path=''):
    """Yields the path and value of everything in a JSON value."""
    if isinstance(value, list):
        for inner in value:
            yield from values(inner, f'{path}[]')
        return
    yield path, value
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from values(inner, f'{path}.{name}'.lstrip('.'))


def type_of(value):
    if isinstance(value, dict):
        return 'spread' if set(value) == {'mean', 'sd', 'n'} else 'object'
    names = {str: 'text', bool: 'boolean', int: 'number', float: 'number'}
    return names[type(value)]


def test_answer_has_the_documented_structure(study):
    types = documented_types()
    answer = as_json(study)
    seen = set()
    for each in (answer, as_json(arms.study(study.runs, None))):
        assert each['schema'] == json_answer.SCHEMA == 1
        for path, value in values(each):
            if path in types:
                seen.add(path)
                optional = types[path].endswith('?')
                assert value is not None or optional, path
                if value is not None:
                    assert type_of(value) == types[path].removesuffix('?'), path
    assert seen == set(types)
    top_level = {re.split(r'\[\]|\.', path)[0] for path in types}
    assert set(answer) == top_level
    assert {f'arms[].{x}' for x in answer['arms'][0].keys() - {'runs'}} <= set(types)
    assert set(answer['contrasts'][0]) == set(answer['exploratory'][0])
    assert {f'contrasts[].{name}' for name in answer['contrasts'][0]} <= set(types)


def test_json_flag_prints_only_the_answer(study, monkeypatch, command):
    paths = [str(run.path) for run in study.runs]
    monkeypatch.setattr(page, 'write', pytest.fail)
    answer = json.loads(command(report, *paths, '--json', '--measure=test loss').out)
    assert answer['measure']['score'] == 'loss' and not answer['declared']
