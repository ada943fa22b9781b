"""Tests of the recorded environment of a run."""

import json
import subprocess
import sys
import types

import jax
import pytest

from experiments.runs import environment


def test_environment_has_versions_and_devices(tmp_path):
    environment.save(tmp_path, ['cpu', 'cpu'])
    stored = json.loads((tmp_path / 'environment.json').read_text())
    assert stored['packages']['jax'] == jax.__version__
    assert stored['python'] == '.'.join(map(str, sys.version_info[:3]))
    assert stored['devices'] == {'cpu': 2}
    assert stored['modules'] == {}
    entries = {'python', 'packages', 'platform', 'processor', 'devices', 'git'}
    assert set(stored) == entries | {'modules'}


def test_commit_is_that_of_the_checkout_with_this_code(tmp_path, monkeypatch):
    def git(*arguments):
        author = ['-c', 'user.name=a', '-c', 'user.email=a']
        command = ['git', '-C', str(tmp_path), *author, *arguments]
        return subprocess.check_output(command, text=True).strip()

    git('init')
    code = tmp_path / 'environment.py'
    code.write_text('')
    monkeypatch.setattr(environment, '__file__', str(code))
    (tmp_path / 'other').write_text('')
    git('add', 'other')
    git('commit', '-m', 'other')
    assert environment.describe([])['git'] is None
    git('add', '.')
    git('commit', '-m', 'code')
    expected = {'commit': git('rev-parse', 'HEAD'), 'changed': False}
    assert environment.describe([])['git'] == expected
    (tmp_path / 'my_sweep.py').write_text('')
    assert not environment.describe([])['git']['changed']
    code.write_text('changed')
    assert environment.describe([])['git']['changed']


@pytest.mark.parametrize(
    ('platform', 'capability', 'flags', 'expected'),
    [
        ('cpu', None, 'fma avx512f', 'float32'),
        ('cpu', None, 'fma avx512f avx512_bf16', 'bfloat16'),
        ('cpu', None, 'amx_bf16', 'bfloat16'),
        ('gpu', '7.5', 'fma', 'float16'),  # T4
        ('gpu', '9.0', 'fma', 'bfloat16'),
        ('tpu', None, 'fma', 'bfloat16'),
    ],
)
def test_fastest_dtype_depends_on_the_matrix_units(
    tmp_path, monkeypatch, platform, capability, flags, expected
):
    cpuinfo = tmp_path / 'cpuinfo'
    cpuinfo.write_text(f'model name\t: A\nflags\t\t: {flags}\n', encoding='utf-8')
    monkeypatch.setattr(environment, 'CPUINFO', cpuinfo)
    device = types.SimpleNamespace(platform=platform, compute_capability=capability)
    assert environment.fastest_dtype(device) == expected
