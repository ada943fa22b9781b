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
from experiments.command_line import console
from experiments.errors import UserError
from experiments.runs import metrics_log


def lines(path):
    return [
        json.loads(line) for line in (path / 'metrics.jsonl').read_text().splitlines()
    ]


def test_rows_are_json_lines_in_order(tmp_path):
    log = metrics_log.MetricsLog(tmp_path)
    log.write(10, 'train', loss=np.float32(2.5), tokens=np.int64(3))
    log.write(10, 'eval', set='val', loss=float('nan'), ter=12.5, note=None)
    rows = lines(tmp_path)
    assert all(abs(row.pop('time') - time.time()) < 600 for row in rows)
    scores = {'set': 'val', 'loss': None, 'ter': 12.5, 'note': None}
    assert rows == [
        {'step': 10, 'kind': 'train', 'loss': 2.5, 'tokens': 3},
        {'step': 10, 'kind': 'eval', **scores},
    ]
    # Higher is better there.
    ter = metrics.deciding(metrics.make('[bleu, ter]'), 'ter')
    assert metrics_log.dev_scores(metrics_log.read_rows(tmp_path), ter) == {10: -12.5}


def test_a_resumed_run_keeps_the_rows_up_to_its_checkpoint(tmp_path):
    first = metrics_log.MetricsLog(tmp_path)
    first.write(1, 'train', loss=1.0)
    first.write(2, 'train', loss=2.0)
    first.write(2, 'eval', bleu=9.0)  # after the checkpoint, of its state
    first.write(2, 'final', bleu=9.0)  # of an end that may not be the end
    first.write(3, 'train', loss=9.0)
    with open(tmp_path / 'metrics.jsonl', 'a') as file:
        file.write('{"step": 4, "ki')  # a kill in the midst of a line
    second = metrics_log.MetricsLog(tmp_path, 2)
    second.write(3, 'train', loss=3.0)
    rows = metrics_log.read_rows(tmp_path)
    assert [(row['step'], row['kind'], row.get('loss')) for row in rows] == [
        (1, 'train', 1.0),
        (2, 'train', 2.0),
        (2, 'eval', None),
        (3, 'train', 3.0),
    ]
    metrics_log.MetricsLog(tmp_path)  # of a run that begins
    assert metrics_log.read_rows(tmp_path) == []


@pytest.mark.parametrize(
    ('line', 'message'),
    [
        (
            '{"step": "1", "kind": "train"}',
            'line 2: step: expected int, got str. Delete this line.',
        ),
        ('{"step": 1, "kind": []}', 'line 2: kind: expected str, got array'),
        ('nonsense', 'line 2: not a row of metrics'),
        ('[]', 'line 2: the content: expected object, got array'),
        ('{"kind": "train"}', 'line 2: .* missing required field step'),
    ],
)
def test_a_row_that_cannot_be_is_one_line(tmp_path, line, message):
    good = '{"step": 1, "kind": "train"}'
    (tmp_path / 'metrics.jsonl').write_text(f'{good}\n{line}\n')
    with pytest.raises(UserError, match=message) as error:
        metrics_log.MetricsLog(tmp_path, 2)
    assert len(str(error.value)) < 300 + len(str(tmp_path))
    assert (tmp_path / 'metrics.jsonl').read_text() == f'{good}\n{line}\n'


def test_whatever_may_be_in_a_row_can_be_shown(tmp_path):
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


@pytest.mark.skipif(os.name != 'posix', reason='kills as POSIX does')
def test_kills_leave_no_gap_and_no_double(tmp_path):
    saved = 0
    for _ in range(4):
        command = [sys.executable, '-c', WRITER, str(tmp_path), str(saved)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            process.stdout.readline()
            time.sleep(random.uniform(0, 0.05))
            process.send_signal(signal.SIGKILL)
            # The step that the killed process had flushed last, at the least.
            saved = max(saved + 5, *(int(n) for n in process.stdout.read().split()), 0)
    metrics_log.MetricsLog(tmp_path, saved)
    steps = [row['step'] for row in metrics_log.read_rows(tmp_path)]
    assert steps == list(range(1, saved + 1))


@pytest.mark.skipif(
    not os.path.exists('/dev/full'), reason='needs a disk that is always full'
)
def test_a_full_disk_is_a_user_error(tmp_path):
    metrics = metrics_log.MetricsLog(tmp_path)
    metrics._file = Path('/dev/full')
    with pytest.raises(
        UserError, match='cannot write /dev/full: No space left on device'
    ):
        metrics.write(1, 'train', loss=1.0)


def test_table_aligns_and_shows_what_is_missing():
    rows = [['a', 1234567, 0.5, None], ['long name', 5, 31.25678, 'x']]
    assert console.table(['run', 'size', 'bleu', 'note'], rows) == (
        'run             size   bleu  note\n'
        '---------  ---------  -----  ----\n'
        'a          1,234,567    0.5  -\n'
        'long name          5  31.26  x'
    )
    assert console.table(['run'], []) == 'run\n---'
