"""Tests of scores computed elsewhere and added by the command."""

import pytest

from experiments import report
from experiments.errors import UserError

ROWS = ['arm,seed,depth,score']
ROWS += [f'deep,{i},6,{30 + i}' for i in range(3)]
ROWS += [f'flat,{i},2,{20 + i + i % 2 / 4}' for i in range(3)]


def compare(command, tmp_path, rows, *arguments):
    path = tmp_path / 'scores.csv'
    path.write_text('\n'.join(rows))
    return command(report, f'--scores={path}', *arguments).out


def test_scores_of_a_file_are_compared(tmp_path, command):
    lines = compare(command, tmp_path, ROWS, '--base=flat').splitlines()
    assert len(lines) == 3
    assert lines[2].split()[:4] == ['deep', 'flat', '3', '9.92']


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
def test_a_file_that_cannot_be_compared_is_one_line(
    tmp_path, command, rows, arguments, message
):
    with pytest.raises(UserError, match=message) as error:
        compare(command, tmp_path, rows, *arguments)
    assert '\n' not in str(error.value)
