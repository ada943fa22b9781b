"""Tests of sweep files."""

import hashlib
import json

import pytest

from experiments.command_line import flags
from experiments.config import components, load
from experiments.config.schema import EvaluationConfig, ExperimentConfig
from experiments.errors import UserError
from experiments.evaluation.measure import Measure
from experiments.runs import directory
from experiments.sweeps import planning, progress

FIELDS = {
    'question': 'How many heads?',
    'source': 'Vaswani et al. 2017',
    'config': 'configs/wmt_small.py',
    'overrides': {'train.steps': 30},
    'arms': {
        'base': {},
        'heads=2': {'model.num_heads': 2},
        'rate': {'optimizer.schedule': 'cosine(peak=1e-3)', 'optimizer.clip': 1},
    },
    'seeds': [0, 3],
    'base': 'base',
    'measure': 'test bleu',
}


def write_sweep(folder, **changes):
    """Writes a file with `FIELDS` and changes to them; `...` removes one."""
    fields = {k: v for k, v in (FIELDS | changes).items() if v is not ...}
    file = folder / 'heads.py'
    file.write_text(f'def get_config():\n    return {fields!r}\n', encoding='utf-8')
    return file


def test_sweep_has_the_fields_of_its_file(tmp_path):
    sweep = planning.load(write_sweep(tmp_path, published={'base': {'bleu': 25.8}}))
    assert (sweep.name, sweep.question) == ('heads', 'How many heads?')
    assert sweep.arms['heads=2'] == {'model.num_heads': 2}
    assert sweep.seeds == (0, 3)
    assert sweep.published == {'base': {'bleu': 25.8}}
    assert sweep.differs == ''
    file = tmp_path / 'heads.py'
    assert sweep.digest == hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ('text', 'expected'),
    [
        ('test bleu', Measure('test', 'bleu')),
        ('news 2014 bleu', Measure('news 2014', 'bleu')),
        ('test ter', Measure('test', 'ter', higher_is_better=False)),
        ('val loss', Measure('val', 'loss', higher_is_better=False)),
        ('val accuracy', Measure('val', 'accuracy')),
    ],
)
def test_its_runs_have_the_measure_with_its_direction(tmp_path, text, expected):
    overrides = {'evaluation.metrics': '[bleu, ter]'}
    sweep = planning.load(write_sweep(tmp_path, overrides=overrides, measure=text))
    assert (sweep.measure.set, sweep.measure.score) == (expected.set, expected.score)
    assert {run.measure for run in sweep.runs} == {expected}
    assert str(expected) == text


def test_first_of_several_measures_decides(tmp_path):
    overrides = {'evaluation.metrics': '[bleu, ter]'}
    measure = ['test loss', 'long ter']
    sweep = planning.load(write_sweep(tmp_path, overrides=overrides, measure=measure))
    loss = Measure('test', 'loss', higher_is_better=False)
    assert sweep.measure == loss
    assert {run.measure for run in sweep.runs} == {loss}
    ter = Measure('long', 'ter', higher_is_better=False)
    assert {run.further for run in sweep.runs} == {(ter,)}
    assert 'test loss, lower is better; also long ter' in progress.heading(sweep)


def test_overrides_may_be_nested(tmp_path):
    arms = {'base': {}, 'heads=2': {'model': {'num_heads': 2}}}
    file = write_sweep(tmp_path, overrides={'train': {'steps': 30}}, arms=arms)
    sweep = planning.load(file)
    assert sweep.overrides == {'train.steps': 30}
    assert sweep.arms == {'base': {}, 'heads=2': {'model.num_heads': 2}}


def test_an_arm_may_set_an_argument_of_a_component(tmp_path):
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
    arms['first'] = {'model.decoder.norm.eps': 1e-3}
    file = write_sweep(tmp_path, overrides=schedule, arms=arms, seeds=[0])
    with pytest.raises(UserError, match='model.decoder.norm.eps: '):
        planning.load(file)


def test_its_runs_are_those_that_the_command_line_makes(tmp_path):
    runs = planning.load(write_sweep(tmp_path)).runs
    assert [(run.arm, run.seed) for run in runs] == [
        *[('base', 0), ('base', 3)],
        *[('heads=2', 0), ('heads=2', 3)],
        *[('rate', 0), ('rate', 3)],
    ]
    argv = ['--config=configs/wmt_small.py', '--config.train.steps=30']
    rate = '--config.optimizer.schedule=cosine(peak=1e-3)'
    argv += [rate, '--config.optimizer.clip=1', '--config.train.seed=3']
    _, settings = flags.parse(flags.Parser(None), argv)
    assert runs[5].overrides == settings.overrides
    assert runs[5].config == settings.config
    assert [str(run.path) for run in runs] == [
        *('runs/heads/base/seed=0', 'runs/heads/base/seed=3'),
        *('runs/heads/heads=2/seed=0', 'runs/heads/heads=2/seed=3'),
        *('runs/heads/rate/seed=0', 'runs/heads/rate/seed=3'),
    ]


OF_CLASSES = """
import numpy as np

from experiments.metrics.chrf import Chrf
from flaxformer_lite.attention.local import LocalAttention
from flaxformer_lite.losses.focal import Focal
from flaxformer_lite.norms.rms import RMSNorm


class Own(RMSNorm):
    pass


def get_config():
    return {fields!r} | dict({changes})
"""
LOCAL = 'flaxformer_lite.attention.local.LocalAttention'
RMS = 'flaxformer_lite.norms.rms.RMSNorm'
FOCAL = 'flaxformer_lite.losses.focal.Focal'


def load_with_classes(folder, changes):
    file = folder / 'heads.py'
    file.write_text(OF_CLASSES.format(fields=FIELDS, changes=changes), 'utf-8')
    return planning.load(file)


def test_an_arm_may_have_classes_objects_and_numbers_of_numpy(tmp_path):
    own = """{
        'model.norm': RMSNorm,
        'model.attention': LocalAttention(window=4),
        'train': {'loss': Focal(gamma=3)},
        'model.d_ff': np.int64(64),
        'model.dropout': np.float32(0.5),
        'model.d_k': None,
    }"""
    arms = f"{{'base': {{}}, 'own': {own}}}"
    sweep = load_with_classes(tmp_path, f'seeds=[0], arms={arms}')
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


def test_levels_and_tuned_values_may_be_classes(tmp_path):
    sweep = load_with_classes(
        tmp_path,
        'arms={}, '
        "factors={'model.norm': ['layer', RMSNorm], 'model.num_heads': (2, 8)}, "
        "base='layer, 2', "
        "tune={'field': 'train.loss', 'values': ['cross_entropy', Focal]}",
    )
    assert list(sweep.arms) == ['layer, 2', 'layer, 8', f'{RMS}, 2', f'{RMS}, 8']
    assert sweep.tune.values == ('cross_entropy', FOCAL)
    losses = [str(run.config.train.loss) for run in sweep.trials[:2]]
    assert losses == ['cross_entropy', FOCAL]
    assert str(sweep.trials[1]) == f'layer, 2, {FOCAL}, seed 100'


def test_a_tuned_argument_of_an_object_is_replaced(tmp_path):
    sweep = load_with_classes(
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
        (
            "arms={}, factors={'model.norm': ['layer', Own]}",
            ["factors['model.norm']", 'Own'],
        ),
        (
            "tune={'field': 'model.norm', 'values': ['layer', Own]}",
            ['tune', 'Own'],
        ),
        (
            "tune={'field': 'train.steps.x', 'values': [1, 2]}",
            ["'base'", "'train.steps.x'"],
        ),
    ],
)
def test_invalid_values_are_refused_by_the_arm_and_field(tmp_path, changes, words):
    with pytest.raises(UserError) as error:
        load_with_classes(tmp_path, f'seeds=[0], contrasts=[], {changes}')
    assert all(word in str(error.value) for word in words), error.value


def test_runs_of_a_changed_sweep_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = planning.load(write_sweep(tmp_path)).runs[0]
    with directory.open_run(first.path, first.config.to_dict()):
        pass
    again = planning.load(write_sweep(tmp_path)).runs[0]
    assert directory.check_directory(again.path, again.config.to_dict()) == 'resumes'
    for overrides, message in (
        ({'train.steps': 40}, 'heads/base/seed=0: trained with fewer train.steps'),
        ({'model.d_ff': 8}, 'heads/base/seed=0 holds a run with a different config'),
    ):
        with pytest.raises(UserError, match=message):
            planning.load(write_sweep(tmp_path, overrides=overrides))


TUNE = {'field': 'model.d_ff', 'values': [8, 9]}
NO_ARMS = {'arms': ...}
VAL = {'measure': ['test loss', 'val loss']}
OF_TEST = {'overrides': {'evaluation.sets': 'test'}}


# Changes of the file, and words that the error has.
@pytest.mark.parametrize(
    ('changes', 'words'),
    [
        ({'question': 3}, ['question', 'str']),
        ({'question': ...}, ['question']),
        ({'qestion': 'a'}, ["'qestion'", 'question']),
        ({'config': 'configs/none.py'}, ['configs/none.py']),
        ({'arms': {}}, ['arms']),
        ({'arms': {'a': 3}}, ["arms['a']", 'dict']),
        ({'arms': {'base': {}, 3: {}}}, ['arms', '3']),
        ({'arms': {'base': {1: 2}}}, ["'base'", "'1'"]),
        ({'arms': {'base': {'model': {1: 2}}}}, ["'base'", 'model.1']),
        ({'arms': {'base': {'model.d_ff': None}}}, ['model.d_ff', 'None']),
        ({'arms': {'base': {'model.nun_heads': 2}}}, ["'base'", 'model.num_heads']),
        ({'arms': {'base': {'model.num_heads': 0}}}, ["'base'", 'model.num_heads']),
        (
            {'arms': {'base': {}, 'four': {'model.num_heads': 4}}},
            ['base, seed 0', 'four, seed 0'],
        ),
        (
            {'arms': {'base': {}, 'Base!': {'model.num_heads': 2}}},
            ['runs/heads/base/seed=0'],
        ),
        ({'base': 'bass'}, ["'bass'", "'base'"]),
        ({'overrides': {'train.seed': 3}}, ['train.seed', 'seeds']),
        ({'overrides': {None: 2}}, ["'None'"]),
        ({'published': {'bass': {}}}, ["'bass'"]),
        ({'published': {'base': {'blue': 1.0}}}, ["'blue'", 'bleu']),
        ({'published': {'base': {1: 2}}}, ["published['base']", '1']),
        ({'measure': ...}, ['measure']),
        ({'measure': 'test blue'}, ["measure='test blue'"]),
        ({'measure': 'bleu'}, ["measure='bleu'", 'set']),
        ({'measure': 'test '}, ["measure='test '"]),
        ({'measure': ['test bleu', 3]}, ['measure', '3']),
        ({'measure': []}, ['measure']),
        ({'measure': ['test loss'] * 2}, ['measure', 'different']),
        ({'measure': ['test loss', 'test blue']}, ["measure='test blue'"]),
        ({'further': ('test bleu',)}, ["'further'"]),
        (
            {'measure': ['test loss', 'long bleu']} | OF_TEST,
            ['evaluation.sets', "'long'"],
        ),
        (
            {'measure': 'tset bleu'} | OF_TEST,
            ["measure='tset bleu'", 'evaluation.sets'],
        ),
        ({'contrasts': [('base', 'heads')]}, ["'heads'"]),
        ({'contrasts': [('base', 'base')]}, ['contrasts', 'different']),
        ({'contrasts': ['base']}, ['contrasts', "'base'"]),
        ({'contrasts': [(['base'], 'rate')]}, ['contrasts', "'base'"]),
        ({'margin': -1.0}, ['margin', '-1.0']),
        ({'margin': '5'}, ['margin', "'5%'"]),
        ({'margin': '-5%'}, ['margin', "'-5%'"]),
        (
            {
                'margin': '5%',
                'measure': 'test external',
                'overrides': {'evaluation.metrics': 'external(command="true")'},
            },
            ['margin', 'external'],
        ),
        ({'seeds': []}, ['seeds']),
        ({'seeds': [-1]}, ['train.seed', '0']),
        ({'seeds': [1, 1]}, ['base, seed 1']),
        ({'seeds': 'until(half_width=1.0)'}, ['seeds', 'most']),
        ({'seeds': 'until(half_width=0, most=9)'}, ['half_width', '0']),
        ({'seeds': 'till(most=9)'}, ['seeds', 'until']),
        ({'tune': TUNE | {'values': [8]}}, ['tune', 'values', 'two']),
        ({'tune': TUNE | {'values': [8, 8]}}, ['tune', 'values', 'two']),
        ({'tune': TUNE | {'values': [8, None]}}, ['tune', 'values']),
        ({'tune': TUNE | {'seeds': [0, 7]}}, ['seeds']),
        ({'tune': TUNE | {'seeds': [[1]]}}, ['train.seed', '[1]']),
        ({'tune': TUNE | {'set': 'test'}}, ['tune', "set='test'"]),
        ({'tune': TUNE | {'seeds': [100]}} | VAL, ['tune', "set='val'"]),
        ({'tune': TUNE | {'budgte': 3}}, ['tune', "'budgte'"]),
        ({'tune': TUNE | {'field': 'model.dropuot'}}, ['model.dropout']),
        ({'equal': 'seconds'}, ['equal', 'tokens']),
        ({'equal': 'tokens', 'arms': {'base': {'train.steps': 3}}}, ['train.steps']),
        ({'factors': {'a': ['b', 'c']}}, ['factors', 'arms']),
        (NO_ARMS | {'factors': {'a': ['b']}}, ["factors['a']", 'two']),
        (NO_ARMS | {'factors': {'a': 3}}, ["factors['a']", 'dict']),
        (NO_ARMS | {'factors': {1: {'base': {}, 'b': {}}}}, ['factors', '1']),
        (
            NO_ARMS | {'factors': {'x': {'base': {}, None: {}}}},
            ["['x']", 'None'],
        ),
    ],
)
def test_invalid_sweeps_are_refused_by_the_field(tmp_path, changes, words):
    with pytest.raises(UserError) as error:
        planning.load(write_sweep(tmp_path, **changes))
    message = str(error.value)
    assert 'heads' in message and '\n' not in message  # the name of the sweep
    assert all(word in message for word in words), message


def test_the_config_of_a_run_is_not_taken_for_a_sweep(tmp_path):
    file = tmp_path / 'config.json'
    file.write_text('[][0]', encoding='utf-8')  # an error, if it is executed
    for path in ('configs/wmt_tiny.py', file):
        message = f'not a sweep file. Train it with .*run --config={path}.$'
        with pytest.raises(UserError, match=message):
            planning.load(path)


def test_a_command_of_a_stored_config_has_a_remedy_in_a_sweep(tmp_path):
    metric = 'external(command="no-such-program")'
    config = ExperimentConfig(evaluation=EvaluationConfig(metrics=metric))
    file = tmp_path / 'config.json'
    file.write_text(json.dumps(load.to_store(config.to_dict())), encoding='utf-8')
    fields = {'config': str(file), 'measure': 'test loss'}
    message = "runs the command .*, then set evaluation.metrics in the sweep's ov"
    with pytest.raises(UserError, match=message):
        planning.load(write_sweep(tmp_path, **fields))
    own = {'evaluation.metrics': metric}
    assert planning.load(write_sweep(tmp_path, overrides=own, **fields)).runs


def test_files_without_a_sweep_are_refused(tmp_path):
    file = tmp_path / 'heads.py'
    for text, message in (
        ('def get_config():\n    return 1 / 0\n', 'heads.py:2: ZeroDivisionError'),
        ('x = 3\n', 'no get_config.. that returns a dictionary'),
    ):
        file.write_text(text, encoding='utf-8')
        with pytest.raises(UserError, match=message):
            planning.load(file)
    with pytest.raises(UserError, match='file not found. Shipped configs: '):
        planning.load(tmp_path / 'none.py')
