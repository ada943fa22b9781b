"""Tests of the workers that share the runs of a sweep."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import small_runs
from planned_sweeps import DIVERGED, fail, finish, plan_small, write_sweep

from experiments import storage
from experiments.config import components
from experiments.errors import UserError
from experiments.runtime import compilation, mesh
from experiments.sweeps import planning, workers
from experiments.training import loop, setup

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.usefixtures('cache')


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    """Returns a sweep with a run for each arm, from `a` to `f`."""
    monkeypatch.chdir(tmp_path)
    arms = {name: {'model.d_ff': 16 * i} for i, name in enumerate('abcdef', 1)}
    return plan_small(tmp_path, arms=arms, base='a', seeds=[0])


@pytest.fixture
def trained_arms(monkeypatch, sweep):
    """Returns the arms that a stub has trained."""
    runs = {run.path: run for run in sweep.runs}
    arms = []

    def run(config, path, overrides, screen, program_cache):
        arms.append(runs[path].arm)
        finish(runs[path])

    monkeypatch.setattr(loop, 'run', run)
    return arms


def test_each_worker_begins_at_a_different_run_and_makes_the_rest(sweep, trained_arms):
    workers.make_runs(sweep.runs, 1, 3)
    assert ''.join(trained_arms) == 'cdefab'
    workers.make_runs(sweep.runs, 0, 3)
    assert len(trained_arms) == 6  # all had finished


def test_ended_and_running_runs_are_skipped(sweep, trained_arms):
    a, b, c, d, _, _ = sweep.runs
    finish(a)
    fail(b, DIVERGED)
    fail(c)
    with storage.lock(d.path / '.lock'):
        workers.make_runs(sweep.runs, 0, 1)
    assert ''.join(trained_arms) == 'ef'
    workers.forget_failures(sweep)  # as the next call of the command does
    workers.make_runs(sweep.runs, 0, 1)
    assert ''.join(trained_arms) == 'efcd'


@pytest.mark.parametrize(
    'error', [UserError('no text'), ZeroDivisionError('by zero'), storage.InUse('now')]
)
def test_error_in_one_run_does_not_stop_the_others(
    sweep, trained_arms, monkeypatch, error, capsys
):
    train = loop.run

    def run(config, path, *arguments, **options):
        if path == sweep.runs[1].path:
            raise error
        train(config, path, *arguments, **options)

    monkeypatch.setattr(loop, 'run', run)
    workers.make_runs(sweep.runs, 0, 1)
    assert ''.join(trained_arms) == 'acdef'
    out = capsys.readouterr().out
    assert (str(error) in out) == (type(error) is not storage.InUse)
    assert ('Traceback' in out) == (type(error) is ZeroDivisionError)


WORKER = """
import sys, time
from experiments.command_line import stopping
from experiments.sweeps import workers
stopping.watch()
workers.stop_with_parent()
print('ready', flush=True)
time.sleep(float(sys.argv[1]))
print('done')
"""


def start_worker(seconds, is_started_here):
    environment = os.environ | ({workers._STARTED_HERE: '1'} if is_started_here else {})
    return subprocess.Popen(
        [sys.executable, '-c', WORKER, str(seconds)],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.skipif(os.name != 'posix', reason='needs POSIX signals')
def test_worker_stops_with_the_process_that_started_it():
    with start_worker(60, is_started_here=True) as process:
        process.stdout.readline()
        process.stdin.close()  # as if the parent had died
        assert process.wait(timeout=20) == -signal.SIGTERM
    # A worker of a job array ignores its standard input.
    with start_worker(0.5, is_started_here=False) as process:
        process.stdin.close()
        assert process.stdout.read() == 'ready\ndone\n'


def test_seeds_and_rates_have_the_same_training_programs(tmp_path):
    arms = {
        'base': {'optimizer.schedule': 'cosine(peak=0.001, warmup=0.15)'},
        'twice': {'optimizer.schedule': 'cosine(peak=0.002, warmup=0.15)'},
        'wide': {'model.d_ff': 32},
    }
    cache = compilation.ProgramCache()
    programs = []
    for run in plan_small(tmp_path, arms=arms).runs:
        parts = components.build(run.config)
        devices = mesh.make_mesh()
        shared, _ = setup._programs(run.config, parts, 100, devices, None, cache)
        programs.append(shared)
    assert [x is programs[0] for x in programs] == [True] * 4 + [False] * 2
    assert programs[4] is programs[5]


@pytest.mark.slow
def test_seeds_and_rates_of_one_worker_share_compiled_programs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'text').mkdir()
    small_runs.write_text(tmp_path / 'text', val=4)
    fields = small_runs.SHORT | {'data': small_runs.source('text')}
    arms = {
        name: {'optimizer.schedule': f'cosine(peak={peak}, warmup=0.15)'}
        for name, peak in [('base', 1e-3), ('twice', 2e-3), ('half', 5e-4)]
    }
    file = write_sweep(
        tmp_path, overrides=fields, arms=arms, seeds=[1, 2], measure='val loss'
    )
    programs, counts, train = [], [], loop.run
    compile_program = compilation.compile_program

    def count(function, *arguments, once=False):
        if not once:
            programs.append(function)
        return compile_program(function, *arguments, once=once)

    def run(config, *arguments, **options):
        if config.train.seed == 2 and '0.001' not in str(config.optimizer.schedule):
            return  # two seeds of the first rate are enough
        programs.clear()
        train(config, *arguments, **options)
        counts.append(len(programs))

    monkeypatch.setattr(compilation, 'compile_program', count)
    monkeypatch.setattr(loop, 'run', run)
    workers.make_all(planning.load(file), 0, 1)
    first, *others = counts
    assert first >= 3 and others == [0] * 3  # a step, the loss and the search
