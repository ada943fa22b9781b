"""Tests of training with several processes, with two simulated devices each."""

import argparse
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pages
import pytest
import small_runs

from experiments.runtime import processes

TIMEOUT = 3600  # seconds, many times the time of a test on a busy machine
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
def test_cluster_variables_set_count_and_index(environ, expected, monkeypatch):
    monkeypatch.setattr(os, 'environ', environ)
    assert processes._cluster()[1:3] == expected


def test_single_process_needs_no_coordinator():
    parser = argparse.ArgumentParser()
    processes.add_flags(parser)
    processes.initialize(parser.parse_args([]))
    assert processes.count() == 1 and processes.is_first()
    assert processes.gather([1]) == [[1]]
    assert processes.from_first(lambda: 2) == 2
    processes.check_same('text', {'a': 1})
    processes.barrier('a')
    processes.leave()


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
    assert processes.from_first(lambda: f'from {processes.index()}') == 'from 0'
    processes.check_same('text', {'a': 1})
    processes.barrier('end')
    processes.check_same('config', {'same': 1, 'index': processes.index()})
"""
ARRIVE_LATE = """
    import numpy as np
    from jax.sharding import PartitionSpec
    from experiments.runtime import mesh
    devices = mesh.make_mesh(fsdp=2)
    for axis in ('data', 'fsdp'):
        sharding = devices.rows().update(spec=PartitionSpec(axis))
        x = mesh.put(np.arange(2.0), sharding)
        if processes.is_first():
            time.sleep(40)
        print(mesh.fetch(x))
    processes.leave()
"""
WAIT = """
    print('connected', flush=True)
    time.sleep(0 if processes.index() in (ENDING,) else 3600)
    print('ends', flush=True)
    processes.leave()
"""


def start_all(text, number=2):
    command = [sys.executable, '-c', START + text]
    return [start(command, *flags) for flags in process_flags(number)]


def test_two_processes_exchange_values_and_end_at_a_difference():
    statuses, outputs = zip(*map(wait, start_all(EXCHANGE)), strict=True)
    assert all(statuses)
    out = ''.join(outputs)
    assert 'error: process ' in out
    assert 'process 1 and process 0 differ in their config' in out
    assert 'index is 1, not 0' in out and 'same is' not in out


@pytest.mark.slow
def test_processes_wait_for_a_late_one():
    for status, out in map(wait, start_all(ARRIVE_LATE)):
        assert status == 0, out
        assert re.findall(r'^\[\d.*', out, re.MULTILINE) == ['[0. 1.]'] * 2


@pytest.mark.slow
@pytest.mark.parametrize(('killed', 'ending'), [(0, None), (1, None), (0, 1)])
def test_killed_process_ends_all_others(killed, ending):
    group = start_all(WAIT.replace('ENDING', str(ending)), number=3)
    for process in group:
        wait_for_line(process, 'connected')
    if ending is not None:
        wait_for_line(group[ending], 'ends')
    group[killed].kill()
    assert all(status for status, _ in map(wait, group))


def process_flags(number):
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
        cwd=pages.ROOT,
        env=os.environ | {'XLA_FLAGS': xla_flags},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait(process):
    out, _ = process.communicate(timeout=TIMEOUT)
    return process.returncode, out


def wait_for_line(process, prefix):
    """Waits until a process prints a line with this prefix, or ends."""
    for line in process.stdout:
        if line.startswith(prefix):
            return


@pytest.fixture
def start_run(short_text):
    """Starts the processes of a run and kills the remaining ones at the end."""
    started = []

    def start_run(workdir, number=2, devices=2, changes=(), full=None, **fields):
        group = []
        for i, flags in enumerate(process_flags(number)):
            changed = fields | (changes[i] if changes else {})
            program = ['-m', 'experiments.run']
            if full is not None:
                program = ['-c', FULL_DISK.replace('FULL', str(i == full))]
            argv = small_runs.arguments(short_text, workdir, **changed)
            command = [sys.executable, *program]
            group.append(start(command, *argv, *flags, devices=devices))
        started.extend(group)
        return group

    yield start_run
    for process in started:
        process.kill()
        process.communicate()


def finish(group):
    """Waits for processes that must succeed; returns the output of the first."""
    statuses, outputs = zip(*map(wait, group), strict=True)
    assert not any(statuses), outputs
    assert not any('step' in out for out in outputs[1:])
    return outputs[0]


def check_close(path, other):
    rows, expected = small_runs.rows(path), small_runs.rows(other)
    assert len(rows) == len(expected)
    for row, other_row in zip(rows, expected, strict=True):
        assert row.keys() == other_row.keys()
        for name, value in other_row.items():
            if isinstance(value, float):
                np.testing.assert_allclose(row[name], value, rtol=1e-4, err_msg=name)
            else:
                assert row[name] == value, name


def wait_for_step(workdir, step):
    deadline = time.monotonic() + TIMEOUT
    while not any(row['step'] >= step for row in small_runs.rows(workdir)):
        assert time.monotonic() < deadline, f'no step {step} yet'
        time.sleep(0.2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ('number', 'fields'),
    [(2, {}), (2, {'mesh.fsdp': 4}), (4, {}), (4, {'mesh.fsdp': 2})],
    ids=str,
)
def test_several_processes_train_as_one(
    start_run, trained_run, tmp_path, number, fields
):
    path = tmp_path / 'run'
    out = finish(start_run(path, number, devices=4 // number, **fields))
    assert 'finished: step 12' in out
    check_close(path, trained_run)
    names = [{file.name for file in x.iterdir()} for x in (path, trained_run)]
    assert names[0] == names[1]
    # Only the first process calls the hooks.
    assert len(list((path / 'tensorboard').iterdir())) == 1


@pytest.mark.slow
def test_several_processes_start_from_another_run(
    start_run, trained_run, short_text, tmp_path
):
    fields = {'mesh.fsdp': 2, 'mesh.tensor': 2, 'model.scan_layers': True}
    fields |= {'init_from': trained_run, 'train.freeze': 'encoder'}
    argv = small_runs.arguments(short_text, tmp_path / 'one', **fields)
    small_runs.train(tmp_path / 'one', *argv[2:])
    finish(start_run(tmp_path / 'two', **fields))
    check_close(tmp_path / 'two', tmp_path / 'one')
    records = [(tmp_path / name / 'init.json').read_bytes() for name in ('one', 'two')]
    assert records[0] == records[1]


@pytest.mark.slow
@pytest.mark.parametrize(('number', 'resumed'), [(2, 1), (4, 2), (1, 4)])
def test_sigterm_to_one_process_saves_all_and_another_number_resumes(
    start_run, trained_run, tmp_path, number, resumed
):
    path = tmp_path / 'run'
    group = start_run(path, number, devices=4 // number)
    wait_for_step(path, 2)
    group[-1].send_signal(signal.SIGTERM)
    (status, out), *others = map(wait, group)
    statuses = [status, *(other for other, _ in others)]
    assert statuses == [-signal.SIGTERM] * number, out
    assert 'Stopped; saved at step' in out
    out = finish(start_run(path, resumed, devices=4 // resumed))
    assert 'resuming at step' in out
    check_close(path, trained_run)


@pytest.mark.slow
def test_kills_at_random_times_change_no_bit(start_run, tmp_path):
    """Kills one of two processes; the environment variable `KILLS` sets how often."""
    # The second run finds its programs in the cache, like those that are killed.
    for name in ('first', 'expected'):
        group = start_run(tmp_path / name)
        wait_for_line(group[0], 'run ')
        start_time = time.monotonic()
        finish(group)
        seconds = time.monotonic() - start_time
    expected = small_runs.result(tmp_path / 'expected')['parameters_sha256']
    rng = random.Random(0)
    kills, finished, path = 0, 0, tmp_path / 'killed 0'
    while kills < int(os.environ.get('KILLS', '10')):
        group = start_run(path)
        wait_for_line(group[0], 'run ')
        time.sleep(rng.uniform(0, seconds))
        killed = rng.randrange(2)
        group[killed].kill()
        (killed_status, _), (status, out) = wait(group[killed]), wait(group[1 - killed])
        if (path / 'result.json').exists():  # the kill came too late
            assert small_runs.result(path)['parameters_sha256'] == expected
            finished += 1
            path = tmp_path / f'killed {finished}'
        else:
            assert killed_status == -signal.SIGKILL and status, out
            kills += 1
    finish(start_run(path))
    assert small_runs.result(path)['parameters_sha256'] == expected


# `experiments.run` with a disk that is full at the checkpoint of step 8.
FULL_DISK = """
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
def test_full_disk_of_one_process_ends_all_and_keeps_the_last_checkpoint(
    start_run, trained_run, tmp_path, full
):
    path = tmp_path / 'run'
    fields = {'mesh.fsdp': 4}  # each process writes a shard
    (status, out), (other, other_out) = map(wait, start_run(path, full=full, **fields))
    assert status and other, out + other_out
    assert 'cannot write' in out + other_out
    assert re.search('resuming at step [46]', finish(start_run(path, **fields)))
    check_close(path, trained_run)


@pytest.mark.slow
@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        (({}, {'model.d_ff': 16}), 'differ in their command: model.d_ff is 16'),
        (({'model.num_heads': 3},) * 2, 'num_heads'),
        (({'model.nothing': 1},) * 2, 'model.nothing'),
        (({'mesh.fsdp': 3},) * 2, 'mesh.fsdp=3 .*multiply to the number of devices'),
        (({'mesh.fsdp': 4, 'model.d_model': 18},) * 2, 'mesh.fsdp=4 shards no'),
    ],
)
def test_invalid_input_ends_all_processes_and_writes_nothing(
    start_run, tmp_path, changes, message
):
    (status, out), (other, other_out) = map(
        wait, start_run(tmp_path / 'run', changes=changes)
    )
    assert status and other, out + other_out
    assert re.search(f'error: .*{message}', out + other_out)
    assert not (tmp_path / 'run').exists()
