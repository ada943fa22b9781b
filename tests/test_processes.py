"""Several processes train what one does, and what ends one ends all.

They are two, of two simulated devices each, and exchange their parts by gloo.
"""

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
from types import SimpleNamespace

import numpy as np
import pytest
import small_runs
from experiments.runtime.processes.place import Place

from experiments import storage
from experiments.config.schema import ExperimentConfig
from experiments.errors import UserError
from experiments.runtime.processes import group, place
from experiments.training import setup, whole_run

ROOT = Path(__file__).parents[1]
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
}
TPU = {'TPU_WORKER_HOSTNAMES': 'a,b,c,d', 'TPU_WORKER_ID': '3'}
SLICES = TPU | {'MEGASCALE_NUM_SLICES': '2', 'MEGASCALE_SLICE_ID': '1'}


@pytest.mark.parametrize(
    ('environ', 'expected'),
    [
        ({}, Place()),
        (SLURM | {'SLURM_STEP_NUM_TASKS': '8'}, Place(8, 5)),
        (SLURM, Place()),  # a batch script without srun
        (SLURM | {'SLURM_STEP_NUM_TASKS': '1', 'SLURM_PROCID': '0'}, Place()),
        (MPI, Place(4, 2)),
        (TPU, Place(4, 3)),
        (SLICES, Place(8, 7)),
        ({'TPU_WORKER_HOSTNAMES': 'localhost'}, Place()),
    ],
)
def test_a_cluster_gives_each_process_its_place(environ, expected):
    assert place.find(['--config=a'], environ) == expected


def test_flags_come_before_the_cluster():
    flags = ['--coordinator=h:1', '--processes', '3', '--config=a', '--process=2']
    assert place.find(flags, MPI) == Place(3, 2, 'h:1')


@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        ('--processes=2 --process=0', '--coordinator: missing'),
        (
            '--coordinator=h --processes=2 --process=0',
            '--coordinator=h: give host:port',
        ),
        ('--coordinator=h:1 --processes=two --process=0', '--processes=two: .* from 1'),
        ('--coordinator=h:1 --processes=2 --process=2', '--process=2: .* from 0 to 1'),
        ('--coordinator=h:1 --processes=2 --process', '--process=: .* from 0 to 1'),
    ],
)
def test_a_place_that_cannot_be_is_refused(flags, message):
    with pytest.raises(UserError, match=message):
        place.find(flags.split(), {})


def test_a_process_alone_needs_nobody():
    assert group.count() == 1 and group.is_first()
    group.start()
    assert not group.is_connected()
    assert group.gather('a', [1]) == [[1]]
    assert group.from_first('a', lambda: 2) == 2
    group.check_same('text', {'a': 1})
    group.barrier('a')
    code = (
        'import sys; from experiments.runtime.processes import endings, group;'
        'group.start(); assert "jax" not in sys.modules'
    )
    subprocess.run([sys.executable, '-c', code], cwd=ROOT, check=True)


def test_drafts_of_another_host_are_left_to_it(tmp_path):
    mine = tmp_path / f'.a.{storage.HOST}.{2**22 + 1}.tmp'  # larger than any process id
    others = tmp_path / f'.a.elsewhere.{2**22 + 1}.tmp'
    for draft in (mine, others):
        draft.write_text('half')
    storage.sweep(tmp_path, held=False)
    assert not mine.exists() and others.exists()


@pytest.mark.parametrize('what', ['code', 'config', 'command'])
def test_processes_that_were_not_started_alike_are_refused(what, tmp_path, monkeypatch):
    def gather(name, facts):
        return [facts, facts | {list(facts)[-1]: 'else'} if name == what else facts]

    monkeypatch.setattr(group, 'count', lambda: 2)
    monkeypatch.setattr(group, 'gather', gather)
    runs = [whole_run.Run(ExperimentConfig(), tmp_path)]
    with pytest.raises(UserError, match=f'of 2 has another {what} than .* is "else"'):
        whole_run._check_same_command(runs, False)


@pytest.mark.parametrize('changed', ['tokenizer', 'pairs', 'dev', 'sets'])
def test_every_text_of_a_run_counts_in_what_processes_compare(changed):
    """`whole_run` compares it as `text`."""

    def digests(**texts):
        tokens = SimpleNamespace(digest=texts.get('tokenizer'))
        pairs = SimpleNamespace(digest=texts.get('pairs'))
        dev = ('dev', [(texts.get('dev'), 'b')])
        sets = {'test': [(texts.get('sets'), 'b')]}
        made = SimpleNamespace(tokenizer=tokens, pairs=pairs, dev=dev, sets=sets)
        return setup.digests(made)

    assert digests() == digests()
    assert digests() != digests(**{changed: 'c'})


EXCHANGE = """
import sys
from experiments.errors import UserError
from experiments.runtime.processes import endings, group
with endings.together(sys.argv[1:]):
    endings.connect()
    assert group.gather('index', group.index()) == [0, 1]
    assert group.from_first('word', lambda: f'of {group.index()}') == 'of 0'
    group.check_same('text', {'a': 1})
    group.barrier('end')
    group.check_same('config', {'same': 1, 'index': group.index()})
"""


def test_two_processes_exchange_and_what_differs_ends_both():
    both = [
        start([sys.executable, '-c', EXCHANGE], *flags) for flags in places(number=2)
    ]
    (first, out), (second, silence) = map(ended, both)
    assert first == second == 2
    assert 'error: process 1 of 2 on' in out and 'another config' in out
    assert 'index is 1, not 0' in out and 'same is' not in out
    assert 'error' not in silence


COMES_LATE = """
import sys, time
from experiments.runtime.processes import endings, group
with endings.together(sys.argv[1:]):
    endings.connect()
    import numpy as np
    from jax.sharding import PartitionSpec
    from experiments.runtime import mesh
    devices = mesh.of(fsdp=2)
    for axis in ('data', 'fsdp'):
        divided = devices.rows().update(spec=PartitionSpec(axis))
        x = mesh.put(np.arange(2.0), divided)
        if group.is_first():
            time.sleep(40)
        print(mesh.fetch(x))
"""


@pytest.mark.slow
def test_processes_wait_for_one_that_is_late():
    """As one that compiles for longer; gloo waits half a minute to connect."""
    both = [
        start([sys.executable, '-c', COMES_LATE], *flags) for flags in places(number=2)
    ]
    for status, out in map(ended, both):
        assert status == 0, out
        assert re.findall(r'^\[\d.*', out, re.MULTILINE) == ['[0. 1.]'] * 2


READS = """
import sys
from pathlib import Path
from experiments.checkpoints.folder import CheckpointFolder
from experiments.runtime.processes import endings, group
from experiments.storage import hold
with endings.together(sys.argv[1:]):
    endings.connect()
    folder = CheckpointFolder(Path(sys.argv[1]) / str(group.index()))
    for steps in ([1], [2], [1, 2], [2, 3]):
        try:
            with folder.reading(steps):
                if 3 in steps and group.is_first():
                    folder.path(3).rename(folder.path(4))
                print('reads', steps, flush=True)
        except hold.Gone:
            print('gone', steps, flush=True)
"""


@pytest.mark.slow
def test_what_the_first_cannot_read_none_of_them_reads(tmp_path):
    """As where a disk shows each what another no longer sees, and has no locks."""
    for step in (2, 3):
        (tmp_path / '0' / str(step)).mkdir(parents=True)
    (tmp_path / '1' / '1').mkdir(parents=True)
    both = [
        start([sys.executable, '-c', READS], str(tmp_path), *flags)
        for flags in places(number=2)
    ]
    for status, out in map(ended, both):
        assert status == 0, out
        told = re.findall('^(?:reads|gone) .*', out, re.MULTILINE)
        assert told == [
            'gone [1]',
            'reads [2]',
            'gone [1, 2]',
            'reads [2, 3]',
            'gone [2, 3]',
        ]


WAITS = """
import sys, time
from experiments.runtime.processes import endings
with endings.together(sys.argv[1:]):
    endings.connect()
    time.sleep(1)
    print('connected', flush=True)
    time.sleep(300)
"""


@pytest.mark.slow
@pytest.mark.parametrize('dies', [0, 1, 2])
def test_a_death_is_one_line_of_one_process_and_ends_all(dies):
    """Also where they wait for nothing of each other."""
    processes = [
        start([sys.executable, '-c', WAITS], *flags) for flags in places(number=3)
    ]
    for process in processes:
        wait_for_line(process, 'connected')
    processes[dies].kill()
    found = [ended(process) for process in processes]
    assert [status for status, _ in found] == [
        -signal.SIGKILL if i == dies else 1 for i in range(3)
    ]
    errors = [re.findall('error: .*', out) for _, out in found]
    told = [error for each in errors for error in each]
    assert len(told) == 1 and errors[1 if dies == 0 else 0] == told
    assert re.match(f'error: process {dies} of 3 on .* died; the same command', told[0])


@pytest.mark.slow
def test_one_that_waits_to_end_is_told_of_a_death():
    waits = WAITS.replace('time.sleep(300)', 'time.sleep(0 if group.index() else 300)')
    waits = waits.replace('import endings', 'import endings, group')
    processes = [
        start([sys.executable, '-c', waits], *flags) for flags in places(number=2)
    ]
    for process in processes:
        wait_for_line(process, 'connected')
    time.sleep(1)
    processes[0].kill()
    _, (status, out) = map(ended, processes)
    assert status == 1 and 'error: process 0 of 2 on' in out


def places(number):
    """The flags of each process; none for one alone."""
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
    """Until it prints a line that begins so, or has ended."""
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
    """Starts the processes of a run; what is left of them at the end is killed."""
    begun = []

    def begin(workdir, number=2, devices=2, late=0, changes=(), full=None, **fields):
        processes = []
        for i, flags in enumerate(places(number)):
            time.sleep(late if i else 0)
            changed = FIELDS | {'data': small_runs.source(text)} | fields
            own = changes[i] if changes else {}
            arguments = small_runs.flags(changed, **own)
            run = ['-c', DISK_FILLS] if i == full else ['-m', 'experiments.run']
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
    """The run of one process with four devices."""
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


@pytest.mark.slow
def test_processes_train_seeds_of_their_own(begin, text, tmp_path):
    fields = FIELDS | {'data': small_runs.source(text), 'train.replicas': 4}
    small_runs.train(tmp_path / 'one', *small_runs.flags(fields))
    processes = begin(tmp_path / 'two', **{'train.replicas': 4})
    (status, out), (other, silence) = map(ended, processes)
    assert (status, other) == (0, 0), out + silence
    for seed in range(4):
        seed_of = f'train.seed={seed}'
        assert_close(
            figures(tmp_path / 'two' / seed_of), figures(tmp_path / 'one' / seed_of)
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    'fields',
    [
        {'mesh.fsdp': 2, 'mesh.tensor': 2, 'model.scan_layers': True},
        {'train.replicas': 4},
    ],
    ids=str,
)
def test_processes_begin_with_what_another_run_has(
    begin, alone, text, tmp_path, fields
):
    """As one process does, which has all the devices."""
    fields = fields | {'init_from': alone, 'train.freeze': 'encoder'}
    every_field = FIELDS | {'data': small_runs.source(text)} | fields
    small_runs.train(tmp_path / 'one', *small_runs.flags(every_field))
    (status, out), (other, silence) = map(ended, begin(tmp_path / 'two', **fields))
    assert (status, other) == (0, 0), out + silence
    rows = sorted((tmp_path / 'one').rglob('metrics.jsonl'))
    assert len(rows) == fields.get('train.replicas', 1)
    for path in (row.parent for row in rows):
        found = tmp_path / 'two' / path.relative_to(tmp_path / 'one')
        assert_close(figures(found), figures(path))
        record = (found / 'init.json').read_bytes()
        assert record == (path / 'init.json').read_bytes()


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
    assert [status, *(other for other, _ in others)] == [143] * number, out
    assert 'stopped and saved at step' in out
    (status, out), *_ = map(ended, begin(workdir, then, devices=4 // then))
    assert status == 0 and 'resuming at step' in out, out
    assert_close(figures(workdir), figures(alone))


def parameters(workdir):
    return json.loads((workdir / 'result.json').read_bytes())['parameters_sha256']


@pytest.mark.slow
def test_kills_at_random_times_change_no_bit(begin, tmp_path):
    """Of one of two; `KILLS` in the environment says how many."""
    # The second finds its programs in the cache, as do those that are killed.
    for name in ('first', 'unbroken'):
        processes = begin(tmp_path / name)
        wait_for_line(processes[0], 'run ')
        began = time.monotonic()
        assert [status for status, _ in map(ended, processes)] == [0, 0]
        seconds = time.monotonic() - began
    rng = random.Random(0)
    killed, ended_early, run = 0, 0, tmp_path / 'killed 0'
    while killed < int(os.environ.get('KILLS', '30')):
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
            # jax may notice the death of process 0 before we do, and aborts.
            statuses = {1} if dies else {1, -signal.SIGABRT}
            assert dead == -signal.SIGKILL and status in statuses, out
            killed += 1
    assert [status for status, _ in map(ended, begin(run))] == [0, 0]
    assert parameters(run) == parameters(tmp_path / 'unbroken')


@pytest.mark.slow
@pytest.mark.parametrize('dies', [0, 1])
def test_the_death_of_one_ends_the_other_and_the_same_command_goes_on(
    begin, alone, tmp_path, dies
):
    workdir = tmp_path / 'run'
    processes = begin(workdir)
    wait_for_step(workdir, 6)
    processes[dies].kill()
    status, out = ended(processes[1 - dies])
    assert status == 1, out
    assert re.search(f'error: process {dies} of 2 on .* died; the same', out), out
    (status, out), (other, _) = map(ended, begin(workdir))
    assert (status, other) == (0, 0), out
    assert_close(figures(workdir), figures(alone))


# `experiments.run`, for which the disk is full when it writes the checkpoint of step 8.
DISK_FILLS = """
import resource, runpy
from experiments.checkpoints.checkpoints import Checkpoints
save = Checkpoints.save
def fill_and_save(self, step, *arguments, **named):
    if step == 8:
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
    assert (status, other) == (2, 2), out + silence
    errors = [line for line in out.splitlines() if 'error:' in line]
    assert len(errors) == 1 and 'error:' not in silence
    assert 'cannot write a checkpoint' in errors[0] and 'stays good' in errors[0]
    (status, out), (other, silence) = map(ended, begin(workdir, **fields))
    assert (status, other) == (0, 0), out + silence
    assert re.search('resuming at step [46]', out)
    assert_close(figures(workdir), figures(alone))


@pytest.mark.slow
def test_one_may_start_late_and_a_second_group_finds_the_run_ended(begin, tmp_path):
    workdir = tmp_path / 'run'
    assert [status for status, _ in map(ended, begin(workdir, late=15))] == [0, 0]
    before = (workdir / 'result.json').read_bytes()
    (status, out), (other, silence) = map(ended, begin(workdir))
    assert (status, other) == (0, 0) and 'finished: step 12' in out
    assert (workdir / 'result.json').read_bytes() == before and not silence


@pytest.mark.slow
@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        (({}, {'model__d_ff': 16}), 'has another config .*model.d_ff is 16, not 32'),
        (({'model__num_heads': 3},) * 2, 'num_heads'),
        (({'model__nothing': 1},) * 2, 'the config has no field'),
        (({'mesh__fsdp': 3},) * 2, 'mesh.fsdp=3 .*does not divide the 4 devices'),
        (({'mesh__fsdp': 4, 'model__d_model': 18},) * 2, 'mesh.fsdp=4 divides no'),
    ],
)
def test_bad_input_is_one_line_of_the_first(begin, tmp_path, changes, message):
    workdir = tmp_path / 'run'
    (status, out), (other, silence) = map(ended, begin(workdir, changes=changes))
    assert (status, other) == (2, 2), out + silence
    errors = [line for line in out.splitlines() if 'error:' in line]
    assert len(errors) == 1 and 'error:' not in silence
    assert re.search(message, errors[0])
    assert not workdir.exists()
