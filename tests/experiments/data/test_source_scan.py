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
OFFICIAL = ('length', 'addprim_jump', 'addprim_turn_left')


def official(name):
    text = gzip.decompress((FILES / f'{name}.txt.gz').read_bytes()).decode()
    return Counter(re.findall('^IN: (.*) OUT: (.*)$', text, re.MULTILINE))


@pytest.mark.skipif(not FILES.exists(), reason='no official files')
def test_commands_and_splits_equal_the_official_ones():
    assert Counter(commands()) == official('tasks')
    for split in OFFICIAL:
        data = Scan(split=split)
        assert Counter(data.train()) == official(f'tasks_train_{split}')
        assert Counter(data.evaluation()['test']) == official(f'tasks_test_{split}')


def test_commands_of_the_paper_have_their_actions():
    """Compares with figure 1 of Lake and Baroni (2018)."""
    found = dict(commands())
    for command, actions in {
        'jump': 'JUMP',
        'jump left': 'LEFT JUMP',
        'jump around right': 'RIGHT JUMP RIGHT JUMP RIGHT JUMP RIGHT JUMP',
        'turn left twice': 'LEFT LEFT',
        'jump thrice': 'JUMP JUMP JUMP',
        'jump opposite left and walk thrice': 'LEFT LEFT JUMP WALK WALK WALK',
        'jump opposite left after walk around left': (
            'LEFT WALK LEFT WALK LEFT WALK LEFT WALK LEFT LEFT JUMP'
        ),
    }.items():
        plain = found[command].replace('I_TURN_', '').replace('I_', '')
        assert plain == actions, command


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
    train_pairs, test_pairs = list(data.train()), data.evaluation()['test']
    if train:
        assert (len(train_pairs), len(test_pairs)) == (train, test)
    assert len(set(train_pairs)) + len(test_pairs) == 20_910
    if data.split == 'length':
        lengths = [{len(y.split()) for _, y in x} for x in (train_pairs, test_pairs)]
        assert max(lengths[0]) <= data.cutoff < min(lengths[1])
    elif data.split == 'simple':
        assert 0.19 < len(test_pairs) / 20_910 < 0.21
    testing.require(contracts.source_findings(data), data.split)
