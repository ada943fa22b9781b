"""Tests of scores computed elsewhere and added by the command."""

import subprocess
import sys

import pytest

ROWS = ['arm,seed,depth,score']
ROWS += [f'deep,{i},6,{30 + i}' for i in range(3)]
ROWS += [f'flat,{i},2,{20 + i + i % 2 / 4}' for i in range(3)]


def run(tmp_path, rows, *arguments):
    path = tmp_path / 'scores.csv'
    path.write_text('\n'.join(rows))
    command = [sys.executable, '-m', 'experiments.report', f'--scores={path}']
    return subprocess.run([*command, *arguments], capture_output=True, text=True)


def test_scores_of_a_file_are_compared(tmp_path):
    lines = run(tmp_path, ROWS, '--base=flat').stdout.splitlines()
    assert len(lines) == 3
    assert lines[2].split()[:4] == ['deep', 'flat', '3', '9.917']


@pytest.mark.parametrize(
    ('rows', 'arguments', 'message'),
    [
        (
            ['arm,seed,bleu', 'a,0,1'],
            (),
            "column 'score' is missing. Found arm, seed, bleu",
        ),
        ([*ROWS, 'deep,0,6,1'], (), 'line 8: duplicate score of deep, seed 0. Remove'),
        ([*ROWS, 'deep,9,6,much'], (), "line 8: invalid score 'much'. Use a number"),
        ([*ROWS, 'deep,9,6,inf'], (), "'deep', seed 9: the score inf is not finite"),
        (ROWS[:4], (), 'fewer than two arms'),
        (ROWS, ('--base=wide',), "unknown arm 'wide'. Choose one of deep, flat"),
        (ROWS, ('runs/a',), '^runs: has no effect with --scores'),
    ],
)
def test_a_file_that_cannot_be_compared_is_one_line(tmp_path, rows, arguments, message):
    result = run(tmp_path, rows, *arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
