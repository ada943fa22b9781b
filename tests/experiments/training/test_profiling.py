"""Tests that profiled training steps are unchanged and leave a trace."""

import gzip
import json

import pytest
import small_runs

pytestmark = pytest.mark.usefixtures('cache')
FIELDS = small_runs.FIELDS | {
    'train.steps': 6,
    'evaluation.every': 0,
    'evaluation.decode': 'greedy',
    'evaluation.sets': 'val',
    'checkpoint.every': 6,
}


@pytest.mark.slow
def test_a_profile_is_written_and_changes_nothing(tmp_path):
    small_runs.write_text(tmp_path, val=2)
    fields = FIELDS | {'data': small_runs.source(tmp_path)}
    hashes = []
    for hook in ('[]', 'profile(after=2)'):
        path = tmp_path / f'run{len(hashes)}'
        small_runs.train(path, *small_runs.flags(fields | {'train.hooks': hook}))
        end = json.loads((path / 'result.json').read_text('utf-8'))
        hashes.append(end['parameters_sha256'])
    assert hashes[0] == hashes[1]
    assert not (tmp_path / 'run0' / 'profile').exists()
    (trace,) = (tmp_path / 'run1').glob('profile/plugins/profile/*/perfetto_trace*')
    events = json.loads(gzip.decompress(trace.read_bytes()))['traceEvents']
    steps = [event['args'] for event in events if event.get('name') == 'train']
    assert sorted(int(step['step_num']) for step in steps) == [3, 4]
