"""Tests of the command that makes the runs of a sweep."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import small_runs
from planned_sweeps import plan_small, write_sweep

from experiments import storage, sweep
from experiments.command_line import console
from experiments.errors import UserError
from experiments.runs import metrics_log
from experiments.sweeps import analysis, planning, workers
from experiments.training import loop

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.usefixtures('cache')


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('PYTHONPATH', f'{ROOT}:{os.environ.get("PYTHONPATH", "")}')
    (tmp_path / 'text').mkdir()
    small_runs.write_text(tmp_path / 'text', val=4)
    return tmp_path


def write_small(folder, arms, overrides=None, **fields):
    """Writes a sweep whose runs train in seconds."""
    small = small_runs.SHORT | {'data': small_runs.source('text')}
    small |= {'evaluation.every': 0} | (overrides or {})
    defaults = {'base': 'base', 'measure': 'val loss'}
    return write_sweep(folder, overrides=small, arms=arms, **defaults | fields)


def run_sweep(monkeypatch, file, *arguments):
    """Runs the command in this process; returns its exit status."""
    monkeypatch.setattr(sys, 'argv', ['sweep', f'--config={file}', *arguments])
    try:
        sweep.main()
    except SystemExit as ended:
        return ended.code
    return 0


def read_result(path):
    return json.loads((path / 'result.json').read_text('utf-8'))


def test_sweep_waits_for_runs_of_other_processes(folder, monkeypatch, capsys):
    planned = plan_small(folder)
    with contextlib.ExitStack() as others:
        assert not sweep._wait_for_others(planned, lambda: False)
        others.enter_context(storage.lock(planned.runs[0].path / '.lock'))
        monkeypatch.setattr(time, 'sleep', lambda seconds: others.close())
        assert sweep._wait_for_others(planned, lambda: False)
    assert capsys.readouterr().out.startswith('waiting')


@pytest.mark.ci
def test_dry_run_shows_all_arms_and_writes_nothing(folder, monkeypatch, capsys):
    sizes = {'model.dtype': 'bfloat16', 'model.d_k': 8, 'model.d_v': 8}
    flash = {'model.attention': 'flash'}  # needs a GPU, unlike its plan
    file = write_small(folder, {'base': {}, 'flash': flash}, sizes)
    assert run_sweep(monkeypatch, file, '--dry_run') == 0
    out, _ = capsys.readouterr()
    rows = [line.split()[:2] for line in out.splitlines() if ' 0/2 ' in line]
    assert rows == [['base', '0/2'], ['flash', '0/2']]
    assert 'How many heads?' in out and 'power: unknown' in out
    # It also downloads nothing.
    public = 'tfds(name="wmt14_translate/de-en", source="en", target="de")'
    file = write_small(folder, {'base': {}}, {'data': f'mix(sources=[{public!r}])'})
    assert run_sweep(monkeypatch, file, '--dry_run') == 0
    assert not (folder / 'runs').exists()


def test_pilot_gives_the_power(folder, monkeypatch, capsys):
    arms = {'base': {}, 'heads=4': {'model.num_heads': 4}}
    file = write_small(folder, arms)
    tables = folder / 'pilot/tables'
    rows = ['arm,seed,score', 'other,0,4.0', 'other,1,4.2', 'more,0,4.1', 'more,1,4.5']
    storage.write(tables / 'runs.csv', '\n'.join(rows))
    storage.write(tables / 'arms.csv', 'arm,val loss\nother,4.1\n')
    assert run_sweep(monkeypatch, file, '--dry_run', '--pilot=pilot') == 0
    out, _ = capsys.readouterr()
    scores = {'other': {'0': 4.0, '1': 4.2}, 'more': {'0': 4.1, '1': 4.5}}
    seeds = dict.fromkeys(arms, 2)
    least = analysis.minimum_detectable(scores, [('heads=4', 'base')], seeds)
    assert f'difference {console.cell(least)} (80% power' in out and 'pilot' in out
    storage.write(tables / 'arms.csv', 'arm,test bleu\nother,4.1\n')
    with pytest.raises(UserError, match="--pilot=pilot: .*'val loss'"):
        run_sweep(monkeypatch, file, '--dry_run', '--pilot=pilot')
    (tables / 'runs.csv').unlink()
    with pytest.raises(UserError, match='--pilot=pilot: .*tables/runs.csv'):
        run_sweep(monkeypatch, file, '--dry_run', '--pilot=pilot')


@pytest.mark.parametrize(
    ('arm', 'fields', 'arguments', 'message'),
    [
        ({'model.attention': 'sofmax'}, {}, ['--workers=2'], "arm 'base': .*softmax"),
        ({'model.norm': 'rms', 'model.residual': 'rezero'}, {}, [], 'norm=rms'),
        ({}, {}, ['--workers=0'], '--workers'),
        ({}, {}, ['--pilot=pilot'], '--pilot: .*--dry_run'),
        ({}, {}, ['--costs'], '--costs: .*--dry_run'),
        ({}, {}, ['--worker', '0', '0'], '^--worker: .* 0 0'),
        ({}, {}, ['--worker', '3', '2'], '^--worker: .* 3 2'),
        ({}, {'measure': 'vla loss'}, [], "measure='vla loss': .*'vla'.* val"),
        ({}, {'measure': 'vla loss'}, ['--dry_run'], "measure='vla loss': .*'vla'"),
        ({'evaluation.sets': 'vla'}, {'measure': 'vla loss'}, [], "sets: .*'vla'"),
        ({'data': small_runs.source('gone')}, {}, ['--dry_run'], "'base': data: gone"),
    ],
)
def test_invalid_sweeps_and_flags_are_rejected_before_the_first_run(
    folder, monkeypatch, arm, fields, arguments, message
):
    file = write_small(folder, {'base': arm}, **fields)
    with pytest.raises(UserError, match=message):
        run_sweep(monkeypatch, file, *arguments)
    assert not (folder / 'runs').exists()


def test_crossed_factor_may_have_no_effect_in_some_arms(folder, monkeypatch, capsys):
    factors = {'model.norm': ['layer', 'rms'], 'model.residual': ['pre_norm', 'rezero']}
    file = write_small(folder, {}, factors=factors, base='layer, pre_norm')
    assert run_sweep(monkeypatch, file, '--dry_run') == 0
    out = capsys.readouterr().out
    assert out.count('has no effect') == 1  # `layer` is the default
    assert 'rms, rezero: model.norm=rms has no effect' in out
    runs = planning.load(file).runs
    trained = []

    def run(config, path, overrides, screen, program_cache):
        trained.append(overrides)

    monkeypatch.setattr(loop, 'run', run)
    workers.make_runs(runs[-1:], 0, 1)
    assert trained[0]['train.seed'] == 3 and 'model.norm' not in trained[0]
    factors['model.residual'] = ['rezero', 'none']
    file = write_small(folder, {}, factors=factors, base='layer, rezero')
    with pytest.raises(UserError, match='model.norm .*any arm'):
        run_sweep(monkeypatch, file, '--dry_run')


@pytest.mark.slow
def test_sweep_trains_as_the_command_line_and_continues_after_failures(
    folder, monkeypatch, capsys
):
    arms = {
        'base': {},
        'diverges': {'optimizer.schedule': 'constant_schedule(value=1e30)'},
        'fails': {'model.positions': 'learned(max_length=3)'},
    }
    file = write_small(folder, arms)
    assert run_sweep(monkeypatch, file) == 1
    out, err = capsys.readouterr()
    assert '[1/6] base, seed 0: val loss ' in out
    assert '[3/6] diverges, seed 0: diverged: loss or gradient not finite' in out
    *_, base, diverges, fails, following = out.splitlines()
    assert [line.split()[:3] for line in (base, diverges, fails)] == [
        ['base', '2', 'finished'],
        ['diverges', '2', 'diverged'],
        ['fails', '2', 'not'],
    ]
    assert following.startswith('next: ')
    assert err.count('not begun: see the logs in runs/.sweeps/heads/') == 2
    log = (folder / 'runs/.sweeps/heads/worker0.log').read_text('utf-8')
    assert 'error: ' in log and 'the model has learned positions for only 3' in log
    runs = planning.load(file).runs
    arguments = small_runs.flags(runs[0].overrides)
    small_runs.train(folder / 'alone', *arguments)
    alone, first, second = (
        (result['parameters_sha256'], str(result['evaluations']))
        for result in map(read_result, (folder / 'alone', runs[0].path, runs[1].path))
    )
    assert alone == first and first[0] != second[0]
    # Ended runs stay unchanged.
    before = (runs[0].path / 'result.json').stat().st_mtime_ns
    assert run_sweep(monkeypatch, file) == 1
    out, _ = capsys.readouterr()
    assert '4 of 6 runs have already ended' in out and '[' not in out
    assert (runs[0].path / 'result.json').stat().st_mtime_ns == before


@pytest.mark.slow
@pytest.mark.skipif(os.name != 'posix', reason='needs POSIX signals')
@pytest.mark.parametrize('is_killed', [False, True])
def test_runs_of_a_stopped_or_killed_sweep_are_saved_and_resumed(
    folder, monkeypatch, capsys, is_killed
):
    overrides = {'train.steps': 400, 'checkpoint.every': 100}
    file = write_small(folder, {'base': {}}, overrides)
    paths = [folder / run.path for run in planning.load(file).runs]
    command = [sys.executable, '-m', 'experiments.sweep', f'--config={file}']
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    process = subprocess.Popen([*command, '--workers=2'], cwd=folder, **pipes)
    end = time.monotonic() + 300
    while not all(metrics_log.read_rows(path) for path in paths):
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL if is_killed else signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    if not is_killed:
        assert process.returncode == -signal.SIGTERM, out
        assert 'Rerun the command to continue.' in out
        for path in paths:
            assert not (path / 'result.json').exists()
            assert list((path / 'checkpoints').glob('[0-9]*')), 'nothing was saved'
    assert run_sweep(monkeypatch, file, '--workers=2') == 0
    assert '[2/2]' in capsys.readouterr().out
    for number, path in enumerate(paths):
        assert read_result(path)['step'] == 400
        log = folder / f'runs/.sweeps/heads/worker{number}.log'
        assert 'Stopped; saved at step' in log.read_text('utf-8')
