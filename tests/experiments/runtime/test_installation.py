"""Tests of messages for broken installations."""

import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from types import SimpleNamespace

import jax
import pages
import pytest

import flaxformer_lite
from experiments import __main__ as overview
from experiments import list as listing
from experiments.command_line import command
from experiments.errors import UserError, user_errors
from experiments.metrics.bleu import Bleu
from experiments.runtime import accelerators
from flaxformer_lite.config import spec

JAXLIB = '0.9.1'
INSTALL = 'pip install -e ".[experiments]"'


def run_python(path, *command):
    """Runs Python with a folder first on its path; returns status, output and error."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=pages.ROOT,
        env=os.environ | {'PYTHONPATH': f'{path}:{pages.ROOT}'},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout, done.stderr


def install_jax(folder, version):
    info = folder / f'jax-{version}.dist-info'
    info.mkdir()
    (info / 'METADATA').write_text(f'Name: jax\nVersion: {version}\n', 'utf-8')


@pytest.mark.ci
@pytest.mark.parametrize(
    'version', ['0.7.2', '1.0', pytest.param('0.12.0.1', marks=pytest.mark.slow)]
)
def test_supported_jax_is_imported(version, tmp_path):
    install_jax(tmp_path, version)
    found = run_python(tmp_path, '-c', 'import flaxformer_lite.shapes')
    assert found == (0, '', '')


def test_old_jax_is_reported_at_import(tmp_path):
    install_jax(tmp_path, '0.7.1')
    message = (
        "jax: version 0.7.1 is too old. Install a newer one: pip install -U 'jax>=0.7.2"
        "' flax."
    )
    _, _, error = run_python(tmp_path, '-c', 'import flaxformer_lite.shapes')
    assert error.splitlines()[-1] == f'ImportError: {message}'
    command = '-m', 'experiments.run', '--config=configs/wmt_tiny.py'
    assert run_python(tmp_path, *command) == (2, '', f'error: {message}\n')


def test_oldest_jax_equals_that_of_pyproject():
    project = tomllib.loads((pages.ROOT / 'pyproject.toml').read_text())['project']
    extras = project['optional-dependencies']
    found = [*project['dependencies'], *extras['tpu']]
    found += [*extras['cuda12'], *extras['cuda13']]
    names = ['jax', 'jax[tpu]', 'jax[cuda12]', 'jax[cuda13]']
    expected = [f'{name}>={flaxformer_lite.OLDEST_JAX}' for name in names]
    assert [x for x in found if x.startswith('jax')] == expected


# Runs a module as if a package were not installed.
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


@pytest.mark.ci
@pytest.mark.parametrize(
    ('package', 'name'),
    [
        *(('ml_collections', name) for name in COMMANDS),
        ('absl', 'experiments'),
        ('numpy', 'experiments.run'),
        ('yaml', 'experiments'),  # a dependency of ml_collections
    ],
)
def test_missing_package_is_reported_with_its_extra(package, name, tmp_path):
    found = run_python(tmp_path, '-c', WITHOUT, package, name)
    problem = f'{name} needs {package}, which {sys.executable} lacks'
    assert found == (2, '', f'error: {problem}: {INSTALL}\n')


@pytest.mark.parametrize(
    ('module', 'extra'),
    [
        ('orbax.checkpoint', 'experiments'),
        ('google.protobuf', 'pretrained'),
        ('vl_convert', 'report'),
    ],
)
def test_package_that_is_imported_later_is_reported_with_its_extra(
    module, extra, monkeypatch, capsys
):
    def main():
        raise ModuleNotFoundError(f'No module named {module!r}', name=module)

    modules = {listing.__name__: listing}
    monkeypatch.setattr(listing, 'main', main)
    with monkeypatch.context() as patch:
        patch.setattr(command.stopping, 'watch', lambda: None)
        patch.setattr(command.gc, 'set_threshold', lambda *_: None)
        patch.setattr(command, 'silence_orbax', lambda: None)
        patch.setattr(sys, 'excepthook', None)
        importlib = SimpleNamespace(import_module=modules.__getitem__)
        patch.setattr(command, 'importlib', importlib)
        with pytest.raises(SystemExit, match='2'):
            command.run('experiments.list')
    problem = f'experiments.list needs {module}, which {sys.executable} lacks'
    expected = f'error: {problem}: {INSTALL.replace("experiments", extra)}\n'
    assert capsys.readouterr().err == expected


def test_missing_package_is_not_a_user_error(monkeypatch):
    error = ModuleNotFoundError("No module named 'sacrebleu'", name='sacrebleu')

    def fail(*_):
        raise error

    with pytest.raises(ModuleNotFoundError), user_errors():
        fail()
    with pytest.raises(UserError, match='^x: install it'), user_errors('x: '):
        raise ModuleNotFoundError('install it')  # the message names its extra
    monkeypatch.setattr(Bleu, 'make_scorer', fail)
    with pytest.raises(ModuleNotFoundError):
        Bleu().check_installed()


def test_every_package_of_the_commands_has_an_extra():
    modules = {
        'absl-py': 'absl',
        'orbax-checkpoint': 'orbax',
        'protobuf': 'google',
        'vl-convert-python': 'vl_convert',
    }
    project = tomllib.loads((pages.ROOT / 'pyproject.toml').read_text())['project']
    extras = project['optional-dependencies']
    libraries = {'test', 'notebooks', 'docs', 'dev', 'bench', 'cuda12', 'cuda13', 'tpu'}
    found = {}
    for extra in extras.keys() - libraries:
        for requirement in extras[extra]:
            package = re.match(r'[\w-]+', requirement)[0]
            module = modules.get(package, package.replace('-', '_'))
            found.setdefault(module, set()).add(extra)
    del found['flaxformer_lite']
    for module, of_module in found.items():
        assert command.EXTRAS.get(module) in of_module, module
    for requirement in project['dependencies']:
        assert command.EXTRAS[re.match(r'\w+', requirement)[0]] == 'experiments'


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


def test_gpu_is_reported_only_if_it_is_unused_and_not_disabled(machine, monkeypatch):
    machine(devices=('accel0', 'nvidiactl'))
    assert accelerators.unused_gpu() is None
    (accelerators._DEVICES / 'nvidia0').touch()
    assert accelerators.unused_gpu()
    with monkeypatch.context() as patch:
        patch.setattr(jax, 'default_backend', lambda: 'gpu')
        assert accelerators.unused_gpu() is None
    jax.config.update('jax_platforms', 'cpu')  # the user's choice
    assert accelerators.unused_gpu() is None


@pytest.mark.parametrize(
    ('driver', 'plugins', 'message'),
    [
        ('580.82.07', {}, 'Install one: pip install -U "jax[cuda13]==0.9.1"'),
        ('550.54.15', {}, 'Install one: pip install -U "jax[cuda12]==0.9.1"'),
        ('580.82.07', {'cuda12': '0.7.2'}, 'pip install -U "jax[cuda12]==0.9.1"'),
        ('580.82.07', {'cuda12': JAXLIB}, 'the cuda12 plugin cannot use the GPU'),
    ],
)
def test_unused_gpu_is_a_warning_with_a_fix(driver, plugins, message, machine, capsys):
    machine(driver, **plugins)
    accelerators.check()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith('warning: jax: ') and message in line


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
def test_two_plugins_are_rejected_with_the_one_to_uninstall(
    driver, cuda12, cuda13, removed, machine
):
    machine(driver, cuda12=cuda12, cuda13=cuda13)
    uninstall = f'pip uninstall jax-{removed}-plugin jax-{removed}-pjrt'
    with pytest.raises(UserError, match=f'both installed. Uninstall one: {uninstall}'):
        accelerators.check()


@pytest.mark.parametrize(
    ('arguments', 'new'),
    [
        (['convert'], 'flaxformer_checkpoints.convert'),
        (['demo'], 'flaxformer_explain.demo'),
        (['explain'], 'flaxformer_explain.explain'),
        (['translate', '--workdir=x', '--html=y'], 'flaxformer_explain.page'),
    ],
)
def test_moved_command_prints_its_new_name(arguments, new, tmp_path):
    name, *flags = arguments
    status, out, err = run_python(tmp_path, '-m', f'experiments.{name}', *flags)
    assert (status, out, err.count('\n')) == (2, '', 1)
    assert f'moved; run python -m {new}' in err


def test_missing_entry_points_are_reported_with_the_install_command(tmp_path):
    code = (
        'from importlib import metadata\n'
        'metadata.entry_points = lambda **group: ()\n'
        'from experiments.command_line import command\n'
        'command.run("experiments.list")\n'
    )
    status, out, err = run_python(tmp_path, '-c', code)
    assert (status, out, err.count('\n')) == (2, '', 1)
    assert err.startswith('error: ') and INSTALL in err


def test_broken_package_does_not_hide_other_commands(monkeypatch):
    broken = {
        name: metadata.EntryPoint(name, value, overview.COMMANDS)
        for name, value in (('a', 'no_such.command'), ('b', '!'), ('c', 'sys'))
    }
    known = spec.entry_points(overview.COMMANDS)
    expected = overview.summaries()
    monkeypatch.setattr(spec, 'entry_points', lambda group: broken | known)
    assert overview.summaries() == expected
