"""Tests of messages for broken installations."""

import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

import flaxformer_lite
from experiments import __main__ as overview
from experiments import list as listing
from experiments.command_line import command
from experiments.errors import UserError, user_errors
from experiments.metrics.bleu import Bleu
from experiments.runtime import accelerators
from flaxformer_lite.config import spec

ROOT = Path(__file__).parents[3]
JAXLIB = '0.9.1'


def start(path, *command):
    """Runs Python with the packages of a folder first; returns its output."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=os.environ | {'PYTHONPATH': f'{path}:{ROOT}'},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout, done.stderr


def install(folder, name, version):
    info = folder / f'{name.replace("-", "_")}-{version}.dist-info'
    info.mkdir()
    (info / 'METADATA').write_text(f'Name: {name}\nVersion: {version}\n', 'utf-8')


@pytest.mark.parametrize('version', ['0.6.2', '0.7.1', '0.7.2', '0.12.0.1', '1.0'])
def test_an_old_jax_is_one_line_at_import(version, tmp_path):
    install(tmp_path, 'jax', version)
    code = 'import flaxformer_lite.shapes'
    status, _, error = start(tmp_path, '-c', code)
    if version in ('0.6.2', '0.7.1'):
        message = (
            f'jax: version {version} is too old. '
            "Install a newer one: pip install -U 'jax>=0.7.2' flax."
        )
        assert error.splitlines()[-1] == f'ImportError: {message}'
        command = '-m', 'experiments.run', '--config=configs/wmt_tiny.py'
        assert start(tmp_path, *command) == (2, '', f'error: {message}\n')
    else:
        assert (status, error) == (0, '')


WITHOUT = """
import runpy, sys

class Finder:
    def __init__(self, missing, finders):
        self.missing, self.finders = missing, finders

    def find_spec(self, name, *more):
        if name.partition('.')[0] == self.missing:
            return None
        found = (finder.find_spec(name, *more) for finder in self.finders)
        return next(filter(None, found), None)

    def find_distributions(self, *context):
        for finder in self.finders:
            if hasattr(finder, 'find_distributions'):
                yield from finder.find_distributions(*context)

sys.meta_path[:] = [Finder(sys.argv[1], [*sys.meta_path])]
sys.argv = sys.argv[2:]
runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)
"""
COMMANDS = ['experiments', *(name.split()[-1] for name, _ in overview.summaries())]


@pytest.mark.parametrize(
    ('package', 'name'),
    [
        *(('ml_collections', name) for name in COMMANDS),
        ('absl', 'experiments'),
        ('numpy', 'experiments.run'),
        ('yaml', 'experiments'),  # which ml_collections needs
    ],
)
def test_a_missing_package_is_one_line_with_its_extra(package, name, tmp_path):
    found = start(tmp_path, '-c', WITHOUT, package, name)
    message = (
        f'error: {name} needs {package}, which {sys.executable} lacks: '
        'pip install -e ".[experiments]"\n'
    )
    assert found == (2, '', message)


def test_a_package_that_a_command_needs_later_is_one_line(monkeypatch, capsys):
    for module, extra in {
        'orbax.checkpoint': 'experiments',
        'google.protobuf': 'pretrained',
        'vl_convert': 'report',
    }.items():

        def main(module=module):
            raise ModuleNotFoundError(f'No module named {module!r}', name=module)

        monkeypatch.setattr(listing, 'main', main)
        with monkeypatch.context() as patch:
            patch.setattr(command.stopping, 'watch', lambda: None)
            patch.setattr(command.gc, 'set_threshold', lambda *_: None)
            patch.setattr(command, 'silence_orbax', lambda: None)
            patch.setattr(sys, 'excepthook', None)
            patch.setattr(command, 'importlib', SimpleNamespace(import_module=_of))
            with pytest.raises(SystemExit, match='2'):
                command.run('experiments.list')
        assert capsys.readouterr().err == (
            f'error: experiments.list needs {module}, which {sys.executable} lacks: '
            f'pip install -e ".[{extra}]"\n'
        )


def test_a_missing_package_reaches_the_command(monkeypatch):
    error = ModuleNotFoundError("No module named 'sacrebleu'", name='sacrebleu')

    def fail(*_):
        raise error

    with pytest.raises(ModuleNotFoundError), user_errors():
        fail()
    with pytest.raises(UserError, match='^x: install it'), user_errors('x: '):
        raise ModuleNotFoundError('install it')  # names its extra
    monkeypatch.setattr(Bleu, 'make_scorer', fail)
    with pytest.raises(ModuleNotFoundError):
        Bleu().check_installed()


def _of(name):
    assert name == listing.__name__
    return listing


def test_every_package_of_the_extras_has_an_extra():
    """The extras that commands need; the modules of a few have other names."""
    names = {
        'absl-py': 'absl',
        'orbax-checkpoint': 'orbax',
        'protobuf': 'google',
        'vl-convert-python': 'vl_convert',
    }
    project = tomllib.loads((ROOT / 'pyproject.toml').read_text('utf-8'))['project']
    extras = project['optional-dependencies']
    libraries = {'test', 'notebooks', 'docs', 'dev', 'bench', 'cuda12', 'cuda13', 'tpu'}
    found = {}
    for extra in extras.keys() - libraries:
        for requirement in extras[extra]:
            package = re.match(r'[\w-]+', requirement)[0]
            module = names.get(package, package.replace('-', '_'))
            found.setdefault(module, set()).add(extra)
    del found['flaxformer_lite']
    for module, of_module in found.items():
        assert command.EXTRAS.get(module) in of_module, module
    for requirement in project['dependencies']:
        assert command.EXTRAS[re.match(r'\w+', requirement)[0]] == 'experiments'


def test_the_oldest_jax_is_that_of_pyproject():
    project = tomllib.loads((ROOT / 'pyproject.toml').read_text('utf-8'))['project']
    floor = f'>={flaxformer_lite.OLDEST_JAX}'
    extras = project['optional-dependencies']
    found = [*project['dependencies'], *extras['tpu']]
    found += [*extras['cuda12'], *extras['cuda13']]
    wanted = ['jax', 'jax[tpu]', 'jax[cuda12]', 'jax[cuda13]']
    assert [x for x in found if x.startswith('jax')] == [x + floor for x in wanted]


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Simulates a machine with an NVIDIA GPU, a plugin and a driver."""

    def make(driver='580.82.07', devices=('nvidia0', 'nvidiactl'), **plugins):
        versions = {f'jax-{name}-plugin': x for name, x in plugins.items()}
        versions['jaxlib'] = JAXLIB

        def version(name):
            if name not in versions:
                raise metadata.PackageNotFoundError(name)
            return versions[name]

        text = f'NVRM version: NVIDIA UNIX x86_64 Kernel Module  {driver}  Thu\n'
        (tmp_path / 'version').write_text(text, 'utf-8')
        (tmp_path / 'dev').mkdir()
        for name in devices:
            (tmp_path / 'dev' / name).touch()
        monkeypatch.setattr(accelerators.metadata, 'version', version)
        monkeypatch.setattr(accelerators, '_DRIVER', tmp_path / 'version')
        monkeypatch.setattr(accelerators, '_DEVICES', tmp_path / 'dev')

    before = jax.config.jax_platforms
    jax.config.update('jax_platforms', None)
    monkeypatch.setattr(jax, 'default_backend', lambda: 'cpu')
    yield make
    jax.config.update('jax_platforms', before)


def test_nothing_is_said_where_jax_uses_the_gpu_or_there_is_none(machine, monkeypatch):
    machine(devices=('accel0', 'nvidiactl'))
    assert accelerators.unused_gpu() is None
    (accelerators._DEVICES / 'nvidia0').touch()
    assert accelerators.unused_gpu()
    monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')
    assert accelerators.unused_gpu() is None


def test_a_choice_of_the_cpu_is_not_questioned(machine):
    machine()
    jax.config.update('jax_platforms', 'cpu')
    assert accelerators.unused_gpu() is None


@pytest.mark.parametrize(
    ('driver', 'plugins', 'message'),
    [
        ('580.82.07', {}, 'Install one: pip install -U "jax[cuda13]==0.9.1"'),
        ('550.54.15', {}, 'Install one: pip install -U "jax[cuda12]==0.9.1"'),
        (
            '580.82.07',
            {'cuda12': '0.7.2'},
            'the cuda12 plugin has version 0.7.2, jaxlib 0.9.1. '
            'Install equal versions: pip install -U "jax[cuda12]==0.9.1"',
        ),
        ('580.82.07', {'cuda12': JAXLIB}, 'the cuda12 plugin cannot use the GPU'),
    ],
)
def test_a_gpu_that_jax_does_not_use_is_a_warning(
    driver, plugins, message, machine, capsys
):
    machine(driver, **plugins)
    accelerators.check()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith('warning: jax: ')
    assert message in line


@pytest.mark.parametrize(
    ('driver', 'cuda12', 'cuda13', 'removed'),
    [
        ('580.82.07', '0.7.2', JAXLIB, 'cuda12'),
        ('580.82.07', JAXLIB, '0.12.0', 'cuda13'),
        ('580.82.07', JAXLIB, JAXLIB, 'cuda12'),
        ('550.54.15', JAXLIB, JAXLIB, 'cuda13'),
        ('550.54.15', '0.7.2', '0.7.2', 'cuda13'),
    ],
)
def test_two_plugins_are_refused_with_the_one_to_uninstall(
    driver, cuda12, cuda13, removed, machine
):
    machine(driver, cuda12=cuda12, cuda13=cuda13)
    uninstall = f'pip uninstall jax-{removed}-plugin jax-{removed}-pjrt'
    with pytest.raises(UserError, match=f'both installed. Uninstall one: {uninstall}'):
        accelerators.check()


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (['convert'], 'error: moved; run python -m flaxformer_checkpoints.convert\n'),
        (['demo'], 'error: moved; run python -m flaxformer_explain.demo\n'),
        (['explain'], 'error: moved; run python -m flaxformer_explain.explain\n'),
        (
            ['translate', '--workdir=x', '--html=y'],
            'error: --html: moved; run python -m flaxformer_explain.page\n',
        ),
    ],
)
def test_an_old_command_prints_the_new_one(arguments, message, tmp_path):
    command, *flags = arguments
    found = start(tmp_path, '-m', f'experiments.{command}', *flags)
    assert found == (2, '', message)


def test_an_installation_without_the_packages_says_how_to_install_again(tmp_path):
    code = (
        'from importlib import metadata\n'
        'metadata.entry_points = lambda **group: ()\n'
        'from experiments.command_line import command\n'
        'command.run("experiments.list")\n'
    )
    message = (
        'error: the packages of this checkout are not registered: run '
        'pip install -e ".[experiments]"\n'
    )
    assert start(tmp_path, '-c', code) == (2, '', message)


def test_a_broken_package_does_not_hide_the_other_commands(monkeypatch):
    broken = {
        name: metadata.EntryPoint(name, value, overview.COMMANDS)
        for name, value in (('a', 'no_such.command'), ('b', '!'), ('c', 'sys'))
    }
    known = spec.entry_points(overview.COMMANDS)
    expected = overview.summaries()
    monkeypatch.setattr(spec, 'entry_points', lambda group: broken | known)
    assert overview.summaries() == expected
