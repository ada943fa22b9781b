"""Tests of the conditions of runs, and of warnings about unfair comparisons."""

import dataclasses

import pytest
from synthetic_runs import fail, heads, make, make_all, study, sweep

from experiments.reports import conditions


def test_unfinished_runs_are_named_and_excluded_from_means(tmp_path):
    paths = heads(tmp_path, {4: (30.0, 31.0)})
    rows = [(7, 'eval', {'set': 'test', 'bleu': 1.0, 'loss': 9.0})]
    statuses = ('diverged', 'failed', 'stopped')
    for seed, status in enumerate(statuses, 2):
        paths.append(make(tmp_path / status, rows=rows, train__seed=seed))
        if status != 'stopped':
            fail(paths[-1], status)
    result = study(paths)
    assert list(result.arms[0].by_seeds(result.measure).values()) == [30.0, 31.0]
    steps = [row for row in conditions.facts(result).rows if row[0] == 'steps']
    assert [arms for _, _, arms in steps] == ['all']
    warnings = conditions.warnings(result)
    for seed, (status, line) in enumerate(zip(statuses, warnings, strict=True), 2):
        assert f'seed {seed}: {status} at step 7' in line
        assert ('the loss is not finite' in line) == (status != 'stopped')


GIT = [{'environment': {'git': {'commit': x * 40, 'changed': x == 'b'}}} for x in 'ab']
LARGER = {'result': {'parameters': 1500}}


@pytest.mark.parametrize(
    ('first', 'second', 'words'),
    [
        ({}, {'train__steps': 40}, ['train.steps is 40, not 20']),
        ({}, {'data': 'other'}, ['data is other, not']),
        ({}, {}, []),
        (*GIT, ['commits']),
        ({}, LARGER, ['parameters', '1,000', '1,500']),
        ({}, {'result': {'evaluations': {}}}, ['b: ', 'test bleu', '--measure']),
    ],
)
def test_differences_beyond_the_question_are_warnings(tmp_path, first, second, words):
    second = {'model__num_heads': 8} | second
    result = study(make_all(tmp_path, {'a': first, 'b': second}), measure='test bleu')
    lines = conditions.warnings(result)
    assert len(lines) == bool(words)
    assert all(word in lines[0] for word in words)
    commits = {row[1] for row in conditions.facts(result).rows if row[0] == 'commit'}
    assert ('bbbbbbbbbb (modified)' in commits) == (words == ['commits'])


def test_fields_that_no_arm_of_the_sweep_sets_are_warnings(tmp_path):
    paths = heads(tmp_path, {4: [30.0]})
    fields = {'model__num_heads': 8, 'model__residual': 'none'}
    paths.append(make(tmp_path / 'run,heads=8,train.seed=0', 31.0, **fields))
    text = ' '.join(conditions.warnings(study(paths, sweep(tmp_path))))
    assert 'model.residual is none, not pre_norm' in text
    assert 'model.num_heads is' not in text


def test_unequal_costs_are_a_warning_within_each_declared_contrast(tmp_path):
    costs = {2: 1000, 4: 1000, 8: 1500, 16: 1800}
    runs = {
        f'{number}': {'result': {'parameters': cost}, 'model__num_heads': number}
        for number, cost in costs.items()
    }
    names = [f'num_heads={number}' for number in costs]
    result = study(make_all(tmp_path, runs))

    def warnings(*contrasts):
        declared = dataclasses.replace(result.sweep, contrasts=contrasts)
        return conditions.warnings(result._replace(sweep=declared))

    assert len(warnings()) == 1
    equal, unequal = (names[1], names[0]), (names[2], names[0])
    assert not warnings(equal)
    (line,) = warnings(equal, unequal)
    assert '1,000 to 1,500' in line and all(name in line for name in unequal)
    (line,) = warnings(unequal, (names[3], names[1]))
    assert '1,000 to 1,800' in line and 'of 2' in line


@pytest.mark.parametrize(
    ('bleus', 'is_unequal'),
    [
        ({4: (30.0, 31.0, 32.0), 8: (40.0, 41.5, 43.0)}, False),
        ({4: (0.0, 0.0, 0.0), 8: (40.0, 41.5, 43.0)}, True),
        ({4: (0.0, 0.01, 0.02), 8: (40.0, 45.0, 53.0)}, True),
        ({4: (30.0,), 8: (31.0,)}, False),
    ],
)
def test_unequal_variance_between_seeds_is_a_warning(tmp_path, bleus, is_unequal):
    lines = conditions.warnings(study(heads(tmp_path, bleus)))
    assert any('variance' in line for line in lines) == is_unequal
