"""Checkpoints that are damaged, unreadable now, or removed while they are read."""

import builtins
import contextlib
import errno
import io
import os
import shutil
import subprocess
import sys
import threading
import types
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import storage
from experiments.checkpoints import hold, manifest
from experiments.checkpoints.checkpoints import Checkpoints
from experiments.errors import UserError
from experiments.runs import space, trained_run

STATE = {'params': {'kernel': jnp.arange(1000.0), 'bias': jnp.ones(3)}}
ABSTRACT = jax.eval_shape(lambda: STATE)


def state(step):
    return jax.tree.map(lambda x: x + step, STATE)


def save(path, *steps, scores=None, **options):
    checkpoints = Checkpoints(path, **{'keep': 10} | options)
    for i, step in enumerate(steps):
        checkpoints.save(step, state(step), {}, scores[i] if scores else None)
    checkpoints.close()


def restore(path, warnings):
    checkpoints = Checkpoints(path, keep=10)
    with contextlib.closing(checkpoints):
        return checkpoints.restore(ABSTRACT, warnings.append)


def tree(path):
    return {p: p.read_bytes() for p in path.rglob('*') if p.is_file()}


def failing(monkeypatch, name, number):
    """Has the system refuse to open files of a name, as it refuses a disk that is
    away."""
    opened = io.open

    def open_or_fail(file, *arguments, **options):
        is_written = isinstance(file, int) or '/.' in str(file)
        if not is_written and Path(file).name == name:
            raise OSError(number, os.strerror(number), str(file))
        return opened(file, *arguments, **options)

    for module in (builtins, io):
        monkeypatch.setattr(module, 'open', open_or_fail)


@pytest.mark.parametrize(
    'number', [errno.EACCES, errno.EIO, errno.ESTALE, errno.EMFILE]
)
@pytest.mark.parametrize('name', [manifest.NAME, '_METADATA'])
def test_what_cannot_be_read_now_stops_and_stays(tmp_path, monkeypatch, name, number):
    save(tmp_path, 10, 20)
    before = tree(tmp_path)
    with monkeypatch.context() as patch:
        failing(patch, name, number)
        with pytest.raises(UserError, match=f'cannot read .*20.*{os.strerror(number)}'):
            restore(tmp_path, [])
        with pytest.raises(UserError, match='cannot read'):
            Checkpoints(tmp_path, read_only=True).average([10, 20], ABSTRACT)
    assert tree(tmp_path) == before
    assert restore(tmp_path, []).step == 20


def test_what_cannot_be_read_or_is_damaged_is_not_removed_as_old(tmp_path, monkeypatch):
    save(tmp_path, 1, 2, 3)
    (tmp_path / '2' / manifest.NAME).write_text('{}')
    with monkeypatch.context() as patch:
        failing(patch, manifest.NAME, errno.EIO)
        save(tmp_path, 4, keep=1)
    assert Checkpoints(tmp_path, read_only=True).steps() == [1, 2, 3, 4]
    save(tmp_path, 5, keep=1)
    assert Checkpoints(tmp_path, read_only=True).steps() == [2, 5]


def test_damaged_ones_are_set_aside_each_under_a_name_of_its_own(tmp_path):
    save(tmp_path, 10)
    for number in range(1, 4):
        (tmp_path / '20').mkdir()
        (tmp_path / '20' / 'mine').write_text(str(number))
        warnings = []
        assert restore(tmp_path, warnings).step == 10
        assert len(warnings) == 1 and 'it is kept as damaged-20' in warnings[0]
    kept = sorted(tmp_path.glob('damaged*/mine'))
    assert [file.read_text() for file in kept] == ['1', '2', '3']


def test_strange_names_are_no_steps(tmp_path):
    save(tmp_path, 10)
    for name in ('٣', '²', '1.5', '007', '-1', '1_0', 'damaged-30', '.1.5', '.x'):
        (tmp_path / name).mkdir()
    (tmp_path / '.12').write_text('a file where we would write')
    (tmp_path / '40').write_text('a file where a checkpoint would be')
    (tmp_path / ('9' * 200)).mkdir()
    names = {path.name for path in tmp_path.iterdir()} - {'.12', '40', '9' * 200}
    warnings = []
    assert restore(tmp_path, warnings).step == 10
    assert len(warnings) == 2
    save(tmp_path, 12, 40)
    assert Checkpoints(tmp_path, read_only=True).steps() == [10, 12, 40]
    assert names <= {path.name for path in tmp_path.iterdir()}


def test_a_file_in_the_place_of_all_checkpoints_is_named(tmp_path):
    (tmp_path / 'checkpoints').write_text('')
    with pytest.raises(UserError, match='cannot read .*checkpoints: Not a directory'):
        Checkpoints(tmp_path / 'checkpoints')


def test_the_mean_is_of_those_that_are_good(tmp_path):
    save(tmp_path, 1, 2, 3, 4)
    file = tmp_path / '2' / manifest.NAME
    file.write_text(file.read_text().replace('bias', 'bios'))
    next((tmp_path / '3' / 'state').rglob('d/*')).unlink()
    warnings = []
    checkpoints = Checkpoints(tmp_path, read_only=True)
    mean = checkpoints.average([1, 2, 3, 4], ABSTRACT, warnings.append)
    assert (mean.steps, mean.left_out) == ([1, 4], [2, 3])
    expected = np.float32(np.arange(1000.0) + 2.5)
    np.testing.assert_array_equal(mean.variables['params']['kernel'], expected)
    assert ['step 2 is damaged and left out' in warnings[0], len(warnings)] == [True, 2]
    with pytest.raises(
        UserError, match=r'damaged \(2: record.json is .*; 3: .*missing'
    ):
        checkpoints.average([2, 3], ABSTRACT)


def config(number, which):
    return SimpleNamespace(
        evaluation=SimpleNamespace(average=number, average_of=which),
        train=SimpleNamespace(patience=0),
    )


@pytest.fixture
def shapes(monkeypatch):
    """Has the mean of this file's states be taken, for no model is needed."""
    monkeypatch.setattr(trained_run, 'abstract_variables', lambda *_: ABSTRACT)


@pytest.mark.parametrize(('which', 'steps'), [('last', [2, 4]), ('best', [4, 2, 1])])
def test_what_is_left_out_of_a_mean_is_told(tmp_path, shapes, capsys, which, steps):
    save(tmp_path, 1, 2, 3, 4, scores=[1, 2, 3, 4])
    (tmp_path / '3' / manifest.NAME).unlink()
    mean = trained_run.average(
        config(3, which), Checkpoints(tmp_path, read_only=True), None
    )
    assert (mean.steps, mean.left_out) == (steps, [3])
    assert 'step 3 is damaged and left out: record.json' in capsys.readouterr().err


@pytest.mark.skipif(hold.fcntl is None, reason='this system has no such locks')
def test_what_is_read_is_not_removed_until_it_is_read(tmp_path):
    save(tmp_path, 1)
    with hold.reading(tmp_path / '1' / manifest.NAME):
        save(tmp_path, 2, keep=1)
        assert Checkpoints(tmp_path, read_only=True).steps() == [1, 2]
    save(tmp_path, 3, keep=1)
    assert Checkpoints(tmp_path, read_only=True).steps() == [3]


def test_what_goes_while_it_is_read_counts_for_nothing(tmp_path):
    """As on a file system without locks."""
    save(tmp_path, 1, 2)
    with pytest.raises(hold.Gone):
        with hold.reading(tmp_path / '1' / manifest.NAME):
            os.replace(tmp_path / '1', tmp_path / '.1')
    with pytest.raises(hold.Gone):
        with hold.reading(tmp_path / '2' / manifest.NAME):
            shutil.rmtree(tmp_path / '2')
            raise ValueError('what Orbax says of it')
    with pytest.raises(hold.Gone), hold.reading(tmp_path / '3' / manifest.NAME):
        pass


def save_ever_more(path, stop):
    checkpoints = Checkpoints(path)
    step = checkpoints.steps()[-1]
    while not stop.is_set():
        step += 1
        checkpoints.save(step, state(step), {})
    checkpoints.close()


@pytest.mark.parametrize('locks', [True, False])
def test_a_run_that_trains_can_be_read_at_any_time(
    tmp_path, shapes, monkeypatch, locks
):
    if not locks:
        monkeypatch.setattr(hold, 'fcntl', None)
        monkeypatch.setattr(trained_run, '_ATTEMPTS', 1000)
    save(tmp_path, 1)
    stop = threading.Event()
    trainer = threading.Thread(target=save_ever_more, args=(tmp_path, stop))
    trainer.start()
    try:
        checkpoints, read = Checkpoints(tmp_path, read_only=True), []
        while len(set(read)) < 8:
            mean = trained_run.average(
                config(2, 'last'), checkpoints, None, pytest.fail
            )
            read.append(mean.steps[-1])
            kernel = np.asarray(mean.variables['params']['kernel'])
            np.testing.assert_array_equal(
                kernel, np.float32(np.arange(1000.0) + np.mean(mean.steps))
            )
    finally:
        stop.set()
        trainer.join()
    assert read == sorted(read)


def test_checkpoints_that_always_go_end_in_one_line(tmp_path, shapes, monkeypatch):
    save(tmp_path, 1)

    def gone(*arguments):
        raise hold.Gone

    monkeypatch.setattr(Checkpoints, 'average', gone)
    with pytest.raises(UserError, match='let it end'):
        trained_run.average(
            config(1, 'last'), Checkpoints(tmp_path, read_only=True), None
        )


def test_numbers_that_are_not_finite_come_back(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    window = {'x': float('inf'), 'y': [-float('inf'), 1.5], 'z': float('nan')}
    checkpoints.save(1, STATE, {'window': window})
    metadata = checkpoints.restore(ABSTRACT).metadata
    checkpoints.close()
    assert str(metadata) == str({'window': window})
    text = (tmp_path / '1' / manifest.NAME).read_text()
    assert 'NaN' not in text and 'Infinity' not in text


def test_room_is_reckoned_by_what_a_checkpoint_takes(tmp_path, monkeypatch):
    zeros = {'params': jnp.zeros(1_000_000)}
    checkpoints = Checkpoints(tmp_path, keep=3)
    usage = shutil.disk_usage(tmp_path)

    def free(size):
        monkeypatch.setattr(shutil, 'disk_usage', lambda _: usage._replace(free=size))

    checkpoints.save(1, zeros, {})
    checkpoints.wait()
    taken = space.taken(tmp_path / '1')
    assert 4_000_000 <= taken < 4_100_000
    free(taken)
    checkpoints.save(2, zeros, {})
    checkpoints.wait()
    free(space.taken(tmp_path / '2') - 1)
    with pytest.raises(
        UserError, match='it takes about .*, 1 bytes more than are free'
    ):
        checkpoints.save(3, zeros, {})
    checkpoints.close()


@pytest.mark.parametrize(
    ('size', 'text'),
    [(0, '0 bytes'), (9999, '9,999 bytes'), (10_000, '10 kB'), (5 * 10**9, '5,000 MB')],
)
def test_sizes_as_they_are_said(size, text):
    assert space.text(size) == text


# Some write fails: the first, of a folder; the array's; that of a file beside it.
FULL = """
import resource, sys
from pathlib import Path
import jax.numpy as jnp
from experiments.checkpoints.checkpoints import Checkpoints
from experiments.errors import UserError
checkpoints = Checkpoints(Path(sys.argv[1]))
state = {name: jnp.arange(100_000.) for name in 'abc'}
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    checkpoints.save(1, state, {})
    checkpoints.wait()
except UserError as error:
    print(error)
checkpoints.close()
"""


@pytest.mark.skipif(os.name != 'posix', reason='limits as POSIX has them')
@pytest.mark.parametrize('limit', [0, 200, 20_000])
def test_orbax_says_nothing_beside_the_one_line(tmp_path, limit):
    command = [sys.executable, '-c', FULL, str(tmp_path), str(limit)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.stderr == '' and result.returncode == 0
    assert result.stdout.startswith(
        f'cannot write a checkpoint to {tmp_path} (there is'
    )
    assert len(result.stdout.splitlines()) == 1
    # A thread of Orbax may write once more after the folder is gone: the next process
    # of the run removes that.
    Checkpoints(tmp_path).close()
    assert list(tmp_path.iterdir()) == []


def test_a_failure_of_a_thread_that_no_one_waits_for_is_not_printed(tmp_path, capsys):
    Checkpoints(tmp_path)
    late = SimpleNamespace(
        exc_type=RuntimeError, exc_value=RuntimeError('Event loop is closed')
    )
    sys.unraisablehook(late)
    assert capsys.readouterr().err == ''


@types.coroutine
def another_array():
    yield


async def read_beside_another_array():
    try:
        await another_array()
    except BaseException as error:  # as Orbax does, and so of its being closed, too
        raise OSError('cannot read an array') from error


def test_a_reading_that_is_given_up_is_not_printed(tmp_path, capsys):
    Checkpoints(tmp_path)
    reading = read_beside_another_array()
    reading.send(None)
    del reading  # an error would fail the test: pytest notices those that no one raises
    assert capsys.readouterr().err == ''


def test_json_that_is_nested_too_deep_is_damage(tmp_path):
    save(tmp_path, 1, 2)
    (tmp_path / '2' / manifest.NAME).write_text('[' * 100_000)
    warnings = []
    assert restore(tmp_path, warnings).step == 1
    with pytest.raises(UserError, match='is not JSON: nested too deep'):
        storage.read_json(tmp_path / 'damaged-2' / manifest.NAME)
