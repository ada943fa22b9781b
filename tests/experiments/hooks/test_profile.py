"""Tests of the profile hook."""

import gzip
import json

import pytest
import small_runs

pytestmark = pytest.mark.usefixtures('cache')


@pytest.mark.slow
def test_profiled_run_leaves_a_trace_and_the_same_parameters(
    trained_run, short_text, tmp_path
):
    flags = small_runs.arguments(short_text, tmp_path, train__hooks='profile(after=2)')
    small_runs.train(tmp_path, *flags[2:])
    hashes = [
        small_runs.result(path)['parameters_sha256'] for path in (tmp_path, trained_run)
    ]
    assert hashes[0] == hashes[1]
    (trace,) = tmp_path.glob('profile/plugins/profile/*/perfetto_trace*')
    events = json.loads(gzip.decompress(trace.read_bytes()))['traceEvents']
    steps = [event['args'] for event in events if event.get('name') == 'train']
    assert sorted(int(step['step_num']) for step in steps) == [3, 4]
