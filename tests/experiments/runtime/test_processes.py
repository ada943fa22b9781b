"""Tests of training with several processes, with two simulated devices each."""

import argparse
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import small_runs

from experiments.runtime import processes as group

ROOT = Path(__file__).parents[3]
FIELDS: dict[str, object] = {**small_runs.SHORT}
HANGS = 3600  # seconds; many times what anything here takes on a busy machine
CLOCKS = ('time', 'tokens_per_second', 'seconds')
pytestmark = pytest.mark.usefixtures('cache')

SLURM = {
    'SLURM_JOB_ID': '7',
    'SLURM_STEP_NODELIST': 'node[1-2]',
    'SLURM_NTASKS': '8',
    'SLURM_PROCID': '5',
    'SLURM_LOCALID': '1',
}
MPI = {
    'OMPI_MCA_orte_hnp_uri': '1.0;tcp://10.0.0.1:1',
    'OMPI_COMM_WORLD_SIZE': '4',
    'OMPI_COMM_WORLD_RANK': '2',
    'OMPI_COMM_WORLD_LOCAL_RANK': '0',
}


@pytest.mark.parametrize(
    ('environ', 'expected'),
    [
        ({}, (None, None)),
        (SLURM | {'SLURM_STEP_NUM_TASKS': '8'}, (8, 5)),
        (SLURM, (None, None)),  # a batch script without srun
        (MPI, (4, 2)),
        (SLURM | MPI, (4, 2)),
        ({'KUBERNETES_SERVICE_HOST': '10.0.0.1'}, (None, None)),
    ],
)
def test_a_cluster_gives_each_process_its_place(environ, expected, monkeypatch):
    monkeypatch.setattr(os, 'environ', environ)
    assert group._cluster()[1:3] == expected


def arguments(flags):
    parser = argparse.ArgumentParser()
    group.add_flags(parser)
    return parser.parse_args(flags.split())


def test_a_process_alone_needs_nobody():
    group.initialize(arguments(''))
    assert group.count() == 1 and group.is_first()
    assert group.gather([1]) == [[1]]
    assert group.from_first(lambda: 2) == 2
    group.check_same('text', {'a': 1})
    group.barrier('a')
    group.leave()


START = """
import argparse, sys, time
from experiments.runtime import processes
parser = argparse.ArgumentParser()
processes.add_flags(parser)
processes.initialize(parser.parse_args())
with processes.errors_end_all():
"""
EXCHANGE = """
    assert processes.gather(processes.index()) == [0, 1]
    assert processes.from_first(lambda: f'of {processes.index()}') == 'of 0'
    processes.check_same('text', {'a': 1})
    processes.barrier('end')
    processes.check_same('config', {'same': 1, 'index': processes.index()})
"""
COMES_LATE = """
    import numpy as np
    from jax.sharding import PartitionSpec
    from experiments.runtime import mesh
    devices = mesh.make_mesh(fsdp=2)
    for axis in ('data', 'fsdp'):
        divided = devices.rows().update(spec=PartitionSpec(axis))
        x = mesh.put(np.arange(2.0), divided)
        if processes.is_first():
            time.sleep(40)
        print(mesh.fetch(x))
    processes.leave()
"""
WAITS = """
    print('connected', flush=True)
    time.sleep(0 if processes.index() in (ENDING,) else 3600)
    print('ends', flush=True)
    processes.leave()
"""


def begin_each(text, number=2):
    command = [sys.executable, '-c', START + text]
    return [start(command, *flags) for flags in places(number)]


def test_two_processes_exchange_and_what_differs_ends_both():
    found = [ended(process) for process in begin_each(EXCHANGE)]
    assert all(status for status, _ in found)
    told = ''.join(out for _, out in found)
    assert (
        'error: process ' in told
        and 'process 1 and process 0 differ in their config' in told
    )
    assert 'index is 1, not 0' in told and 'same is' not in told


@pytest.mark.slow
def test_processes_wait_for_one_that_is_late():
    for status, out in [ended(process) for process in begin_each(COMES_LATE)]:
        assert status == 0, out
        assert re.findall(r'^\[\d.*', out, re.MULTILINE) == ['[0. 1.]'] * 2


@pytest.mark.slow
@pytest.mark.parametrize(('dies', 'ending'), [(0, None), (1, None), (0, 1)])
def test_a_death_ends_all_within_two_minutes(dies, ending):
    processes = begin_each(WAITS.replace('ENDING', str(ending)), number=3)
    for process in processes:
        wait_for_line(process, 'connected')
    if ending is not None:
        wait_for_line(processes[ending], 'ends')
    processes[dies].kill()
    began = time.monotonic()
    assert all(status for status, _ in map(ended, processes))
    assert time.monotonic() - began < 120


def places(number):
    if number == 1:
        return [[]]
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = free.getsockname()[1]
    coordinator = f'--coordinator=127.0.0.1:{port}'
    return [
        [coordinator, f'--processes={number}', f'--process={i}'] for i in range(number)
    ]


def start(command, *arguments, devices=2):
    count = '--xla_force_host_platform_device_count'
    xla_flags = os.environ['XLA_FLAGS'].replace(f'{count}=4', f'{count}={devices}')
    return subprocess.Popen(
        [*command, *arguments],
        cwd=ROOT,
        env=os.environ | {'XLA_FLAGS': xla_flags},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for_line(process, beginning):
    """Waits until a process prints a line with this prefix, or ends."""
    for line in process.stdout:
        if line.startswith(beginning):
            return


def ended(process):
    out, _ = process.communicate(timeout=HANGS)
    return process.returncode, out


@pytest.fixture(scope='module')
def text(tmp_path_factory):
    return small_runs.write_text(tmp_path_factory.mktemp('text'), val=4, news=3)


@pytest.fixture
def begin(text):
    """Starts the processes of a run and kills the remaining ones at the end."""
    begun = []

    def begin(workdir, number=2, devices=2, late=0, changes=(), full=None, **fields):
        processes = []
        for i, flags in enumerate(places(number)):
            time.sleep(late if i else 0)
            changed = FIELDS | {'data': small_runs.source(text)} | fields
            own = changes[i] if changes else {}
            arguments = small_runs.flags(changed, **own)
            run = ['-c', DISK_FILLS.replace('FULL', str(i == full))]
            if full is None:
                run = ['-m', 'experiments.run']
            command = [sys.executable, *run, '--config=wmt_small']
            where = f'--workdir={workdir}'
            processes.append(start(command, where, *arguments, *flags, devices=devices))
        begun.extend(processes)
        return processes

    yield begin
    for process in begun:
        process.kill()
        process.communicate()


def figures(workdir):
    # A last line may not be whole yet.
    *lines, _ = (workdir / 'metrics.jsonl').read_text('utf-8').split('\n')
    rows = [json.loads(line) for line in lines]
    return [{k: v for k, v in row.items() if k not in CLOCKS} for row in rows]


def assert_close(found, expected):
    assert len(found) == len(expected)
    for row, other in zip(found, expected, strict=True):
        assert row.keys() == other.keys()
        for name, value in other.items():
            if isinstance(value, float):
                np.testing.assert_allclose(row[name], value, rtol=1e-4, err_msg=name)
            else:
                assert row[name] == value, name


def wait_for_step(workdir, step):
    until = time.monotonic() + HANGS
    while not any(row['step'] >= step for row in steps_of(workdir)):
        assert time.monotonic() < until, f'no step {step} yet'
        time.sleep(0.2)


def steps_of(workdir):
    return figures(workdir) if (workdir / 'metrics.jsonl').exists() else []


@pytest.fixture(scope='module')
def alone(text, tmp_path_factory):
    workdir = tmp_path_factory.mktemp('runs') / 'alone'
    fields = FIELDS | {'data': small_runs.source(text)}
    small_runs.train(workdir, *small_runs.flags(fields))
    return workdir


@pytest.mark.slow
@pytest.mark.parametrize(
    ('number', 'fields'),
    [(2, {}), (2, {'mesh.fsdp': 4}), (4, {}), (4, {'mesh.fsdp': 2})],
    ids=str,
)
def test_several_processes_train_as_one_does(begin, alone, tmp_path, number, fields):
    processes = begin(tmp_path / 'run', number, devices=4 // number, **fields)
    (status, out), *others = map(ended, processes)
    assert [status, *(other for other, _ in others)] == [0] * number, out
    assert 'finished: step 12' in out
    assert not any('step' in silence for _, silence in others)
    assert_close(figures(tmp_path / 'run'), figures(alone))
    assert {path.name for path in alone.iterdir()} == {
        path.name for path in (tmp_path / 'run').iterdir()
    }
    # Of the first alone, which calls the hooks.
    assert len(list((tmp_path / 'run' / 'tensorboard').iterdir())) == 1


@pytest.mark.slow
def test_processes_begin_with_what_another_run_has(begin, alone, text, tmp_path):
    fields = {'mesh.fsdp': 2, 'mesh.tensor': 2, 'model.scan_layers': True}
    fields |= {'init_from': alone, 'train.freeze': 'encoder'}
    every_field = FIELDS | {'data': small_runs.source(text)} | fields
    small_runs.train(tmp_path / 'one', *small_runs.flags(every_field))
    (status, out), (other, silence) = map(ended, begin(tmp_path / 'two', **fields))
    assert (status, other) == (0, 0), out + silence
    assert_close(figures(tmp_path / 'two'), figures(tmp_path / 'one'))
    records = [(tmp_path / name / 'init.json').read_bytes() for name in ('one', 'two')]
    assert records[0] == records[1]


@pytest.mark.slow
@pytest.mark.parametrize(('number', 'then'), [(2, 1), (4, 2), (1, 4)])
def test_a_stop_of_one_saves_all_and_another_number_of_processes_goes_on(
    begin, alone, tmp_path, number, then
):
    workdir = tmp_path / 'run'
    processes = begin(workdir, number, devices=4 // number)
    wait_for_step(workdir, 2)
    processes[-1].send_signal(signal.SIGTERM)
    (status, out), *others = map(ended, processes)
    assert [status, *(other for other, _ in others)] == [-signal.SIGTERM] * number, out
    assert 'Stopped; saved at step' in out
    (status, out), *_ = map(ended, begin(workdir, then, devices=4 // then))
    assert status == 0 and 'resuming at step' in out, out
    assert_close(figures(workdir), figures(alone))


def parameters(workdir):
    return json.loads((workdir / 'result.json').read_bytes())['parameters_sha256']


@pytest.mark.slow
def test_kills_at_random_times_change_no_bit(begin, tmp_path):
    """Kills one of two processes; the environment variable `KILLS` sets how often."""
    # The second finds its programs in the cache, as do those that are killed.
    for name in ('first', 'unbroken'):
        processes = begin(tmp_path / name)
        wait_for_line(processes[0], 'run ')
        began = time.monotonic()
        assert [status for status, _ in map(ended, processes)] == [0, 0]
        seconds = time.monotonic() - began
    rng = random.Random(0)
    killed, ended_early, run = 0, 0, tmp_path / 'killed 0'
    while killed < int(os.environ.get('KILLS', '10')):
        processes = begin(run)
        wait_for_line(processes[0], 'run ')
        time.sleep(rng.uniform(0, seconds))
        dies = rng.randrange(2)
        processes[dies].kill()
        (dead, _), (status, out) = ended(processes[dies]), ended(processes[1 - dies])
        if (run / 'result.json').exists():  # it was over before
            assert parameters(run) == parameters(tmp_path / 'unbroken')
            ended_early += 1
            run = tmp_path / f'killed {ended_early}'
        else:
            assert dead == -signal.SIGKILL and status, out
            killed += 1
    assert [status for status, _ in map(ended, begin(run))] == [0, 0]
    assert parameters(run) == parameters(tmp_path / 'unbroken')


# `experiments.run`, for which the disk is full when it writes the checkpoint of step 8.
DISK_FILLS = """
import resource, runpy
from experiments.checkpoints import checkpoints
from experiments.checkpoints.checkpoints import Checkpoints
checkpoints._UPLOAD_SECONDS = 20
save = Checkpoints.save
def fill_and_save(self, step, *arguments, **named):
    if step == 8 and FULL:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
    return save(self, step, *arguments, **named)
Checkpoints.save = fill_and_save
runpy.run_module('experiments.run', run_name='__main__')
"""


@pytest.mark.slow
@pytest.mark.parametrize('full', [0, 1])
def test_a_disk_that_fills_for_one_ends_all_and_the_last_checkpoint_stays(
    begin, alone, tmp_path, full
):
    workdir = tmp_path / 'run'
    fields = {'mesh.fsdp': 4}  # of which each process has a part to write
    (status, out), (other, silence) = map(ended, begin(workdir, full=full, **fields))
    assert status and other, out + silence
    assert 'cannot write' in out + silence
    (status, out), (other, silence) = map(ended, begin(workdir, **fields))
    assert (status, other) == (0, 0), out + silence
    assert re.search('resuming at step [46]', out)
    assert_close(figures(workdir), figures(alone))


@pytest.mark.slow
@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        (
            ({}, {'model__d_ff': 16}),
            'differ in their command .*model.d_ff is 16, not 32',
        ),
        (({'model__num_heads': 3},) * 2, 'num_heads'),
        (({'model__nothing': 1},) * 2, 'model.nothing'),
        (({'mesh__fsdp': 3},) * 2, 'mesh.fsdp=3 .*multiply to the 4 devices'),
        (({'mesh__fsdp': 4, 'model__d_model': 18},) * 2, 'mesh.fsdp=4 divides no'),
    ],
)
def test_bad_input_ends_all_and_nothing_is_written(begin, tmp_path, changes, message):
    workdir = tmp_path / 'run'
    (status, out), (other, silence) = map(ended, begin(workdir, changes=changes))
    assert status and other, out + silence
    assert re.search(f'error: .*{message}', out + silence)
    assert not workdir.exists()
