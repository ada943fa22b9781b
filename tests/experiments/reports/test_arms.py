"""Tests of the arms of a report: which runs they have, their names and their base."""

import sys
from pathlib import Path

import pytest
from synthetic_runs import REFERENCES, digests, heads, make, make_all, study, sweep

from experiments import report, storage
from experiments.errors import UserError
from experiments.evaluation.measure import Measure
from experiments.reports import arms, conditions
from experiments.runs.reading import read_run


def names_of_runs(of_study):
    return [[run.path.name for run in arm.runs] for arm in of_study.arms]


def test_runs_that_differ_only_in_seeds_are_one_arm(tmp_path):
    runs = {
        'a': {},
        'b': {'train__seed': 3},
        'c': {'train__dropout_seed': 3},
        'd': {'model__num_heads': 8},
        'e': {'model__residual': 'post_norm', 'model__num_heads': 8},
    }
    result = study(make_all(tmp_path, runs))
    assert names_of_runs(result) == [['a', 'b', 'c'], ['d'], ['e']]
    seeds = [run.seed for run in result.arms[0].runs]
    assert seeds == ['0', '3', '0, dropout_seed 3']
    assert [arm.name for arm in result.arms] == [
        'num_heads=4, residual=pre_norm',
        'num_heads=8, residual=pre_norm',
        'num_heads=8, residual=post_norm',
    ]


def test_runs_with_equal_seeds_count_once(tmp_path):
    own = {f'train__{name}_seed': 1 for name in ('init', 'data', 'dropout')}
    runs = {'a': {'train__seed': 1}, 'b': {'train__seed': 1} | own}
    result = study(make_all(tmp_path, runs))
    assert list(result.arms[0].by_seeds(result.measure).values()) == [30.0]
    (warning,) = conditions.warnings(result)
    assert str(tmp_path / 'b') in warning and 'same seeds' in warning


MANY_FIELDS = {f'model__field_{i}': 'a long value' for i in range(5)}
LONG_VALUES = {
    f'run,num_heads={arm}~{seed}': {'model__attention': 60 * arm, 'train__seed': seed}
    for arm in 'ab'
    for seed in (0, 1)
}
TWO_TEXTS = {
    f'run,train.seed={i}': {'train__seed': i, 'result': digests(text, 'a')}
    for i, text in enumerate(['old', 'old', 'new', 'new'])
}


@pytest.mark.parametrize(
    ('runs', 'names'),
    [
        (
            {'a': {'model__cross__num_heads': 1}, 'b': {'model__cross__num_heads': 2}},
            ['cross.num_heads=1', 'cross.num_heads=2'],
        ),
        (
            {'a': {'checkpoint__every': 1}, 'b': {'checkpoint__every': 2}},
            ['checkpoint.every=1', 'checkpoint.every=2'],
        ),
        ({'a': {}, 'b': MANY_FIELDS}, ['HERE/a', 'HERE/b']),
        (LONG_VALUES, ['HERE/run,num_heads=a~0', 'HERE/run,num_heads=b~0']),
        (TWO_TEXTS, ['HERE/run, text 1', 'HERE/run, text 2']),
    ],
)
def test_arms_have_short_and_different_names(tmp_path, runs, names):
    result = study(make_all(tmp_path, runs))
    expected = [name.replace('HERE', str(tmp_path)) for name in names]
    assert [arm.name for arm in result.arms] == expected


def test_runs_on_different_text_are_separate_arms_with_a_warning(tmp_path):
    texts = {'a': ('old', 'old'), 'b': ('new', 'old')}
    texts |= dict.fromkeys('cd', ('new', 'new'))
    runs = {
        name: {'result': digests(*of_run), 'train__seed': seed}
        for seed, (name, of_run) in enumerate(texts.items())
    }
    result = study(make_all(tmp_path, runs))
    assert names_of_runs(result) == [['a'], ['b'], ['c', 'd']]
    lines = conditions.warnings(result)
    for name, other in {'training text': 'b', 'text of test': 'c'}.items():
        start = f'{tmp_path}/a and {tmp_path}/{other} differ in their {name}'
        assert any(line.startswith(start) for line in lines)
    facts = {row[:2] for row in conditions.facts(result).rows}
    assert {('training text', 'old'), ('text of test', 'new')} <= facts
    assert '31.50' not in report.as_table(result.runs)  # the mean of b and c


def test_unknown_text_and_other_data_cause_no_warning_about_text(tmp_path):
    new = {'result': digests('new', 'new'), 'train__seed': 1}
    paths = make_all(tmp_path, {'a': {}, 'b': new})
    assert len(study(paths).arms) == 1 and not conditions.warnings(study(paths))
    other = make(tmp_path / 'c', 31.0, result=digests('c', 'new'), data='other')
    lines = conditions.warnings(study([*paths, other]))
    assert not [x for x in lines if 'training text' in x or 'text of' in x]


def test_arm_of_a_sweep_with_different_training_texts_is_rejected(tmp_path):
    paths = heads(tmp_path, {4: [30.0, 31.0]})
    for path, text in zip(paths, ('old', 'new'), strict=True):
        result = storage.read_json(path / 'result.json')
        storage.write_json(path / 'result.json', result | digests(text, 'a'))
    with pytest.raises(UserError, match='training text'):
        study(paths, sweep(tmp_path))


def test_base_is_the_first_arm_or_the_named_one(tmp_path):
    paths = heads(tmp_path, {4: [30.0], 8: [31.0]})
    assert study(paths).base.name == 'num_heads=4'
    assert study(paths, base='num_heads=8').base.name == 'num_heads=8'
    with pytest.raises(UserError, match='--base=num_heads=9: .* num_heads=4'):
        study(paths, base='num_heads=9')
    for measure in ('test', 'test blue', 'dev bleu'):
        with pytest.raises(UserError, match='--measure.*: test.*: bleu, chrf'):
            study(paths, measure=measure)
    other = make(tmp_path / 'run,heads=2', 30.0)
    with pytest.raises(UserError, match='--sweep=heads'):
        study([other], sweep(tmp_path))


def test_metric_next_to_a_run_is_not_imported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    measure = Measure('test', 'bleu')
    fields = {'evaluation__metrics': '[bleu, near.mine.X]'}
    run = read_run(make(Path('near'), 30.0, outputs=REFERENCES, **fields))
    Path('near/mine.py').write_text('raise AssertionError')
    with pytest.raises(UserError, match='near.mine'):
        arms.find_metric(run, measure)
    assert 'near.mine' not in sys.modules
    other = read_run(make(Path('b'), 30.0, model__attention='near.mine.X'))
    assert arms.find_metric(other, measure).name == 'bleu'


def test_command_of_a_metric_runs_only_if_its_code_is_trusted(tmp_path):
    metric = 'external(command="no-such-program")'
    run = read_run(make(tmp_path / 'a', 30.0, evaluation__metrics=f'[bleu, {metric}]'))
    measure = Measure('test', 'bleu')
    with pytest.raises(UserError, match='no-such-program'):
        arms.find_metric(run, measure)
    assert arms.find_metric(run, measure, trust_code=True).name == 'bleu'
