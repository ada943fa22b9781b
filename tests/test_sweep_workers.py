"""Workers of a sweep: who makes which run, what is left open, what is queued where."""

import json
import os
import signal
import stat
import time

import pytest

from experiments.command_line.stopping import Stop, Stopped
from experiments.config.schema import ExperimentConfig
from experiments.errors import UserError
from experiments.runs import lock
from experiments.sweeps import launch, outcome
from experiments.sweeps.schema import Cell
from experiments.sweeps.worker import Worker
from experiments.training import whole_run

RESULT = {
    'step': 100,
    'parameters': 9,
    'train_seconds': 50.0,
    'tokens_per_second': 3,
    'evaluations': {'test': {'bleu': 12.5}},
}
DIVERGED = {'status': 'diverged', 'step': 3, 'message': 'not finite'}
FAILED = {'status': 'failed', 'step': None, 'message': 'the disk is full'}


@pytest.fixture
def cells(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = ExperimentConfig()
    return [Cell(arm, 0, {}, tmp_path / arm, config) for arm in 'abcdef']


def write(cell, name, value):
    cell.path.mkdir(exist_ok=True)
    (cell.path / name).write_text(json.dumps(value), encoding='utf-8')


def finish(cell):
    scores = dict(direction='en-de', sentences=4, bleu_signature='', chrf_signature='')
    scores |= dict.fromkeys(('loss', 'perplexity', 'accuracy', 'bleu', 'chrf'), 12.5)
    write(cell, 'result.json', RESULT | {'evaluations': {'test': scores}})


@pytest.fixture
def made(monkeypatch):
    """The arms of the runs that were made, by a stub of the code that trains."""
    made = []

    def run(runs, overrides, screen, stop, memo=None):
        (member,) = runs
        made.append(member.path.name)
        finish(Cell(member.path.name, 0, {}, member.path, member.config))

    monkeypatch.setattr(whole_run, 'run', run)
    return made


def worker(cells, index=0, workers=1, began=None):
    began = time.time() - 100 if began is None else began
    return Worker(cells, index, workers, began, folder=cells[0].path.parent)


def test_each_worker_begins_at_its_own_place_and_helps_with_the_rest(cells, made):
    assert worker(cells[:], 1, 3).work(Stop()) == {}
    assert ''.join(made) == 'cdefab'
    made.clear()
    worker(cells, 0, 3).work(Stop())
    assert made == []  # all are finished


def test_what_has_ended_or_is_in_use_is_left_alone(cells, made):
    a, b, c, d, *_ = cells
    finish(a)
    write(b, 'failure.json', DIVERGED)
    write(c, 'failure.json', FAILED)  # by another worker of this sweep
    with lock.locked(d.path, optional=False):
        worker(cells).work(Stop())
    assert ''.join(made) == 'ef'


def test_what_failed_before_this_sweep_is_tried_again(cells, made):
    write(cells[0], 'failure.json', FAILED)
    write(cells[1], 'failure.json', DIVERGED)
    worker(cells, began=time.time() + 100).work(Stop())
    assert ''.join(made) == 'acdef'


@pytest.mark.parametrize('error', [UserError('no text'), ZeroDivisionError('by zero')])
def test_an_error_stops_no_other_run(cells, made, monkeypatch, error, capsys):
    run = whole_run.run

    def fail(runs, *arguments, **named):
        if runs[0].path.name == 'b':
            raise error
        return run(runs, *arguments, **named)

    monkeypatch.setattr(whole_run, 'run', fail)
    errors = worker(cells).work(Stop())
    assert ''.join(made) == 'acdef'
    (path,) = errors
    assert path.endswith('b') and str(error) in errors[path]
    assert str(error) in capsys.readouterr().out


def test_a_run_that_somebody_else_has_just_begun_is_no_error(cells, made, monkeypatch):
    def fail(*arguments, **named):
        raise lock.InUse('in use')

    monkeypatch.setattr(whole_run, 'run', fail)
    assert worker(cells).work(Stop()) == {}


def test_a_stop_is_passed_on(cells, made):
    stop = Stop()
    with stop.listening():
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Stopped):
            worker(cells).work(stop)
    assert made == [] and stop.signal == signal.SIGTERM


def test_outcomes_are_read_from_directories(cells):
    a, b, c, d, e, f = cells
    finish(a)
    write(b, 'failure.json', DIVERGED)
    write(c, 'failure.json', FAILED)
    write(d, 'result.json', [])
    e.path.mkdir()
    (e.path / 'metrics.jsonl').write_text('{"step": 7, "kind": "train"}\n')
    statuses = [outcome.of(cell.path).status for cell in cells]
    assert statuses == ['finished', 'diverged', 'failed', 'failed', *['unfinished'] * 2]
    assert outcome.of(b.path).message == 'not finite'
    assert outcome.score(a, 'test bleu') == 12.5
    assert outcome.score(a, 'long bleu') is None
    assert outcome.score(b, 'test bleu') is None
    assert outcome.seconds_a_step(a.path) == 0.5
    assert outcome.steps_done(e.path) == 7
    assert outcome.steps_done(f.path) == 0


def program(folder, name, text):
    file = folder / name
    file.write_text(f'#!/bin/sh\n{text}\n', encoding='utf-8')
    file.chmod(file.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def sbatch(tmp_path, monkeypatch):
    """A stub of Slurm; what was submitted is in the file `script`."""
    folder = tmp_path / 'bin'
    folder.mkdir()
    program(folder, 'srun', 'exit 1')
    script = tmp_path / 'script'
    program(folder, 'sbatch', f'cp "$1" {script}\necho Submitted batch job 77')
    monkeypatch.setenv('PATH', f'{folder}:{os.environ["PATH"]}')
    return script


def test_slurm_gets_an_array_that_is_queued_again(cells, sbatch, tmp_path):
    pytest.importorskip('submitit')
    team = launch.workers(cells, 3, began=0.0, here=False)
    parameters = {'partition': 'gpu', 'time': 90, 'gpus_per_node': 1}
    ids = launch.slurm(team, tmp_path / 'logs', 'heads', parameters)
    assert ids == ['77_0', '77_1', '77_2']
    lines = sbatch.read_text('utf-8').splitlines()
    for line in (
        '#SBATCH --array=0-2%3',
        '#SBATCH --job-name=heads',
        '#SBATCH --partition=gpu',
        '#SBATCH --time=90',
        '#SBATCH --gpus-per-node=1',
        '#SBATCH --requeue',
        '#SBATCH --signal=USR2@90',
        '#SBATCH --open-mode=append',
    ):
        assert line in lines
    assert sum('submitit.core._submit' in line for line in lines) == 1
    pickles = sorted(file.name for file in (tmp_path / 'logs').glob('*_submitted.pkl'))
    assert pickles == [f'77_{i}_submitted.pkl' for i in range(3)]


@pytest.mark.parametrize('name', ['partitoin', 'gpus'])
def test_a_parameter_that_slurm_does_not_have_is_refused(cells, sbatch, tmp_path, name):
    pytest.importorskip('submitit')
    team = launch.workers(cells, 2, began=0.0, here=False)
    with pytest.raises(UserError, match=f'--slurm: .*{name}'):
        launch.slurm(team, tmp_path / 'logs', 'heads', {name: 'gpu'})
    assert not sbatch.exists()


def test_without_slurm_nothing_is_queued(cells, tmp_path, monkeypatch):
    pytest.importorskip('submitit')
    monkeypatch.setenv('PATH', str(tmp_path))
    with pytest.raises(UserError, match='there is no sbatch and srun here'):
        launch.slurm(launch.workers(cells, 2, 0.0, False), tmp_path, 'heads', {})
