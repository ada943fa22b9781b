"""Tests of user modules."""

import functools
import hashlib
import importlib
import json
import re
import sys
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pages
import pytest
import small_runs
from ml_collections import ConfigDict

from experiments import check, evaluate, registries, storage
from experiments.command_line import flags
from experiments.config import components, load, schema, user_modules
from experiments.config.schema import ExperimentConfig
from experiments.errors import UserError
from experiments.evaluation import opened_run
from experiments.runs import environment
from experiments.training.teacher import open_teacher
from flaxformer_lite.attention.base import Attention
from flaxformer_lite.config import variants

EXAMPLE = pages.files('docs/tutorials/own_component.md')['my_parts.py']
FIELDS = small_runs.FIELDS | {
    'train.steps': 2,
    'optimizer.schedule': 'noam(warmup=4)',
    'evaluation.sets': 'val',
    'evaluation.decode': 'greedy',
    'evaluation.average': 1,
    'model.attention': 'my_parts.Euclidean',
}


@pytest.fixture
def start_in(tmp_path, monkeypatch):
    """Returns a function that enters a folder like a new command: nothing imported."""
    paths, finders = list(sys.path), list(sys.meta_path)

    def enter(name):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, 'path', [str(folder), *paths])
        monkeypatch.setattr(sys, 'meta_path', list(finders))
        for module in [x for x in sys.modules if x.startswith('my_')]:
            monkeypatch.delitem(sys.modules, module)
        importlib.invalidate_caches()
        return folder

    return enter


@pytest.fixture
def here(start_in):
    return start_in('here')


def store_config(path, **fields):
    """Writes a config; names have __ for the dot."""
    config = ExperimentConfig().to_dict()
    for name, value in fields.items():
        section, _, key = name.rpartition('__')
        (config[section] if section else config)[key] = value
    storage.write_json(path / 'config.json', load.to_store(config))


def train(path, *arguments, **changes):
    small_runs.train(path, *small_runs.flags(FIELDS, **changes), *arguments)


# Nothing in a run's directory is executed.


@pytest.mark.parametrize(
    ('field', 'text'),
    [
        ('model__attention', '{}'),
        ('evaluation__metrics', '[bleu, {}]'),
        ('data', "mix(sources=['scan', '{}'])"),
        ('data', "mix(sources=['scan', 'mix(sources=[\"{}\"])'])"),
        ('optimizer__name', '{}'),
    ],
)
@pytest.mark.parametrize('is_package', [False, True], ids=['folder', 'package'])
@pytest.mark.parametrize('top', ['my_runs', 'contrib'])
def test_module_in_a_run_directory_is_never_imported(
    here, field, text, is_package, top
):
    path = here / top / 'near'
    store_config(path, **{field: text.format(f'{top}.near.mine.X')})
    (path / 'mine.py').write_text('raise AssertionError')
    if is_package:
        for folder in (path.parent, path):
            (folder / '__init__.py').write_text('')
    with pytest.raises(UserError, match=f'the package {top} contains the run'):
        user_modules.check_stored(path)
    with pytest.raises(UserError, match=f'{top}.near.mine is in the run directory'):
        user_modules.check_stored(path, trust_code=True)
    assert not any(name.startswith(top) for name in sys.modules)


def test_package_that_contains_the_run_needs_trust(here):
    path = here / 'my_sweep' / 'arm' / 'seed=1'
    store_config(path, model__attention='my_sweep.near.X')
    for name in ('__init__', 'near'):
        (here / 'my_sweep' / f'{name}.py').write_text('raise AssertionError')
    message = 'module my_sweep.near .*the package my_sweep contains the run'
    with pytest.raises(UserError, match=message):
        user_modules.check_stored(path)
    user_modules.check_stored(path, trust_code=True)
    # The flag has no effect on a teacher.
    with pytest.raises(UserError, match='then move it to the working directory.$'):
        open_teacher(str(path))
    link = here / 'my_sweep' / 'link'
    path.rename(here / 'elsewhere')
    link.symlink_to(here / 'elsewhere', target_is_directory=True)
    with pytest.raises(UserError, match=message):
        user_modules.check_stored(link)
    user_modules.check_stored(here / 'elsewhere')


def test_module_outside_the_run_needs_no_trust(here):
    store_config(here / 'runs/one', model__attention='[my_parts.X, my_folder.near.X]')
    (here / 'my_parts.py').write_text('')
    (here / 'my_folder').mkdir()
    (here / 'my_folder/near.py').write_text('')
    user_modules.check_stored(here / 'runs/one')


@pytest.mark.parametrize('name', ['external', 'experiments.metrics.external.External'])
def test_command_in_a_stored_config_needs_trust(here, monkeypatch, command, name):
    path = here / 'near'
    store_config(path, evaluation__metrics=f'[bleu, {name}(command="touch x")]')
    file = str(path / 'config.json')
    message = "near/config.json: evaluation.metrics runs the command 'touch x'"
    with pytest.raises(UserError, match=message):
        flags.settings(file, {})
    flags.settings(file, {'evaluation.metrics': 'bleu'})
    opened = flags.settings(file, {}, trust_code=True).config
    run = SimpleNamespace(config=opened, data=None)
    monkeypatch.setattr(opened_run, 'OpenedRun', lambda *args: run)
    monkeypatch.setattr(evaluate, '_chosen', lambda *args: {})
    with pytest.raises(UserError, match=message):
        command(evaluate, f'--workdir={path}')


def test_stored_config_must_not_name_a_field_twice(tmp_path):
    config = load.to_store(ExperimentConfig().to_dict())
    config['model']['model.attention'] = 'softmax'
    storage.write_json(tmp_path / 'config.json', config)
    with pytest.raises(UserError, match="config.json: the key 'model.attention'"):
        user_modules.check_stored(tmp_path)


@pytest.mark.parametrize(
    'name', ['antigravity.X', 'test.autotest.X', 'pip.__main__.X', '__main__.X']
)
def test_standard_library_and_programs_are_rejected_without_import(name):
    loaded = set(sys.modules)
    with pytest.raises(ValueError, match=f'^{name} cannot be a component'):
        variants.LOSSES.find(name)
    programs = {'antigravity', 'test.autotest', 'pip.__main__'}
    assert not programs & (set(sys.modules) - loaded)


# An importable component works.

COMPONENTS = """
import jax
import jax.numpy as jnp
import optax

from flaxformer_lite.decoding.strategies.base import Strategy
from flaxformer_lite.training.schedules.base import Schedule


class Falling(Schedule):
    steps: int
    peak: float = 1.0

    def __call__(self, count):
        return self.peak * (1 - count / self.steps)


def sign_descent(learning_rate, factor):
    return optax.chain(
        optax.stateless(lambda updates, params: jax.tree.map(jnp.sign, updates)),
        optax.scale(factor),
        optax.scale_by_learning_rate(learning_rate),
    )


class Last(Strategy):
    pass
"""


def test_schedule_optimizer_and_strategy_may_be_user_defined(here):
    (here / 'my_parts.py').write_text(COMPONENTS)
    fields = FIELDS | {
        'model.attention': 'softmax',
        'optimizer.schedule': 'my_parts.Falling(peak=0.02)',
        'optimizer.name': 'my_parts.sign_descent(factor=0.5)',
        'evaluation.decode': 'my_parts.Last',
    }
    built = components.build(flags.settings('wmt_small', fields).config)
    assert type(built.decoding.strategy).__name__ == 'Last'
    update, schedule = built.optimizer.build(built.model, steps=2)
    np.testing.assert_allclose([schedule(0), schedule(1)], [0.02, 0.01], rtol=1e-6)
    params = {'kernel': jnp.ones(2)}
    gradient = {'kernel': jnp.array([3.0, -2.0])}
    updates, _ = update.update(gradient, update.init(params), params)
    np.testing.assert_allclose(updates['kernel'], [-0.01, 0.01], rtol=1e-6)


def test_modules_of_a_run_are_those_that_its_components_imported(here):
    folder = here / 'my_package'
    folder.mkdir()
    for name in ('__init__', 'near', 'far'):
        (folder / f'{name}.py').write_text('')
    importlib.import_module('my_package.near')
    fields = dict.fromkeys(schema.fields()) | {
        'model.attention': '[softmax, my_package.near.C(x=1)]',
        'model.norm': 'flaxformer_lite.norms.rms.RMSNorm',
        'evaluation.metrics': '[bleu, my_metrics.Words]',
        'optimizer.name': 'contrib.muon',  # of optax
    }
    assert user_modules.packages(fields) == ['my_metrics', 'my_package']
    assert user_modules.imported(fields) == ['my_package', 'my_package.near']
    assert user_modules.modules({'data': 'contrib.near.X'}) == ['contrib.near']
    assert user_modules.file_of('my_package.far') == folder / 'far.py'
    for missing in ('my_package.further', '..'):
        assert user_modules.file_of(missing) is None


class UserAttention(Attention):
    width: int = 1


class InMain(UserAttention):
    __module__ = '__main__'


def test_class_in_a_config_is_stored_by_its_name():
    decoder = {'attention': UserAttention(width=3)}
    model = {'attention': UserAttention, 'decoder': decoder}
    stored = load.from_config_dict(ConfigDict({'model': model})).model
    assert str(stored.attention) == f'{__name__}.UserAttention'
    assert str(stored.decoder.attention) == f'{__name__}.UserAttention(width=3)'
    assert variants.find(stored, 'decoder.attention') is UserAttention
    with pytest.raises(UserError, match='^model.attention: .__main__.InMain. cannot'):
        load.from_config_dict(ConfigDict({'model': {'attention': InMain}}))


# A changed or missing module is noticed.


def test_changed_and_missing_modules_of_a_run_are_noticed(start_in, tmp_path):
    file = start_in('here') / 'my_parts.py'
    file.write_text(EXAMPLE)
    environment.save(tmp_path / 'run', [], ['my_parts'])
    recorded = json.loads((tmp_path / 'run/environment.json').read_text())['modules']
    digest = hashlib.sha256(EXAMPLE.encode()).hexdigest()
    assert recorded == {'my_parts': {'file': str(file), 'sha256': digest}}
    there, warnings = start_in('there'), []
    with pytest.raises(UserError, match=f'cannot import my_parts. Copy {file} to'):
        environment.check_modules(tmp_path / 'run')
    (there / 'my_parts.py').write_text(EXAMPLE)
    environment.check_modules(tmp_path / 'run', warnings.append, accept_changed=False)
    assert not warnings
    start_in('there')
    (there / 'my_parts.py').write_text(f'{EXAMPLE}\n')
    with pytest.raises(UserError, match=f'{there}/my_parts.py: changed since the run'):
        environment.check_modules(tmp_path / 'run', accept_changed=False)
    environment.check_modules(tmp_path / 'run', warnings.append)
    (warning,) = warnings
    assert warning.startswith(f'{there}/my_parts.py: changed since the run')


@pytest.mark.slow
def test_run_with_a_changed_module_resumes_only_if_accepted(here, start_in, cache):
    (here / 'my_parts.py').write_text(EXAMPLE)
    data = small_runs.source(small_runs.write_text(here, val=4))
    path = here / 'run'
    train(path, data=data)
    recorded = storage.read_json(path / 'environment.json')['modules']
    there = start_in('there')
    (there / 'my_parts.py').write_text(f'{EXAMPLE}\n')
    more = dict(data=data, train__steps=4)
    with pytest.raises(UserError, match='my_parts.py: changed since the run'):
        train(path, **more)
    train(path, '--accept_changed_code', **more)
    found = storage.read_json(path / 'environment.json')
    assert found['modules']['my_parts']['file'] == str(there / 'my_parts.py')
    assert found['earlier'][0]['modules'] == recorded


# Errors of user code name the component and keep its traceback.

SOURCE = """
from experiments.data.sources.base import Source

class Mine(Source):
    def train(self):
        {}
"""


def test_error_of_a_component_keeps_its_traceback(here):
    code = EXAMPLE.split('        square')[0] + '        raise ValueError("mine")'
    (here / 'my_parts.py').write_text(code)
    data = small_runs.source(small_runs.write_text(here, val=4))
    with pytest.raises(ValueError, match='mine') as caught:
        train(here / 'run', data=data)
    assert caught.traceback[-1].path == here / 'my_parts.py'
    assert not (here / 'run').exists()


def test_value_that_a_component_refuses_is_a_user_error(here, command):
    refusing = "    def __post_init__(self):\n        raise ValueError('no more')\n"
    (here / 'my_parts.py').write_text(EXAMPLE + refusing)
    with pytest.raises(UserError, match='^model.attention: no more$'):
        components.build(flags.settings('wmt_small', FIELDS).config)
    (here / 'my_source.py').write_text(SOURCE.format('return 3'))
    with pytest.raises(UserError, match='^my_source.Mine: a method returned a wrong'):
        command(check, 'my_source.Mine')


@pytest.mark.parametrize(
    ('code', 'error'),
    [
        (SOURCE.format('raise KeyError(3)'), 'my_parts.Mine.train raised KeyError: 3'),
        (SOURCE.format('raise SystemExit'), 'my_parts.Mine.train raised SystemExit'),
        ('raise BaseException', 'my_parts cannot be imported: BaseException'),
        ('def x(:', 'my_parts cannot be imported: SyntaxError: invalid syntax .*'),
    ],
    ids=['error', 'exit', 'import', 'syntax'],
)
def test_command_names_failing_user_code_above_its_traceback(code, error, here, capsys):
    (here / 'my_parts.py').write_text(code)
    with pytest.raises(SystemExit) as exit:
        main = functools.partial(registries.SOURCES.make, 'my_parts.Mine')
        flags.main(main().train if 'train' in error else main)
    assert exit.value.code == 1
    first, *trace = capsys.readouterr().err.splitlines()
    assert re.fullmatch(f'error: {error}', first)
    files = re.findall('File "(.*?)", line', '\n'.join(trace))
    assert files == [str(here / 'my_parts.py')]
