"""Tests of user modules."""

import functools
import hashlib
import importlib
import json
import re
import sys
from types import SimpleNamespace

import jax
import numpy as np
import pages
import pytest
import small_runs
from ml_collections import ConfigDict

import experiments
from experiments import (
    check,
    evaluate,
    registries,
    storage,
    translate,
)
from experiments.command_line import flags
from experiments.config import load, schema, user_modules
from experiments.config.schema import ExperimentConfig
from experiments.errors import UserError, is_of_component
from experiments.evaluation import opened_run
from experiments.optimizers import optax_specs
from experiments.runtime import mesh
from experiments.training.teacher import open_teacher
from flaxformer_lite.attention.base import Attention
from flaxformer_lite.config import variants
from flaxformer_lite.config.spec import Component

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
def world(tmp_path, monkeypatch):
    """Changes to a folder as if a command started there, with nothing imported."""
    paths, finders = list(sys.path), list(sys.meta_path)

    def go(name):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, 'path', [str(folder), *paths])
        monkeypatch.setattr(sys, 'meta_path', list(finders))
        for module in [x for x in sys.modules if x.startswith('my_')]:
            monkeypatch.delitem(sys.modules, module)
        importlib.invalidate_caches()
        return folder

    return go


def train(path, *arguments, **changes):
    small_runs.train(path, *small_runs.flags(FIELDS, **changes), *arguments)


def command(monkeypatch, module, *arguments):
    monkeypatch.setattr(sys, 'argv', [module.__name__, *map(str, arguments)])
    module.main()


@pytest.mark.slow
def test_a_run_tells_whether_its_modules_have_changed_or_are_missing(
    world, monkeypatch, capsys, cache
):
    here = world('here')
    (here / 'my_parts.py').write_text(EXAMPLE)
    data = small_runs.source(small_runs.write_text(here, val=4))
    path = here / 'run'
    train(path, data=data)
    recorded = json.loads((path / 'environment.json').read_text())['modules']
    digest = hashlib.sha256(EXAMPLE.encode()).hexdigest()
    file = str(here / 'my_parts.py')
    assert recorded == {'my_parts': {'file': file, 'sha256': digest}}

    def answer():
        with open('in.en') as lines:
            monkeypatch.setattr(sys, 'stdin', lines)
            command(monkeypatch, translate, f'--workdir={path}')
        return capsys.readouterr()

    there = world('there')
    (there / 'in.en').write_text('Tom sleeps.\n')
    with pytest.raises(UserError, match=f'run: cannot import my_parts. Copy {file} to'):
        answer()
    (there / 'my_parts.py').write_text(EXAMPLE)
    capsys.readouterr()
    assert answer().err == ''
    world('there')
    (there / 'my_parts.py').write_text(f'{EXAMPLE}\n')
    changed = f'{there}/my_parts.py: changed since the run {path} started'
    assert answer().err == f'warning: {changed}\n'

    more = dict(data=data, train__steps=4)
    with pytest.raises(UserError, match=f'{changed}. Restore it, choose another'):
        train(path, **more)
    train(path, '--accept_changed_code', **more)
    assert 'resuming at step 2' in capsys.readouterr().out
    environment = json.loads((path / 'environment.json').read_text())
    assert environment['modules']['my_parts']['file'] == str(there / 'my_parts.py')
    assert environment['earlier'][0]['modules'] == recorded


@pytest.mark.parametrize(
    ('field', 'text'),
    [
        ('model.attention', '{}'),
        ('evaluation.metrics', '[bleu, {}]'),
        ('data', "mix(sources=['scan', '{}'])"),
        ('data', "mix(sources=['scan', 'mix(sources=[\"{}\"])'])"),
        ('optimizer.name', '{}'),
    ],
)
@pytest.mark.parametrize('package', [False, True])
@pytest.mark.parametrize('top', ['my_runs', 'contrib'])
def test_a_module_in_a_run_directory_is_never_imported(
    world, field, text, package, top
):
    here = world('here')
    config = ExperimentConfig().to_dict()
    section, _, key = field.rpartition('.')
    part = config[section] if section else config
    part[key] = text.format(f'{top}.near.mine.X')
    path = here / top / 'near'
    storage.write_json(path / 'config.json', load.to_store(config))
    (path / 'mine.py').write_text('raise AssertionError')
    if package:
        for folder in (path.parent, path):
            (folder / '__init__.py').write_text('')
    with pytest.raises(UserError, match=f'the package {top} contains the run'):
        user_modules.check_stored(path)
    with pytest.raises(UserError, match=f'{top}.near.mine is in the run directory'):
        user_modules.check_stored(path, trust_code=True)
    assert not any(name.startswith(top) for name in sys.modules)


@pytest.mark.parametrize('name', ['external', 'experiments.metrics.external.External'])
def test_a_stored_command_runs_only_with_trust(world, monkeypatch, name):
    file = world('here') / 'near' / 'config.json'
    metrics = f'[bleu, {name}(command="touch x")]'
    config = {'evaluation': {'metrics': metrics}}
    storage.write_json(file, load.to_store(config))
    message = "near/config.json: evaluation.metrics runs the command 'touch x'. Read it"
    with pytest.raises(UserError, match=message):
        flags.settings(str(file), {})
    flags.settings(str(file), {'evaluation.metrics': 'bleu'})
    opened = flags.settings(str(file), {}, trust_code=True).config
    run = SimpleNamespace(config=opened, data=None)
    monkeypatch.setattr(opened_run, 'OpenedRun', lambda *args: run)
    monkeypatch.setattr(evaluate, '_chosen', lambda *args: {})
    with pytest.raises(UserError, match=message):
        command(monkeypatch, evaluate, f'--workdir={file.parent}')


def test_a_package_that_holds_a_run_may_have_come_with_it(world):
    here = world('here')
    config = {'model': {'attention': 'my_sweep.near.X'}}
    path = here / 'my_sweep' / 'arm' / 'seed=1'
    storage.write_json(path / 'config.json', load.to_store(config))
    for name in ('__init__', 'near'):
        (here / 'my_sweep' / f'{name}.py').write_text('raise AssertionError')
    message = 'module my_sweep.near .*the package my_sweep contains the run'
    with pytest.raises(UserError, match=message):
        user_modules.check_stored(path)
    user_modules.check_stored(path, trust_code=True)
    # Of a teacher, the flag has no effect.
    with pytest.raises(UserError, match='then move it to the working directory.$'):
        open_teacher(str(path))
    link = here / 'my_sweep' / 'link'
    path.rename(here / 'elsewhere')
    link.symlink_to(here / 'elsewhere', target_is_directory=True)
    with pytest.raises(UserError, match=message):
        user_modules.check_stored(link)
    user_modules.check_stored(here / 'elsewhere')


def test_a_module_elsewhere_needs_no_trust(world):
    here = world('here')
    config = {'model': {'attention': '[my_parts.X, my_folder.near.X]'}}
    storage.write_json(here / 'runs/one/config.json', load.to_store(config))
    (here / 'my_parts.py').write_text('')
    (here / 'my_folder').mkdir()
    (here / 'my_folder/near.py').write_text('')
    user_modules.check_stored(here / 'runs/one')


@pytest.mark.parametrize('section', [[], ['model'], ['model', 'decoder']])
def test_a_field_of_a_stored_config_is_named_once(tmp_path, section):
    config = load.to_store(ExperimentConfig().to_dict())
    part = config
    for name in section:
        part = part[name]
    part['model.attention'] = 'softmax'
    storage.write_json(tmp_path / 'config.json', config)
    with pytest.raises(UserError, match="config.json: the key 'model.attention' has a"):
        user_modules.check_stored(tmp_path)


def test_optimizers_of_optax_are_no_user_modules():
    assert not user_modules.modules({'optimizer.name': 'contrib.muon'})
    assert user_modules.modules({'optimizer.name': 'contrib.near.X'}) == [
        'contrib.near'
    ]
    assert user_modules.modules({'data': 'contrib.X'}) == ['contrib']


@pytest.mark.parametrize(
    'name', ['antigravity.X', 'test.autotest.X', 'pip.__main__.X', '__main__.X']
)
def test_a_program_is_no_component_and_is_not_imported(name):
    loaded = set(sys.modules)
    with pytest.raises(ValueError, match=f'^{name} cannot be a component. Give the'):
        variants.LOSSES.find(name)
    named = {'antigravity', 'test.autotest', 'pip.__main__'}
    assert not named & (set(sys.modules) - loaded)


HOW_TO_TRAIN_AND_DECODE = """
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
    def choose(self, state, logits_BNV, total_BNV):
        may_come_BV = jnp.isfinite(total_BNV[:, 0])
        last = total_BNV.shape[2] - 1
        return last - jnp.argmax(may_come_BV[:, ::-1], 1, keepdims=True)
"""


def test_schedule_optimizer_and_strategy_are_ones_own(world, cache):
    here = world('here')
    (here / 'my_parts.py').write_text(HOW_TO_TRAIN_AND_DECODE)
    path = here / 'run'
    train(
        path,
        data=small_runs.source(small_runs.write_text(here, val=4)),
        model__attention='softmax',
        optimizer__schedule='my_parts.Falling(peak=0.02)',
        optimizer__name='my_parts.sign_descent(factor=0.5)',
        evaluation__decode='my_parts.Last',
        train__log_every=1,
        checkpoint__every=1,
    )
    rows = map(json.loads, (path / 'metrics.jsonl').read_text().splitlines())
    rates = [row['learning_rate'] for row in rows if row['kind'] == 'train']
    np.testing.assert_allclose(rates, [0.02, 0.01], rtol=1e-6)

    (world('there') / 'my_parts.py').write_text(HOW_TO_TRAIN_AND_DECODE)
    run = experiments.open_run(path)
    abstract = mesh.abstract_variables(run.model)
    before, after = (
        run.checkpoints.average([step], abstract).variables for step in (1, 2)
    )
    moved = jax.tree.map(lambda x, y: np.abs(np.asarray(y - x)).ravel(), before, after)
    moved = np.concatenate(jax.tree.leaves(moved))
    # What has no gradient stays, such as the embeddings of pieces that do not come.
    np.testing.assert_allclose(moved[moved > 0], 0.5 * 0.01, rtol=1e-3)
    assert (moved > 0).mean() > 0.5

    (ids,) = run.tokenizer.encode(['Tom sleeps.'])
    # The end token comes at the limit.
    pieces = len(ids) + FIELDS['evaluation.extra_length'] - 1
    last = run.model.vocab_size - 1
    assert run.translate(['Tom sleeps.']) == run.tokenizer.decode([[last] * pieces])


def test_the_modules_of_a_run_are_those_that_its_components_imported(world):
    folder = world('here') / 'my_package'
    folder.mkdir()
    for name in ('__init__', 'near', 'far'):
        (folder / f'{name}.py').write_text('')
    importlib.import_module('my_package.near')
    fields = dict.fromkeys(schema.fields()) | {
        'model.attention': '[softmax, my_package.near.C(x=1)]',
        'model.norm': 'flaxformer_lite.norms.rms.RMSNorm',
        'evaluation.metrics': '[bleu, my_metrics.Words]',
    }
    assert user_modules.packages(fields) == ['my_metrics', 'my_package']
    assert user_modules.imported(fields) == ['my_package', 'my_package.near']
    assert user_modules.file_of('my_package.far') == folder / 'far.py'
    assert user_modules.file_of('my_package.further') is None
    assert user_modules.file_of('..') is None


class Mine(Attention):
    width: int = 1


class Marked(Mine):
    __module__ = '__main__'


def test_a_class_in_a_config_is_stored_by_its_name():
    model = {'attention': Mine, 'decoder': {'attention': Mine(width=3)}}
    stored = load.from_config_dict(ConfigDict({'model': model})).model
    assert str(stored.attention) == f'{__name__}.Mine'
    assert str(stored.decoder.attention) == f'{__name__}.Mine(width=3)'
    assert variants.find(stored, 'decoder.attention') is Mine
    with pytest.raises(UserError, match='^model.attention: .__main__.Marked. cannot'):
        load.from_config_dict(ConfigDict({'model': {'attention': Marked}}))


@pytest.mark.parametrize(
    ('code', 'message'),
    [
        ('return jnp.ones(2) + jnp.ones(3)', 'ncompatible shapes'),
        ('raise ValueError("of mine")', 'of mine'),
    ],
)
def test_what_a_part_raises_at_work_keeps_its_traceback(code, message, world):
    here = world('here')
    (here / 'my_parts.py').write_text(
        EXAMPLE.split('        square')[0] + ' ' * 8 + code
    )
    data = small_runs.source(small_runs.write_text(here, val=4))
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        train(here / 'run', data=data)
    assert caught.traceback[-1].path == here / 'my_parts.py' or message != 'of mine'
    assert not (here / 'run').exists()


def test_an_error_of_a_module_keeps_its_traceback(world):
    here = world('here')
    (here / 'my_parts.py').write_text("int('of mine')\n")
    data = small_runs.source(small_runs.write_text(here, val=4))
    with pytest.raises(ImportError, match='^my_parts cannot be imported') as caught:
        train(here / 'run', data=data)
    assert "int() with base 10: 'of mine'" in str(caught.value.__cause__)


COMPONENT = """
import dataclasses

from experiments.data.filters.base import Filter
from experiments.data.objectives.base import Objective
from experiments.data.sources.base import Source
from experiments.data.tokenizers.characters import Characters
from experiments.metrics.base import Metric
from flaxformer_lite.init.base import Init
from flaxformer_lite.norms.base import Norm
from flaxformer_lite.training.schedules.base import Schedule


@dataclasses.dataclass(frozen=True)
class Component({base}):
    def {method}:
        {code}
"""


def component(folder, base, method, code):
    text = COMPONENT.format(base=base, method=method, code=code)
    if base in ('Norm', 'Schedule', 'Objective'):  # they make dataclasses of their own
        text = text.replace('@dataclasses.dataclass(frozen=True)\n', '')
    (folder / 'my_parts.py').write_text(text)
    return 'my_parts.Component'


@pytest.mark.parametrize(
    ('base', 'method', 'code'),
    [
        ('Source', 'train(self)', 'pass'),
        ('Source', 'train(self)', 'return 3'),
        ('Characters', 'encode(self, texts)', 'pass'),
        ('Characters', 'encode(self, texts)', 'return [None] * len(texts)'),
        ('Objective', 'example(self, row, rng)', 'pass'),
    ],
)
def test_check_names_a_component_whose_method_returns_a_wrong_type(
    base, method, code, world, monkeypatch
):
    name = component(world('here'), base, method, code)
    monkeypatch.setattr(sys, 'argv', ['check', name])
    message = f'^{name}: a method returned a wrong type \\(.* Follow the'
    with pytest.raises(UserError, match=message):
        check.main()


def test_an_optimizer_that_is_none_is_one_line(world):
    (world('here') / 'my_parts.py').write_text('def sgd(learning_rate):\n    pass\n')
    message = '^optimizer.name: my_parts.sgd returned None. Return an optax'
    with pytest.raises(UserError, match=message):
        optax_specs.resolve(Component.of('my_parts.sgd'))


@pytest.mark.parametrize(
    ('code', 'error'),
    [
        ('raise RuntimeError("of mine")', 'RuntimeError: of mine'),
        ('raise ValueError("of mine")', 'ValueError: of mine'),
        ('raise KeyError("x")', "KeyError: 'x'"),
        ('raise SystemExit(3)', 'SystemExit: 3'),
    ],
)
def test_a_command_names_the_component_above_its_traceback(code, error, world, capsys):
    here = world('here')
    name = component(here, 'Source', 'train(self)', code)
    line = (here / 'my_parts.py').read_text().splitlines().index(f'        {code}') + 1
    with pytest.raises(SystemExit) as exit:
        flags.main(registries.SOURCES.make(name).train)
    assert exit.value.code == 1
    assert capsys.readouterr().err == (
        f'error: my_parts.Component.train raised {error}\n'
        'Traceback (most recent call last):\n'
        f'  File "{here}/my_parts.py", line {line}, in train\n'
        f'    {code}\n'
        f'{error}\n'
    )


@pytest.mark.parametrize(
    ('code', 'error'),
    [
        ('raise RuntimeError("of mine")', 'RuntimeError: of mine'),
        ('raise SystemExit(3)', 'SystemExit: 3'),
        ('raise BaseException', 'BaseException'),
        ('def x(:', r'SyntaxError: invalid syntax \(my_parts.py, line 1\)'),
    ],
)
def test_a_command_names_a_module_that_fails_above_its_traceback(
    code, error, world, capsys
):
    (world('here') / 'my_parts.py').write_text(f'{code}\n')
    with pytest.raises(SystemExit) as exit:
        flags.main(functools.partial(registries.SOURCES.make, 'my_parts.Component'))
    assert exit.value.code == 1
    first, *others = capsys.readouterr().err.splitlines()
    assert re.fullmatch(f'error: my_parts cannot be imported: {error}', first)
    assert others[0] == 'Traceback (most recent call last):' or 'Syntax' in error
    assert 'my_parts.py", line 1' in others[-3] + others[-2] + others[-4:][0]
    assert not any('flaxformer_lite' in x for x in others)


@pytest.mark.parametrize('base', ['Hook', 'object'])
def test_an_error_belongs_to_a_package_that_defines_components(base, world):
    name = f'my_{base.lower()}'
    (world('here') / f'{name}.py').write_text(
        'from experiments.hooks.base import Hook\n'
        f'class Mine({base}):\n    def fail(self):\n        raise ValueError\n'
    )
    mine = importlib.import_module(name).Mine()
    with pytest.raises(ValueError) as raised:
        mine.fail()
    # Without the frame of this module, which defines components, too.
    error = raised.value.with_traceback(raised.value.__traceback__.tb_next)
    assert is_of_component(error) is (base == 'Hook')


def test_what_a_part_refuses_is_one_line(world):
    here = world('here')
    refusing = "    def __post_init__(self):\n        raise ValueError('no more')\n"
    (here / 'my_parts.py').write_text(EXAMPLE + refusing)
    data = small_runs.source(small_runs.write_text(here, val=4))
    with pytest.raises(UserError, match='^model.attention: no more$'):
        train(here / 'run', data=data)


def test_the_page_has_a_row_for_each_field_that_names_a_part():
    rows = dict(
        re.findall(
            r'^\| `([\w.]+)` \| \[`(\S+)/`\].* \|$',
            pages.text('docs/how_to/extend.md'),
            re.M,
        )
    )
    plain = {
        field
        for field in schema.part_fields()
        if not field.startswith(('model.decoder.', 'model.cross.'))
    }
    assert set(rows) == plain - {'optimizer.name'}  # optax's; it has no folder
    folders = {f'model.{kind}': folder for kind, folder in variants.FOLDERS.items()}
    for field, folder in (folders | registries.FOLDERS).items():
        assert rows[field] == folder.package.replace('.', '/')
