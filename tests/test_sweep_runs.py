"""A sweep end to end: its runs are those of the command line, here and in workers."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import small_runs
from test_run import SMALL

from experiments import sweep
from experiments.command_line import flags
from experiments.command_line.screen import Screen
from experiments.command_line.stopping import Stop
from experiments.runs import metrics_log
from experiments.sweeps import schema
from experiments.training import whole_run

ROOT = Path(__file__).parents[1]


pytestmark = pytest.mark.usefixtures('cache')


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with parallel text."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'text').mkdir()
    small_runs.write_text(tmp_path / 'text', val=4)
    return tmp_path


def write_sweep(folder, arms, **overrides):
    fields = dict(
        question='How many heads?',
        source='Vaswani et al. 2017',
        config='configs/wmt_small.py',
        overrides=SMALL
        | {'data': small_runs.source('text')}
        | {'evaluation.every': 0}
        | overrides,
        arms=arms,
        seeds=(0, 1),
        base=next(iter(arms)),
        measure='val loss',
    )
    file = folder / 'heads.py'
    file.write_text(f'def get_config():\n    return {fields!r}\n', encoding='utf-8')
    return file


def run_sweep(monkeypatch, file, *arguments):
    """The exit status of the command in this process."""
    monkeypatch.setattr(sys, 'argv', ['sweep', f'--config={file}', *arguments])
    try:
        sweep.main()
    except SystemExit as ended:
        return ended.code
    return 0


ARMS = {
    'base': {},
    'diverges': {'optimizer.schedule': 'constant_schedule(value=1e30)'},
    'fails': {'model.positions': 'learned(max_length=3)'},
}


@pytest.mark.slow
def test_one_process_makes_all_runs_and_an_arm_that_fails_stops_none(
    folder, monkeypatch, capsys
):
    file = write_sweep(folder, ARMS)
    assert run_sweep(monkeypatch, file) == 1
    out, err = capsys.readouterr()
    cells = schema.cells(schema.load(file))
    good, other, diverged, *_ = [cell.path for cell in cells]
    assert '[1/6] base, seed 0: val loss ' in out
    assert '[3/6] diverges, seed 0: diverged: loss or gradient not finite' in out
    assert [line.split()[:3] for line in out.splitlines()[-3:]] == [
        ['base', '2', 'finished'],
        ['diverges', '2', 'diverged'],
        ['fails', '2', 'unfinished'],
    ]
    assert 'positions of the model have places for 3' in err
    entry = json.loads((diverged / 'failure.json').read_text('utf-8'))
    assert entry['status'] == 'diverged' and entry['step'] >= 1
    # The first is the run that the command line makes, bit for bit.
    settings = flags.settings('configs/wmt_small.py', arguments_of(cells[0]))
    alone = whole_run.Run(settings.config, folder / 'alone')
    whole_run.run([alone], settings.overrides, Screen(), Stop())
    first = json.loads((good / 'result.json').read_text('utf-8'))
    second = json.loads((other / 'result.json').read_text('utf-8'))
    by_itself = json.loads((folder / 'alone' / 'result.json').read_text('utf-8'))
    assert by_itself['parameters_sha256'] == first['parameters_sha256']
    assert by_itself['evaluations'] == first['evaluations']
    assert second['parameters_sha256'] != first['parameters_sha256']
    again(monkeypatch, capsys, file, good)


def arguments_of(cell):
    return [f'--config.{field}={value}' for field, value in cell.overrides.items()]


def again(monkeypatch, capsys, file, finished):
    """What has ended stays as it is; what is unfinished is tried again."""
    before = (finished / 'result.json').stat().st_mtime_ns
    assert run_sweep(monkeypatch, file) == 1
    out, _ = capsys.readouterr()
    assert '4 of 6 runs have ended before' in out
    assert '[' not in out
    assert (finished / 'result.json').stat().st_mtime_ns == before


def test_a_dry_run_shows_all_and_writes_nothing(folder, monkeypatch, capsys):
    file = write_sweep(folder, {'base': {}, 'heads=4': {'model.num_heads': 4}})
    assert run_sweep(monkeypatch, file, '--dry_run', '--workers=2') == 0
    out, _ = capsys.readouterr()
    for cell in schema.cells(schema.load(file)):
        assert str(cell.path) in out
    assert 'How many heads?' in out and 'with 2 of --workers' in out
    assert not (folder / 'runs').exists()


@pytest.mark.parametrize(
    ('arms', 'message'),
    [
        ({'base': {'model.d_k': 0}}, "arm 'base': model.d_k must be"),
        ({'base': {'model.attention': 'sofmax'}}, "arm 'base': .*softmax"),
        (
            {'base': {'model.residual': 'rezero', 'model.norm': 'rms'}},
            "arm 'base': model.norm=rms changes nothing",
        ),
    ],
)
def test_what_cannot_be_is_said_before_anything_runs(
    folder, monkeypatch, arms, message
):
    file = write_sweep(folder, arms)
    with pytest.raises(flags.UserError, match=message):
        run_sweep(monkeypatch, file)
    assert not (folder / 'runs').exists()


@pytest.mark.parametrize(
    'arguments', [['--workers=0'], ['--launcher=pbs'], ['--slurm', 'partition']]
)
def test_flags_that_cannot_be_are_refused(folder, monkeypatch, arguments):
    file = write_sweep(folder, {'base': {}})
    with pytest.raises(flags.UserError, match=arguments[0].split('=')[0]):
        run_sweep(monkeypatch, file, *arguments)


@pytest.fixture
def start(folder):
    """Starts the command in a process; one that is left at the end is stopped."""
    started = []

    def start(file, *arguments):
        command = [sys.executable, '-m', 'experiments.sweep', f'--config={file}']
        path = f'{ROOT}:{os.environ.get("PYTHONPATH", "")}'
        process = subprocess.Popen(
            [*command, *arguments],
            cwd=folder,
            env=os.environ | {'PYTHONPATH': path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.terminate()
            process.communicate()


def step_of(path):
    return max((row['step'] for row in metrics_log.read_rows(path)), default=0)


def wait_for(condition, seconds=300):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.slow
def test_local_workers_share_the_runs_stop_and_go_on(folder, start):
    pytest.importorskip('submitit')
    file = write_sweep(folder, {'base': {}}, **{'train.steps': 400})
    cells = schema.cells(schema.load(file))
    paths = [folder / cell.path for cell in cells]
    process = start(file, '--workers=2')
    wait_for(lambda: all(step_of(path) for path in paths))
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, out
    assert 'stopped; the same command goes on from there' in out
    for path in paths:
        assert not (path / 'result.json').exists()
        assert list((path / 'checkpoints').glob('[0-9]*')), 'nothing was saved'
    process = start(file, '--workers=2')
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    assert '[2/2]' in out
    for path in paths:
        assert json.loads((path / 'result.json').read_text('utf-8'))['step'] == 400


@pytest.mark.slow
def test_a_preempted_worker_saves_is_queued_again_and_goes_on(folder, start):
    pytest.importorskip('submitit')
    file = write_sweep(folder, {'base': {}}, **{'train.steps': 400})
    paths = [folder / cell.path for cell in schema.cells(schema.load(file))]
    process = start(file, '--workers=2')
    wait_for(lambda: step_of(paths[0]) > 0)
    holder = (paths[0] / '.lock').read_text('utf-8')
    number = int(holder.split()[1])
    os.kill(number, signal.SIGUSR2)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    assert int((paths[0] / '.lock').read_text('utf-8').split()[1]) != number
    logs = (folder / 'runs' / '.sweeps' / 'heads').glob('*.out')
    text = ''.join(log.read_text('utf-8') for log in logs)
    assert 'Requeued job' in text and 'resuming at step' in text
