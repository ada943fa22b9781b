"""Tests that a run's metric rows survive kills without loss or duplicates."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from experiments import metrics
from experiments.errors import UserError
from experiments.runs import metrics_log


def test_rows_are_json_lines_in_order(tmp_path):
    log = metrics_log.MetricsLog(tmp_path)
    log.write(10, 'train', loss=np.float32(2.5), tokens=np.int64(3))
    log.write(10, 'eval', set='val', loss=float('nan'), ter=12.5, note=None)
    lines = (tmp_path / 'metrics.jsonl').read_text().splitlines()
    rows = list(map(json.loads, lines))
    assert all(abs(row.pop('time') - time.time()) < 600 for row in rows)
    scores = {'set': 'val', 'loss': None, 'ter': 12.5, 'note': None}
    assert rows == [
        {'step': 10, 'kind': 'train', 'loss': 2.5, 'tokens': 3},
        {'step': 10, 'kind': 'eval', **scores},
    ]
    # Higher dev scores are better; TER is an error rate.
    ter = metrics.deciding(metrics.make('[bleu, ter]'), 'ter')
    assert metrics_log.dev_scores(metrics_log.read_rows(tmp_path), ter) == {10: -12.5}


def test_resumed_run_keeps_the_rows_up_to_its_checkpoint(tmp_path):
    first = metrics_log.MetricsLog(tmp_path)
    first.write(1, 'train', loss=1.0)
    first.write(2, 'train', loss=2.0)
    first.write(2, 'eval', bleu=9.0)  # after the checkpoint, of its state
    first.write(2, 'final', bleu=9.0)  # the resumed run may end later
    first.write(3, 'train', loss=9.0)
    with open(tmp_path / 'metrics.jsonl', 'a') as file:
        file.write('{"step": 4, "ki')  # a kill within a line
    second = metrics_log.MetricsLog(tmp_path, 2)
    second.write(3, 'train', loss=3.0)
    rows = metrics_log.read_rows(tmp_path)
    assert [(row['step'], row['kind'], row.get('loss')) for row in rows] == [
        (1, 'train', 1.0),
        (2, 'train', 2.0),
        (2, 'eval', None),
        (3, 'train', 3.0),
    ]
    metrics_log.MetricsLog(tmp_path)  # a new run
    assert metrics_log.read_rows(tmp_path) == []


def test_rows_of_a_restarted_run_are_appended_to_the_earlier_ones(tmp_path):
    contents = []
    for step in (4, 2):
        metrics_log.MetricsLog(tmp_path).write(step, 'train', loss=1.0)
        contents.append((tmp_path / metrics_log.NAME).read_bytes())
        assert metrics_log.archive_rows(tmp_path) == step
        assert metrics_log.read_rows(tmp_path) == []
        assert (tmp_path / metrics_log.ARCHIVE).read_bytes() == b''.join(contents)


@pytest.mark.parametrize(
    ('line', 'message'),
    [
        ('{"step": "1", "kind": "train"}', 'step: expected int, got str. Delete this'),
        ('{"step": 1, "kind": []}', 'kind: expected str, got array'),
        ('nonsense', 'not a row of metrics'),
        ('[]', 'the content: expected object, got array'),
        ('{"kind": "train"}', '.* missing required field step'),
    ],
)
def test_invalid_row_is_named_and_kept(tmp_path, line, message):
    content = f'{{"step": 1, "kind": "train"}}\n{line}\n'
    (tmp_path / 'metrics.jsonl').write_text(content)
    with pytest.raises(UserError, match=f'line 2: {message}'):
        metrics_log.MetricsLog(tmp_path, 2)
    assert (tmp_path / 'metrics.jsonl').read_text() == content


def test_row_with_extreme_values_is_read_unchanged(tmp_path):
    row = {'step': 2**63 - 1, 'kind': 'ä', 'x': 1e308, 'b': True}
    (tmp_path / 'metrics.jsonl').write_text(json.dumps(row) + '\n')
    metrics_log.MetricsLog(tmp_path, 2**63 - 1)
    assert metrics_log.read_rows(tmp_path) == [row]


WRITER = """
import pathlib, sys
from experiments.runs.metrics_log import MetricsLog
path, step = pathlib.Path(sys.argv[1]), int(sys.argv[2])
metrics = MetricsLog(path, step)
while True:
    step += 1
    metrics.write(step, 'train', loss=step)
    if step % 5 == 0:
        metrics.flush()
        print(step, flush=True)
"""


@pytest.mark.skipif(os.name != 'posix', reason='needs the signals of POSIX')
def test_kills_leave_no_gap_and_no_duplicate(tmp_path):
    saved = 0
    for _ in range(3):
        command = [sys.executable, '-c', WRITER, str(tmp_path), str(saved)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            process.stdout.readline()
            time.sleep(random.uniform(0, 0.05))
            process.send_signal(signal.SIGKILL)
            # At least the last step that the killed process flushed.
            saved = max(saved + 5, *(int(n) for n in process.stdout.read().split()), 0)
    metrics_log.MetricsLog(tmp_path, saved)
    steps = [row['step'] for row in metrics_log.read_rows(tmp_path)]
    assert steps == list(range(1, saved + 1))


@pytest.mark.skipif(not os.path.exists('/dev/full'), reason='needs /dev/full')
def test_full_disk_is_a_user_error(tmp_path):
    log = metrics_log.MetricsLog(tmp_path)
    log._file = Path('/dev/full')
    with pytest.raises(UserError, match='cannot write /dev/full: No space left'):
        log.write(1, 'train', loss=1.0)
