"""Tests of the list of runs."""

import itertools
import os
import time

import pytest
from synthetic_runs import fail, make

from experiments import list as listing
from experiments import storage
from experiments.errors import UserError
from experiments.runs import directory


def set_age(path, seconds):
    for file in path.iterdir():
        os.utime(file, (time.time() - seconds,) * 2)


@pytest.fixture
def runs(tmp_path):
    rows = [(7, 'eval', {'set': 'val', 'bleu': 1.5, 'loss': 9.0})]
    set_age(make(tmp_path / 'runs/done', 30.0), 90_000)
    set_age(make(tmp_path / 'runs/stopped', rows=rows), 125)
    set_age(fail(make(tmp_path / 'runs/burnt')), 3_700)
    (tmp_path / 'runs/.sweeps').mkdir()
    return tmp_path / 'runs'


def rows_of(*folders):
    return [line.split() for line in listing.listing(folders).splitlines()[2:]]


def test_runs_are_sorted_by_their_last_change(runs):
    assert rows_of(runs) == [
        ['2:05', 'stopped', '7', '20', 'val', 'bleu', '1.50', f'{runs}/stopped'],
        ['1:01:40', 'diverged', '0', '20', '-', f'{runs}/burnt'],
        ['1', 'd', 'finished', '20', '20', 'test', 'bleu', '30.00', f'{runs}/done'],
    ]
    with storage.lock(runs / 'stopped' / directory.LOCK):
        assert rows_of(runs / 'stopped')[0][1] == 'running'


def test_damaged_run_is_named_among_the_others(runs):
    (runs / 'done/result.json').write_text('{', encoding='utf-8')
    (damaged,) = [row for row in rows_of(runs) if row[-1] == f'{runs}/done']
    assert damaged[1] == 'damaged:' and f'{runs}/done/result.json' in damaged
    assert len(rows_of(runs)) == 3


def test_names_with_control_characters_are_escaped(tmp_path):
    name = 'a\x1b[2J\n0:00  finished'
    path = make(tmp_path / f'run{name}', 30.0)
    result = storage.read_json(path / directory.RESULT)
    result['evaluations'] = {name: result['evaluations']['test']}
    storage.write_json(path / directory.RESULT, result)
    escaped = r'a\x1b[2J\n0:00  finished'
    _, _, row = listing.listing([tmp_path]).splitlines()
    assert f'{escaped} bleu 30.00' in row and row.endswith(f'run{escaped}')


def test_checksums_of_an_earlier_version_are_ignored(tmp_path):
    path = make(tmp_path / 'run', 1.49, result={'files': {'a': 'b'}, 'sha256': 'c'})
    assert len(rows_of(path)) == 1


def test_folder_without_runs_is_an_error(tmp_path):
    for folder in (tmp_path, tmp_path / 'none'):
        with pytest.raises(UserError, match=f'^{folder}: no '):
            listing.listing([folder])


def test_runs_of_sweeps_are_found_in_subfolders(runs):
    make(runs / 'heads/base/seed=0', 30.0)
    make(runs / 'tuned/base/0.01/seed=100', 30.0)
    (runs / 'done/published').mkdir()
    (runs / 'done/published/config.json').write_text('{}')  # another project's
    names = {row[-1].removeprefix(f'{runs}/') for row in rows_of(runs)}
    of_sweeps = {'heads/base/seed=0', 'tuned/base/0.01/seed=100'}
    assert names == {'done', 'stopped', 'burnt'} | of_sweeps
    for folder in ('heads', 'heads/base', 'heads/base/seed=0'):
        (row,) = rows_of(runs / folder)
        assert row[-1] == f'{runs}/heads/base/seed=0'
    assert len(rows_of(runs / 'done')) == 1


def test_watch_repeats_the_list(runs, monkeypatch, command, capsys):
    pauses = itertools.count()

    def pause(seconds):
        if next(pauses) == 1:
            raise KeyboardInterrupt
        make(runs / 'new')

    monkeypatch.setattr(time, 'sleep', pause)
    with pytest.raises(KeyboardInterrupt):
        command(listing, runs, '--watch')
    first, second = capsys.readouterr().out.split('age ')[1:]
    assert f'{runs}/new' in second and f'{runs}/new' not in first
