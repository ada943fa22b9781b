"""Tests of the first cell of the notebooks; slow tests use Colab's packages."""

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import test_notebooks

from notebooks import install

ROOT = Path(__file__).parents[2]
IMAGES = sorted(file.stem for file in (ROOT / 'tests' / 'images').glob('*.txt'))
DEVICES = '8 × TPU v5 lite (tpu)\n'


@pytest.fixture
def runtime(monkeypatch):
    """Simulates a runtime's accelerator, JAX and pip; returns pip's arguments."""

    def start(backend='cpu', accelerator=None, devices=DEVICES, failed='', loaded=()):
        commands = []

        def run(*command):
            if command[1] != '-c':
                commands.append([*command[4:]])
                return subprocess.CompletedProcess(command, bool(failed), '', failed)
            if 'check_plugins' in command[2]:
                status = 'error' in devices
                return subprocess.CompletedProcess(command, status, devices, devices)
            return subprocess.CompletedProcess(command, backend is None, backend, '')

        versions = iter([{('absl-py', '1.4.0')}, loaded or {('absl-py', '1.4.0')}])
        monkeypatch.setattr(install, '_run', run)
        monkeypatch.setattr(install, '_accelerator', lambda: accelerator)
        monkeypatch.setattr(install, '_loaded_versions', lambda: next(versions))
        installed = install._is_installed
        new = 'flaxformer-lite'
        monkeypatch.setattr(
            install, '_is_installed', lambda x: x != new and installed(x)
        )
        install.install()
        return commands

    return start


def pins(*names):
    return [f'{name}=={metadata.version(name)}' for name in names]


@pytest.mark.parametrize(
    ('backend', 'accelerator', 'pinned', 'extras'),
    [
        ('cpu', None, ['numpy', 'jax', 'jaxlib'], 'report,pretrained'),
        ('gpu', 'cuda12', ['numpy', 'jax', 'jaxlib'], 'report,pretrained'),
        ('cpu', 'cuda12', ['numpy'], 'report,pretrained,cuda12'),
        ('cpu', 'tpu', ['numpy'], 'report,pretrained,tpu'),
        (None, None, ['numpy'], 'report,pretrained'),
    ],
)
def test_installed_jax_remains_if_it_supports_the_device(
    backend, accelerator, pinned, extras, runtime, capsys
):
    (arguments,) = runtime(backend, accelerator)
    project = '--editable', f'{ROOT}[{extras}]'
    assert arguments == ['--quiet', *pins(*pinned), *project]
    assert capsys.readouterr().out == f'devices: {DEVICES}'


def test_changed_loaded_packages_restart_the_kernel(runtime, monkeypatch, capsys):
    monkeypatch.setattr(install, '_restart_kernel', lambda: print('restarted'))
    runtime(loaded={('absl-py', '2.5.1')})
    assert capsys.readouterr().out.splitlines()[:2] == [
        'absl-py changed, so the kernel restarts. Run this cell again.',
        'restarted',
    ]


@pytest.mark.parametrize(
    ('failed', 'devices', 'message'),
    [
        (
            "WARNING: Retrying after NewConnectionError('…')\nERROR: No matching …",
            DEVICES,
            "pip: no network. Turn on internet access in the notebook's settings.",
        ),
        ('ERROR: ResolutionImpossible\n', DEVICES, 'pip: ERROR: ResolutionImpossible'),
        ('', 'Traceback\nerror: no GPU\n', 'devices: error: no GPU'),
    ],
)
def test_failed_installations_name_the_cause(failed, devices, message, runtime):
    with pytest.raises(SystemExit) as error:
        runtime(failed=failed, devices=devices)
    assert error.value.code == message


def test_old_python_is_refused(monkeypatch):
    monkeypatch.setattr(sys, 'version_info', (3, 10, 12))
    with pytest.raises(SystemExit, match='^python: .*3.10'):
        install.install()


def test_unavailable_repository_is_an_error_of_one_line(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match='^fatal: ') as error:
        exec(first_cell(f'file://{tmp_path}/none'), {})
    assert '\n' not in error.value.code


def first_cell(url):
    text = test_notebooks.source(test_notebooks.cells('quickstart', 'code')[0])
    assert text.count(test_notebooks.REPOSITORY) == 1
    return text.replace(test_notebooks.REPOSITORY, url)


# Runs a notebook, and prints what its first cell printed.
EXECUTE = """
import sys, nbclient, nbformat

notebook = nbformat.read(sys.argv[1], as_version=4)
resources = {'metadata': {'path': sys.argv[2]}}
client = nbclient.NotebookClient(notebook, timeout=1_800, resources=resources)
client.execute()
print(''.join(x.get('text', '') for x in notebook.cells[1].outputs))
"""


@pytest.mark.slow
@pytest.mark.parametrize('image', IMAGES)
def test_installation_changes_no_package_of_colab(image, tmp_path):
    run(sys.executable, '-m', 'venv', tmp_path / 'venv')
    python = tmp_path / 'venv' / 'bin' / 'python'
    pins = ROOT / 'tests' / 'images' / f'{image}.txt'
    run(python, '-m', 'pip', 'install', '--quiet', '--no-deps', '--requirement', pins)
    before = packages(python)
    content = tmp_path / 'content'
    content.mkdir()
    for name in ('quickstart', 'look_inside'):
        file = tmp_path / f'{name}.ipynb'
        write_notebook(name, file)
        cache = {'FLAXFORMER_LITE_CACHE': str(tmp_path / 'cache')}
        printed = run(python, '-c', EXECUTE, file, content, **cache)
        assert printed.strip() == 'devices: 1 × cpu (cpu)'
    after = packages(python)
    assert {name: after.get(name) for name in before} == before
    assert 'flaxformer-lite' in after


def write_notebook(name, file):
    text = (ROOT / f'notebooks/{name}.ipynb').read_text('utf-8')
    notebook = json.loads(test_notebooks.shorten(name, text))
    _, cell, *_ = notebook['cells']
    # Colab's kernel has loaded NumPy before the first cell.
    cell['source'] = f'import numpy\n{first_cell(f"file://{ROOT}")}'
    file.write_text(json.dumps(notebook), 'utf-8')


def packages(python):
    lines = run(python, '-m', 'pip', 'list', '--format=freeze').splitlines()
    return dict(line.split('==') for line in lines if '==' in line)


def run(*command, **variables):
    without = 'PYTHONPATH', 'XLA_FLAGS', 'NPROC', 'JAX_NUMPY_RANK_PROMOTION'
    environment = {k: v for k, v in os.environ.items() if k not in without}
    environment['XLA_FLAGS'] = '--xla_backend_optimization_level=0'
    done = subprocess.run(
        [str(part) for part in command],
        env=environment | variables,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
