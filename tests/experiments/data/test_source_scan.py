"""Tests of the source `scan` against the official commands, actions and splits."""

import gzip
import re
from collections import Counter
from pathlib import Path

import pytest

from experiments import contracts
from experiments.data.sources.scan import Scan, commands
from flaxformer_lite import testing

# The official files of github.com/brendenlake/SCAN, if they are there.
FILES = Path(__file__).parents[4] / 'shared/data/scan'
where_files_are = pytest.mark.skipif(not FILES.exists(), reason='no official files')
OFFICIAL = ('length', 'addprim_jump', 'addprim_turn_left')


def official(name):
    text = gzip.decompress((FILES / f'{name}.txt.gz').read_bytes()).decode()
    return Counter(re.findall('^IN: (.*) OUT: (.*)$', text, re.MULTILINE))


@where_files_are
def test_all_commands_are_the_official_ones():
    assert Counter(commands()) == official('tasks')


@where_files_are
@pytest.mark.parametrize('split', OFFICIAL)
def test_a_split_is_the_official_one(split):
    data = Scan(split=split)
    assert Counter(data.train()) == official(f'tasks_train_{split}')
    assert Counter(data.evaluation()['test']) == official(f'tasks_test_{split}')


@pytest.mark.parametrize(
    ('command', 'actions'),
    [  # Lake and Baroni 2018, figure 1
        ('jump', 'I_JUMP'),
        ('jump left', 'I_TURN_LEFT I_JUMP'),
        (
            'jump around right',
            'I_TURN_RIGHT I_JUMP I_TURN_RIGHT I_JUMP I_TURN_RIGHT I_JUMP I_TURN_RIGHT '
            'I_JUMP',
        ),
        ('turn left twice', 'I_TURN_LEFT I_TURN_LEFT'),
        ('jump thrice', 'I_JUMP I_JUMP I_JUMP'),
        (
            'jump opposite left and walk thrice',
            'I_TURN_LEFT I_TURN_LEFT I_JUMP I_WALK I_WALK I_WALK',
        ),
        (
            'jump opposite left after walk around left',
            'I_TURN_LEFT I_WALK I_TURN_LEFT I_WALK I_TURN_LEFT I_WALK I_TURN_LEFT '
            'I_WALK I_TURN_LEFT I_TURN_LEFT I_JUMP',
        ),
    ],
)
def test_examples_of_the_paper_have_their_actions(command, actions):
    assert dict(commands())[command] == actions


@pytest.mark.parametrize(
    ('arguments', 'train', 'test'),
    [  # the paper's sizes, and by experiment
        (dict(split='length'), 16_990, 3_920),
        (dict(split='addprim_jump'), 14_670, 7_706),
        (dict(split='addprim_turn_left'), 21_890, 1_208),
        (dict(split='length', cutoff=26), None, None),
        (dict(split='simple'), None, None),
    ],
)
def test_splits_have_their_sizes_and_keep_the_contracts(arguments, train, test):
    data = Scan(**arguments)
    pairs, tested = list(data.train()), data.evaluation()['test']
    if train:
        assert (len(pairs), len(tested)) == (train, test)
    assert len(set(pairs)) + len(tested) == 20_910
    if data.split == 'length':
        lengths = [{len(y.split()) for _, y in x} for x in (pairs, tested)]
        assert max(lengths[0]) <= data.cutoff < min(lengths[1])
    elif data.split == 'simple':
        assert 0.19 < len(tested) / 20_910 < 0.21
    testing.require(contracts.source_findings(data), data.split)
