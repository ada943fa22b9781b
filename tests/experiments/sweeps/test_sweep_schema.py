"""Tests of sweep files."""

import hashlib
import json

import pytest
from planned_sweeps import FIELDS, write_sweep

from experiments.command_line import flags
from experiments.config import components, load
from experiments.config.schema import EvaluationConfig, ExperimentConfig
from experiments.errors import UserError
from experiments.evaluation.measure import Measure
from experiments.runs import directory
from experiments.sweeps import planning, progress

BLEU_AND_TER = {'evaluation.metrics': '[bleu, ter]'}


def test_sweep_has_the_fields_of_its_file(tmp_path):
    arms = {'base': {}, 'heads=2': {'model': {'num_heads': 2}}}
    fields = {'arms': arms, 'overrides': {'train': {'steps': 30}}}
    file = write_sweep(tmp_path, published={'base': {'bleu': 25.8}}, **fields)
    sweep = planning.load(file)
    assert (sweep.name, sweep.question) == ('heads', 'How many heads?')
    assert sweep.arms == {'base': {}, 'heads=2': {'model.num_heads': 2}}
    assert sweep.overrides == {'train.steps': 30}
    assert sweep.seeds == (0, 3)
    assert sweep.published == {'base': {'bleu': 25.8}}
    assert sweep.digest == hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ('text', 'expected'),
    [
        ('news 2014 bleu', Measure('news 2014', 'bleu')),
        ('test ter', Measure('test', 'ter', higher_is_better=False)),
        ('val loss', Measure('val', 'loss', higher_is_better=False)),
        ('val accuracy', Measure('val', 'accuracy')),
    ],
)
def test_measure_has_the_direction_of_its_score(tmp_path, text, expected):
    file = write_sweep(tmp_path, overrides=BLEU_AND_TER, measure=text)
    assert {run.measure for run in planning.load(file).runs} == {expected}
    assert str(expected) == text


def test_first_of_several_measures_decides(tmp_path):
    measure = ['test loss', 'long ter']
    file = write_sweep(tmp_path, overrides=BLEU_AND_TER, measure=measure)
    sweep = planning.load(file)
    loss = Measure('test', 'loss', higher_is_better=False)
    assert sweep.measure == loss
    assert {run.measure for run in sweep.runs} == {loss}
    ter = Measure('long', 'ter', higher_is_better=False)
    assert {run.further for run in sweep.runs} == {(ter,)}
    assert 'test loss, lower is better; also long ter' in progress.heading(sweep)


def test_arm_may_set_an_argument_of_a_component(tmp_path):
    schedule = {'optimizer.schedule': 'cosine(peak=1.0, warmup=0.2)'}
    arms = {
        'base': {},
        'first': {'optimizer.schedule.peak': 0.5},
        'added': {'model.attention.temperature': 2, 'model.decoder.norm': 'rms'},
    }
    file = write_sweep(tmp_path, overrides=schedule, arms=arms, seeds=[0])
    base, first, added = planning.load(file).runs
    assert str(base.config.optimizer.schedule) == 'cosine(peak=1.0, warmup=0.2)'
    assert str(first.config.optimizer.schedule) == 'cosine(peak=0.5, warmup=0.2)'
    assert first.overrides == {'optimizer.schedule': 'cosine(peak=0.5, warmup=0.2)'}
    assert str(added.config.model.attention) == 'softmax(temperature=2)'


def test_runs_have_the_configs_of_the_command_line(tmp_path):
    runs = planning.load(write_sweep(tmp_path)).runs
    expected = [(arm, seed) for arm in ('base', 'heads=2', 'rate') for seed in (0, 3)]
    assert [(run.arm, run.seed) for run in runs] == expected
    assert [str(run.path) for run in runs] == [
        f'runs/heads/{arm}/seed={seed}' for arm, seed in expected
    ]
    argv = ['--config=configs/wmt_small.py', '--config.train.steps=30']
    rate = '--config.optimizer.schedule=cosine(peak=1e-3)'
    argv += [rate, '--config.optimizer.clip=1', '--config.train.seed=3']
    _, settings = flags.parse(flags.Parser(None), argv)
    assert runs[5].overrides == settings.overrides
    assert runs[5].config == settings.config


PYTHON_FILE = """
import numpy as np

from experiments.metrics.chrf import Chrf
from flaxformer_lite.attention.local import Local
from flaxformer_lite.losses.focal import Focal
from flaxformer_lite.norms.rms import RMSNorm


class Own(RMSNorm):
    pass


def get_config():
    return {fields!r} | dict({changes})
"""
LOCAL = 'flaxformer_lite.attention.local.Local'
RMS = 'flaxformer_lite.norms.rms.RMSNorm'
FOCAL = 'flaxformer_lite.losses.focal.Focal'


def load_python(folder, changes):
    file = folder / 'heads.py'
    file.write_text(PYTHON_FILE.format(fields=FIELDS, changes=changes), 'utf-8')
    return planning.load(file)


def test_arm_may_have_classes_objects_and_numpy_numbers(tmp_path):
    own = """{
        'model.norm': RMSNorm,
        'model.attention': Local(window=4),
        'train': {'loss': Focal(gamma=3)},
        'model.d_ff': np.int64(64),
        'model.dropout': np.float32(0.5),
        'model.d_k': None,
    }"""
    sweep = load_python(tmp_path, f"seeds=[0], arms={{'base': {{}}, 'own': {own}}}")
    base, run = sweep.runs
    assert base.overrides == {'train.steps': 30}
    assert run.overrides == base.overrides | {
        'model.norm': RMS,
        'model.attention': f'{LOCAL}(window=4)',
        'train.loss': f'{FOCAL}(gamma=3)',
        'model.d_ff': 64,
        'model.dropout': 0.5,
    }
    components.build(run.config)
    argv = [f'--config.{field}={value}' for field, value in run.overrides.items()]
    _, settings = flags.parse(flags.Parser(None), ['--config=wmt_small', *argv])
    assert settings.config == run.config


def test_levels_and_tuned_values_may_be_classes_or_arguments_of_objects(tmp_path):
    sweep = load_python(
        tmp_path,
        'arms={}, '
        "factors={'model.norm': ['layer', RMSNorm], 'model.num_heads': (2, 8)}, "
        "base='layer, 2', "
        "tune={'field': 'train.loss', 'values': ['cross_entropy', Focal]}",
    )
    assert list(sweep.arms) == ['layer, 2', 'layer, 8', f'{RMS}, 2', f'{RMS}, 8']
    losses = [str(run.config.train.loss) for run in sweep.trials[:2]]
    assert losses == ['cross_entropy', FOCAL]
    assert str(sweep.trials[1]) == f'layer, 2, {FOCAL}, seed 100'
    sweep = load_python(
        tmp_path,
        "overrides={'train.loss': Focal(gamma=9)}, "
        "arms={'base': {}, 'named': {'train.loss': 'focal'}}, "
        "tune={'field': 'train.loss.gamma', 'values': list(np.arange(3, 5))}",
    )
    assert [str(run.config.train.loss) for run in sweep.trials] == [
        *(f'{FOCAL}(gamma=3)', f'{FOCAL}(gamma=4)'),
        *('focal(gamma=3)', 'focal(gamma=4)'),
    ]


@pytest.mark.parametrize(
    ('changes', 'words'),
    [
        ("arms={'base': {'model.num_heads': '8'}}", ["'base': model.num_heads", "'8'"]),
        ("arms={'base': {'model.num_heads': 8.0}}", ["'base': model.num_heads", '8.0']),
        ("arms={'base': {'model.dropout': 10**400}}", ["'base': model.dropout"]),
        ("arms={'base': {'batch.packed': 'no'}}", ["'base': batch.packed", "'no'"]),
        ("arms={'base': {'model.norm': Own}}", ["'base': model.norm", 'Own']),
        (
            "measure='test Chrf', arms={'base': {'evaluation.metrics': Chrf}, "
            "'odd': {'evaluation.metrics': Chrf, 'model.num_heads': 0}}",
            ["'odd': model.num_heads"],
        ),
        ("arms={}, factors={'model.norm': ['layer', Own]}", ["['model.norm']", 'Own']),
        ("tune={'field': 'model.norm', 'values': ['layer', Own]}", ['tune', 'Own']),
        ("tune={'field': 'train.steps.x', 'values': [1, 2]}", ["'train.steps.x'"]),
    ],
)
def test_invalid_values_are_rejected_by_arm_and_field(tmp_path, changes, words):
    with pytest.raises(UserError) as error:
        load_python(tmp_path, f'seeds=[0], contrasts=[], {changes}')
    assert all(word in str(error.value) for word in words), error.value


def test_runs_of_a_changed_sweep_are_rejected(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = planning.load(write_sweep(tmp_path)).runs[0]
    with directory.open_run(first.path, first.config.to_dict()):
        pass
    again = planning.load(write_sweep(tmp_path)).runs[0]
    assert directory.check_directory(again.path, again.config.to_dict()) == 'resumes'
    for overrides, message in (
        ({'train.steps': 40}, 'heads/base/seed=0: .* train.steps'),
        ({'model.d_ff': 8}, 'heads/base/seed=0 .* different config'),
    ):
        with pytest.raises(UserError, match=message):
            planning.load(write_sweep(tmp_path, overrides=overrides))


TUNE = {'field': 'model.d_ff', 'values': [8, 9]}
NO_ARMS = {'arms': ...}
TEST_ONLY = {'overrides': {'evaluation.sets': 'test'}}
EXTERNAL = {'evaluation.metrics': 'external(command="true")'}


# Changes of the file, and words of the error.
@pytest.mark.parametrize(
    ('changes', 'words'),
    [
        ({'question': 3}, ['question', 'str']),
        ({'question': ...}, ['question']),
        ({'qestion': 'a'}, ["'qestion'", 'question']),
        ({'config': 'configs/none.py'}, ['configs/none.py']),
        ({'arms': {}}, ['arms']),
        ({'arms': {'base': {}, 3: {}}}, ['arms', '3']),
        ({'arms': {'base': {'model': {1: 2}}}}, ["'base'", 'model.1']),
        ({'arms': {'base': {'model.d_ff': None}}}, ['model.d_ff', 'None']),
        ({'arms': {'base': {'model.nun_heads': 2}}}, ["'base'", 'model.num_heads']),
        ({'arms': {'base': {'model.num_heads': 0}}}, ["'base'", 'model.num_heads']),
        ({'arms': {'base': {'model.decoder.norm.eps': 1}}}, ['decoder.norm.eps: ']),
        ({'arms': {'base': {}, 'b': {'model.num_heads': 4}}}, ['base, seed 0', 'b, ']),
        (
            {'arms': {'base': {}, 'Base!': {'model.num_heads': 2}}},
            ['runs/heads/base/seed=0'],
        ),
        ({'base': 'bass'}, ["'bass'", "'base'"]),
        ({'overrides': {'train.seed': 3}}, ['train.seed', 'seeds']),
        ({'published': {'bass': {}}}, ["'bass'"]),
        ({'published': {'base': {'blue': 1.0}}}, ["'blue'", 'bleu']),
        ({'measure': ...}, ['measure']),
        ({'measure': 'test blue'}, ["measure='test blue'"]),
        ({'measure': 'bleu'}, ["measure='bleu'", 'set']),
        ({'measure': []}, ['measure']),
        ({'measure': ['test loss'] * 2}, ['measure', 'different']),
        ({'measure': ['test loss', 'test blue']}, ["measure='test blue'"]),
        ({'measure': ['test loss', 'long bleu']} | TEST_ONLY, ['.sets', "'long'"]),
        ({'measure': 'tset bleu'} | TEST_ONLY, ["measure='tset bleu'", '.sets']),
        ({'contrasts': [('base', 'heads')]}, ["'heads'"]),
        ({'contrasts': [('base', 'base')]}, ['contrasts', 'different']),
        ({'contrasts': ['base']}, ['contrasts', "'base'"]),
        ({'margin': -1.0}, ['margin', '-1.0']),
        ({'margin': '5'}, ['margin', "'5%'"]),
        (
            {'margin': '5%', 'measure': 'test external', 'overrides': EXTERNAL},
            ['margin', 'external'],
        ),
        ({'seeds': []}, ['seeds']),
        ({'seeds': [-1]}, ['train.seed', '0']),
        ({'seeds': [1, 1]}, ['base, seed 1']),
        ({'seeds': 'until(half_width=1.0)'}, ['seeds', 'most']),
        ({'seeds': 'until(half_width=0, most=9)'}, ['half_width', '0']),
        ({'seeds': 'till(most=9)'}, ['seeds', 'until']),
        ({'tune': TUNE | {'values': [8, 8]}}, ['tune', 'values', 'two']),
        ({'tune': TUNE | {'values': [8, None]}}, ['tune', 'values']),
        ({'tune': TUNE | {'seeds': [0, 7]}}, ['seeds']),
        ({'tune': TUNE | {'seeds': [[1]]}}, ['train.seed', '[1]']),
        ({'tune': TUNE | {'set': 'test'}}, ['tune', "set='test'"]),
        ({'tune': TUNE, 'measure': ['test loss', 'val loss']}, ['tune', "set='val'"]),
        ({'tune': TUNE | {'budgte': 3}}, ['tune', "'budgte'"]),
        ({'tune': TUNE | {'field': 'model.dropuot'}}, ['model.dropout']),
        ({'equal': 'seconds'}, ['equal', 'tokens']),
        ({'equal': 'tokens', 'arms': {'base': {'train.steps': 3}}}, ['train.steps']),
        ({'factors': {'a': ['b', 'c']}}, ['factors', 'arms']),
        (NO_ARMS | {'factors': {'a': ['b']}}, ["factors['a']", 'two']),
        (NO_ARMS | {'factors': {'a': 3}}, ["factors['a']", 'dict']),
        (NO_ARMS | {'factors': {'x': {'base': {}, None: {}}}}, ["['x']", 'None']),
    ],
)
def test_invalid_sweeps_are_rejected_by_field(tmp_path, changes, words):
    with pytest.raises(UserError) as error:
        planning.load(write_sweep(tmp_path, **changes))
    message = str(error.value)
    assert 'heads' in message and '\n' not in message  # the name of the sweep
    assert all(word in message for word in words), message


def test_command_of_a_stored_config_must_be_repeated_in_the_sweep(tmp_path):
    metric = 'external(command="no-such-program")'
    config = ExperimentConfig(evaluation=EvaluationConfig(metrics=metric))
    file = tmp_path / 'config.json'
    file.write_text(json.dumps(load.to_store(config.to_dict())), encoding='utf-8')
    fields = {'config': str(file), 'measure': 'test loss'}
    with pytest.raises(UserError, match='evaluation.metrics in the sweep'):
        planning.load(write_sweep(tmp_path, **fields))
    overrides = {'evaluation.metrics': metric}
    assert planning.load(write_sweep(tmp_path, overrides=overrides, **fields)).runs


def test_files_without_a_sweep_are_rejected(tmp_path):
    file = tmp_path / 'heads.py'
    for text, message in (
        ('def get_config():\n    return 1 / 0\n', 'heads.py:2: ZeroDivisionError'),
        ('x = 3\n', 'no get_config.. that returns a dictionary'),
    ):
        file.write_text(text, encoding='utf-8')
        with pytest.raises(UserError, match=message):
            planning.load(file)
    with pytest.raises(UserError, match='file not found'):
        planning.load(tmp_path / 'none.py')
    stored = tmp_path / 'config.json'
    stored.write_text('[][0]', encoding='utf-8')  # an error, if it is executed
    for path in ('configs/wmt_tiny.py', stored):
        with pytest.raises(UserError, match=f'not a sweep file.*run --config={path}'):
            planning.load(path)
