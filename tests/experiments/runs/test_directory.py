"""Tests of a run's directory: its name, config and state."""

import errno
import json
import os
from pathlib import Path

import pytest

from experiments import storage
from experiments.errors import UserError
from experiments.runs import directory

CONFIG = {
    'data': 'grammar',
    'model': {'d_model': 128, 'd_k': None, 'sizes': (1, 2)},
    'train': {'steps': 12, 'epochs': 0, 'patience': 2},
}


def test_run_name_lists_the_overrides():
    overrides = {'b': 1e-05, 'a': True, 'c': None, 'model.positions': 'rotary'}
    name = directory.run_name('wmt', overrides)
    assert name == 'wmt,a=true,b=1e-05,c=null,model.positions=rotary'
    # Long names have fields without their sections, and end with a hash.
    fields = ('batch.tokens', 'model.num_heads', 'model.num_layers', 'train.steps')
    name = directory.run_name('wmt_small', dict.fromkeys(fields, 4096))
    assert name.startswith('wmt_small,tokens=4096,num_heads=4096,num_layers=')
    assert len(name) == directory.LONGEST_NAME and name[-9] == '~'


def test_run_names_are_distinct_on_any_file_system():
    values = ['a/b', 'a b', 'a_b', 'A_b', 'ä', 'a.', 'a', '../..', '']
    values += ['x' * 500 + 'a', 'x' * 500 + 'b']
    names = [directory.run_name('wmt', {'data': value}) for value in values]
    assert len({name.lower() for name in names}) == len(values)
    for name in names:
        assert len(name) <= 60
        assert set(name) <= set('abcdefghijklmnopqrstuvwxyz0123456789._=,+-~')
        assert not name.endswith('.')


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
def test_folder_name_of_an_arm_is_valid_on_any_file_system(text, name):
    assert directory.folder_name(text) == name


def test_title_of_a_sweeps_run_names_its_arm(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert storage.run_title(Path('runs/wmt_small')) == 'wmt_small'
    path = Path('runs/heads/base/seed=1')
    for absolute in (path, tmp_path / path):
        assert storage.run_title(absolute) == 'heads/base/seed=1'


def test_directory_is_created_locked_resumed_and_finished(tmp_path):
    path = tmp_path / 'runs' / 'a'
    assert directory.check_directory(path, CONFIG) == directory.NEW
    with directory.open_run(path, CONFIG):
        first = (path / 'config.json').read_bytes()
        assert directory.check_directory(path, CONFIG) == directory.RESUMABLE
        with pytest.raises(UserError, match='is in use by process'):
            with directory.open_run(path, CONFIG):
                pass
    for file in ('.config.json.1.tmp', 'translations/.val.txt.1.tmp'):
        storage.write(path / file, 'half')  # from a killed process
    with directory.open_run(path, CONFIG):
        assert not list(path.rglob('.*.tmp'))
        (path / 'result.json').write_text('{}')
    assert (path / 'config.json').read_bytes() == first
    assert directory.check_directory(path, CONFIG) == directory.COMPLETE
    (tmp_path / 'link').symlink_to(path)
    assert directory.read_config(tmp_path / 'link') == json.loads(json.dumps(CONFIG))


@pytest.mark.parametrize(
    ('limits', 'raised'),
    [
        ({'steps': 12, 'epochs': 0}, {'steps': 24}),
        ({'steps': 0, 'epochs': 2}, {'epochs': 3}),
        ({'steps': 9, 'epochs': 2}, {'epochs': 3}),
        ({'steps': 9, 'epochs': 2}, {'steps': 12, 'epochs': 3}),
    ],
    ids=str,
)
def test_raised_limits_train_a_finished_run_further(limits, raised, tmp_path):
    with directory.open_run(tmp_path, {'train': limits}):
        (tmp_path / 'result.json').write_text('{}')
    longer = {'train': limits | raised}
    assert directory.check_directory(tmp_path, longer) == directory.EXTENDED
    for changes in ({'epochs': 1}, {'epochs': 3, 'steps': 1}):
        with pytest.raises(UserError, match='holds a run with a different config'):
            directory.check_directory(tmp_path, {'train': limits | changes})
    with directory.open_run(tmp_path, longer):
        assert directory.read_config(tmp_path) == longer
        assert not (tmp_path / 'result.json').exists()


@pytest.mark.parametrize(
    'changes',
    [{'steps': 24, 'patience': 3}, {'patience': 3}, {'steps': 6}, {'steps': 0}],
    ids=str,
)
def test_other_changes_of_the_training_config_are_rejected(tmp_path, changes):
    new = {**CONFIG, 'train': CONFIG['train'] | changes}
    with directory.open_run(tmp_path, CONFIG):
        (tmp_path / 'result.json').write_text('{}')
    with pytest.raises(UserError, match='holds a run with a different config'):
        directory.check_directory(tmp_path, new)


def test_different_config_is_rejected_with_each_difference(tmp_path):
    with directory.open_run(tmp_path, CONFIG):
        pass
    sizes = {'d_model': 128, 'd_k': 64, 'sizes': [1, 2], 'new': 1}
    with pytest.raises(UserError) as error:
        directory.check_directory(tmp_path, {'data': 'text(path="x")', 'model': sizes})
    for difference in (
        'data is "grammar", not "text(path=\\"x\\")"',
        'model.d_k is null, not 64',
        'model.new is null, not 1',
    ):
        assert difference in str(error.value)
    assert 'd_model' not in str(error.value)


@pytest.mark.parametrize(
    'name', ['result.json', 'metrics.jsonl', 'tokenizer.model', 'checkpoints']
)
def test_directory_with_other_files_is_rejected_and_unchanged(tmp_path, name):
    (tmp_path / name).write_text('mine')
    with pytest.raises(UserError, match=f'has {name} but no config.json'):
        directory.check_directory(tmp_path, CONFIG)
    assert (tmp_path / name).read_text() == 'mine'
    assert [path.name for path in tmp_path.iterdir()] == [name]
    with pytest.raises(UserError, match=f'{name} is not a directory.*--workdir'):
        directory.check_directory(tmp_path / name / 'run', CONFIG)


def test_directory_that_the_file_system_refuses_is_rejected(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.ENOENT, 'No such file or directory')

    assert directory.check_directory(tmp_path / 'runs' / 'a', CONFIG) == directory.NEW
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(os, 'mkdir', refuse)  # as /proc does, also for root
    with pytest.raises(UserError, match='no folder can be created in .*--workdir'):
        directory.check_directory(tmp_path / 'runs' / 'a', CONFIG)


def test_directory_without_permissions_is_rejected_before_any_work(nobody):
    nobody.chmod(0o500)
    for place in (nobody, nobody / 'run', nobody / 'runs' / 'a'):
        with pytest.raises(UserError, match='no permission to write .*--workdir'):
            directory.check_directory(place, CONFIG)
    nobody.chmod(0)
    for read in (
        lambda: directory.check_directory(nobody / 'run', CONFIG),
        lambda: directory.read_config(nobody),
    ):
        with pytest.raises(UserError, match='cannot read .*: Permission denied'):
            read()
    nobody.chmod(0o700)
    assert list(nobody.iterdir()) == []
