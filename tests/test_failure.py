"""How training ended by an error is written in its directory, and forgotten after."""

import json

import pytest

from experiments.command_line.stopping import Stopped
from experiments.errors import UserError
from experiments.runs import failure

NOT_FINITE = 'loss or gradient not finite at step 1,234 (epoch 0, batch 7); no …'


@pytest.mark.parametrize(
    ('error', 'entry'),
    [
        (
            failure.Diverged(1234, NOT_FINITE),
            {'status': 'diverged', 'step': 1234, 'message': NOT_FINITE},
        ),
        (
            UserError('the disk is full'),
            {'status': 'failed', 'step': None, 'message': 'the disk is full'},
        ),
        (
            MemoryError('a\nb'),
            {'status': 'failed', 'step': None, 'message': 'MemoryError: a b'},
        ),
    ],
)
def test_an_error_is_recorded_and_raised(tmp_path, error, entry):
    with pytest.raises(type(error)), failure.recorded(tmp_path):
        raise error
    assert json.loads((tmp_path / 'failure.json').read_text('utf-8')) == entry
    assert failure.read_failure(tmp_path) == entry


def test_a_run_that_goes_on_has_not_failed(tmp_path):
    with pytest.raises(UserError), failure.recorded(tmp_path):
        raise UserError('the disk is full')
    with failure.recorded(tmp_path):
        assert failure.read_failure(tmp_path) is None
    assert failure.read_failure(tmp_path) is None


@pytest.mark.parametrize('stop', [Stopped('saved'), KeyboardInterrupt()])
def test_a_stop_is_no_failure(tmp_path, stop):
    with pytest.raises(type(stop)), failure.recorded(tmp_path):
        raise stop
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize('text', ['[]', '{}', '{"status": "well"}'])
def test_a_file_that_tells_something_else_is_refused(tmp_path, text):
    (tmp_path / 'failure.json').write_text(text)
    with pytest.raises(UserError, match='failure.json does not tell.*remove it'):
        failure.read_failure(tmp_path)
