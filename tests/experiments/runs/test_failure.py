"""Tests of the record of a failed run."""

import os

import pytest

from experiments import storage
from experiments.command_line.stopping import Stopped
from experiments.errors import UserError
from experiments.runs import directory, failure, reading


@pytest.mark.parametrize(
    ('error', 'status', 'step', 'message'),
    [
        (failure.Diverged(1234, 'not finite …'), 'diverged', 1234, 'not finite …'),
        (UserError('the disk is full'), 'failed', None, 'the disk is full'),
        (MemoryError('a\nb'), 'failed', None, 'MemoryError: a b'),
    ],
)
def test_error_is_recorded_until_the_run_resumes(
    tmp_path, error, status, step, message
):
    with pytest.raises(type(error)), failure.record_errors(tmp_path):
        raise error
    expected = {'status': status, 'step': step, 'message': message}
    assert failure.read_failure(tmp_path) == expected
    with failure.record_errors(tmp_path):
        assert failure.read_failure(tmp_path) is None
    assert failure.read_failure(tmp_path) is None


@pytest.mark.parametrize('stop', [Stopped('saved'), KeyboardInterrupt()], ids=repr)
def test_stop_is_not_recorded(tmp_path, stop):
    with pytest.raises(type(stop)), failure.record_errors(tmp_path):
        raise stop
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name != 'posix', reason='needs the limits of POSIX')
def test_failure_is_recorded_on_a_full_disk(tmp_path):
    import resource

    with directory.open_run(tmp_path, {'data': 'grammar'}):
        pass
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.raises(UserError, match='File too large'):
            with failure.record_errors(tmp_path):
                resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
                storage.write(tmp_path / 'checkpoint', 'x')
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert reading.run_status(tmp_path).status == reading.FAILED
    with failure.record_errors(tmp_path):
        assert reading.run_status(tmp_path).status == reading.STOPPED
    assert not list(tmp_path.glob('*failure*'))
