"""Tests of a run's directory."""

import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from experiments import storage
from experiments.command_line.stopping import Stopped
from experiments.errors import UserError
from experiments.runs import directory, environment, failure, reading

CONFIG = {'data': 'grammar', 'model': {'d_model': 128, 'd_k': None, 'sizes': (1, 2)}}


@pytest.mark.parametrize(
    ('overrides', 'name'),
    [
        ({}, 'wmt_small'),
        ({'b': 1e-05, 'a': True, 'c': None}, 'wmt_small,a=true,b=1e-05,c=null'),
        ({'model.positions': 'rotary'}, 'wmt_small,model.positions=rotary'),
    ],
)
def test_a_run_is_named_by_its_settings(overrides, name):
    assert directory.run_name('wmt_small', overrides) == name


def test_a_long_name_keeps_the_last_words_of_its_fields():
    fields = ('batch.tokens', 'model.num_heads', 'model.num_layers', 'train.steps')
    overrides = dict.fromkeys(fields, 4096)
    name = directory.run_name('wmt_small', overrides)
    assert name.startswith('wmt_small,tokens=4096,num_heads=4096,num_layers=')
    assert len(name) == directory.LONGEST_NAME and name[-9] == '~'
    long = {'model.cross.attention': 'local(window=64)', 'model.num_layers': 4096}
    name = directory.run_name('wmt_small', {'model.attention': 'linear', **long})
    assert name.startswith('wmt_small,attention=linear,cross.attention=local')


@pytest.mark.parametrize(
    ('text', 'name'),
    [
        ('d_k=16', 'd_k=16'),
        ('ReZero, h=4', 'rezero_h=4'),
        ('1e-05', '1e-05'),
        ('../größer ', 'größer'),
        ('x' * 100, 'x' * 60),
    ],
)
def test_an_arm_has_a_folder_that_any_file_system_takes(text, name):
    assert directory.folder_name(text) == name


def test_a_run_of_a_sweep_is_called_by_its_arm(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert storage.run_title(Path('runs/wmt_small')) == 'wmt_small'
    path = Path('runs/heads/base/seed=1')
    assert storage.run_title(path) == 'heads/base/seed=1'
    assert storage.run_title(tmp_path / path) == 'heads/base/seed=1'


def test_different_runs_have_different_names_on_any_file_system():
    long = 'x' * 500
    values = [
        'a/b',
        'a b',
        'a_b',
        'A_b',
        'ä',
        'a.',
        'a',
        long + 'a',
        long + 'b',
        '../..',
        '',
    ]
    names = [directory.run_name('wmt', {'data': value}) for value in values]
    assert len({name.lower() for name in names}) == len(values)
    for name in names:
        assert len(name) <= 60
        assert set(name) <= set('abcdefghijklmnopqrstuvwxyz0123456789._=,+-~')
        assert not name.endswith('.')


def test_a_run_is_made_and_then_resumed(tmp_path):
    path = tmp_path / 'runs' / 'a'
    with directory.open_run(path, CONFIG):
        first = (path / 'config.json').read_bytes()
    with directory.open_run(path, CONFIG):
        pass
    assert (path / 'config.json').read_bytes() == first
    assert directory.read_config(path) == json.loads(json.dumps(CONFIG))


def test_another_config_is_refused_and_each_difference_named(tmp_path):
    with directory.open_run(tmp_path, CONFIG):
        pass
    sizes = {'d_model': 128, 'd_k': 64, 'sizes': [1, 2], 'new': 1}
    other = {'data': 'text(path="x")', 'model': sizes}
    with pytest.raises(UserError) as error:
        directory.check_directory(tmp_path, other)
    for difference in (
        'data is "grammar", not "text(path=\\"x\\")"',
        'model.d_k is null, not 64',
        'model.new is null, not 1',
    ):
        assert difference in str(error.value)
    assert 'd_model' not in str(error.value)


def test_a_directory_that_cannot_be_written_to_is_refused(tmp_path):
    (tmp_path / 'file').write_text('mine')
    with pytest.raises(
        UserError, match='file is not a directory[.] Choose .*--workdir'
    ):
        directory.check_directory(tmp_path / 'file' / 'run', CONFIG)


def test_a_protected_directory_is_refused_before_anything_is_done(nobody):
    nobody.chmod(0o500)
    for place in (nobody, nobody / 'run', nobody / 'runs' / 'a'):
        name = 'it' if place == nobody else nobody
        with pytest.raises(UserError) as error:
            directory.check_directory(place, CONFIG)
        assert str(error.value) == (
            f'{place}: cannot be written, there is no permission to write in {name}. '
            'Choose another --workdir.'
        )
    nobody.chmod(0)
    with pytest.raises(UserError, match='cannot read .*: Permission denied'):
        directory.check_directory(nobody / 'run', CONFIG)
    with pytest.raises(UserError, match='cannot read .*: Permission denied'):
        directory.read_config(nobody)
    nobody.chmod(0o700)
    assert list(nobody.iterdir()) == []


def test_what_a_kill_left_half_written_goes_at_the_next_start(tmp_path):
    with directory.open_run(tmp_path, CONFIG):
        pass
    for file in ('.config.json.1.tmp', 'translations/.val.txt.1.tmp'):
        storage.write(tmp_path / file, 'half')
    with directory.open_run(tmp_path, CONFIG):
        assert not list(tmp_path.rglob('.*.tmp'))


def test_a_run_may_be_a_link(tmp_path):
    with directory.open_run(tmp_path / 'disk', CONFIG):
        pass
    (tmp_path / 'link').symlink_to('disk')
    assert directory.read_config(tmp_path / 'link') == json.loads(json.dumps(CONFIG))


def test_the_environment_names_versions_and_devices(tmp_path):
    import jax

    environment.save(tmp_path, ['cpu', 'cpu'])
    stored = json.loads((tmp_path / 'environment.json').read_text())
    assert stored['packages']['jax'] == jax.__version__
    assert stored['python'] == '.'.join(map(str, sys.version_info[:3]))
    assert stored['devices'] == {'cpu': 2}
    assert stored['modules'] == {}
    entries = {'python', 'packages', 'platform', 'processor', 'devices', 'git'}
    assert set(stored) == entries | {'modules'}


def test_the_commit_is_that_of_this_code_and_no_other(tmp_path, monkeypatch):
    def git(*arguments):
        as_a = ['-c', 'user.name=a', '-c', 'user.email=a']
        command = ['git', '-C', str(tmp_path), *as_a, *arguments]
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
    assert environment.describe([])['git'] == {
        'commit': git('rev-parse', 'HEAD'),
        'changed': False,
    }
    (tmp_path / 'my_sweep.py').write_text('')
    assert not environment.describe([])['git']['changed']
    code.write_text('changed')
    assert environment.describe([])['git']['changed']


@pytest.mark.parametrize(
    'name',
    ['result.json', 'metrics.jsonl', 'tokenizer.model', 'checkpoints'],
)
def test_a_directory_of_something_else_is_refused_and_left_alone(tmp_path, name):
    (tmp_path / name).write_text('mine')
    with pytest.raises(UserError, match=f'has {name} but no config.json'):
        directory.check_directory(tmp_path, CONFIG)
    assert (tmp_path / name).read_text() == 'mine'
    assert [path.name for path in tmp_path.iterdir()] == [name]


NOT_FINITE = 'loss or gradient not finite at step 1,234 (epoch 0, batch 7): lower …'


@pytest.mark.parametrize(
    ('error', 'entry'),
    [
        (
            failure.Diverged(1234, NOT_FINITE),
            {'status': 'diverged', 'step': 1234, 'message': NOT_FINITE},
        ),
        (
            UserError('the disk is full'),
            {'status': 'failed', 'step': None, 'message': 'the disk is full'},
        ),
        (
            MemoryError('a\nb'),
            {'status': 'failed', 'step': None, 'message': 'MemoryError: a b'},
        ),
    ],
)
def test_an_error_is_recorded_and_raised(tmp_path, error, entry):
    with pytest.raises(type(error)), failure.record_errors(tmp_path):
        raise error
    assert failure.read_failure(tmp_path) == entry
    with failure.record_errors(tmp_path):  # a run that goes on has not failed
        assert failure.read_failure(tmp_path) is None
    assert failure.read_failure(tmp_path) is None


@pytest.mark.skipif(os.name != 'posix', reason='limits as POSIX has them')
def test_a_run_that_fails_on_a_full_disk_has_failed(tmp_path):
    import resource

    with directory.open_run(tmp_path, CONFIG):
        pass
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.raises(UserError, match='File too large'):
            with failure.record_errors(tmp_path):
                resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
                storage.write(tmp_path / 'checkpoint', 'x')
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    unwritten = 'failure.json could not be written'
    assert reading.run_status(tmp_path) == (reading.FAILED, unwritten, {})
    with failure.record_errors(tmp_path):
        assert reading.run_status(tmp_path).status == reading.STOPPED
    assert not list(tmp_path.glob('*failure*'))


@pytest.mark.parametrize('stop', [Stopped('saved'), KeyboardInterrupt()])
def test_a_stop_is_no_failure(tmp_path, stop):
    with pytest.raises(type(stop)), failure.record_errors(tmp_path):
        raise stop
    assert list(tmp_path.iterdir()) == []


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
def test_the_fastest_dtype_depends_on_the_units_of_a_device(
    tmp_path, monkeypatch, platform, capability, flags, expected
):
    cpuinfo = tmp_path / 'cpuinfo'
    cpuinfo.write_text(f'model name\t: A\nflags\t\t: {flags}\n', encoding='utf-8')
    monkeypatch.setattr(environment, 'CPUINFO', cpuinfo)
    device = types.SimpleNamespace(platform=platform, compute_capability=capability)
    assert environment.fastest_dtype(device) == expected
