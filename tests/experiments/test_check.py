"""Tests of `experiments.check`, and of the contracts of the runner's components."""

import itertools
import re

import pages
import pytest

from configs import wmt_base
from experiments import check, contracts, registries
from experiments.command_line.screen import Screen
from experiments.config import load
from experiments.config.check import check_contracts
from experiments.data import sources
from experiments.data.filters.base import Filter
from experiments.data.objectives.base import Objective
from experiments.data.sources.base import Source
from experiments.errors import UserError
from experiments.hooks.base import Hook
from experiments.training import setup
from flaxformer_lite import testing


@pytest.mark.parametrize(
    ('part', 'message'),
    [
        ('focl', "'focl' is not a component. .*did you mean 'focal'"),
        ('local(', r"'local\(' is not a spec: write name"),
        ('builtins.dict', 'builtins.dict cannot be a component. Give the path of'),
    ],
)
def test_the_command_names_what_is_no_part_in_one_short_line(part, message, command):
    with pytest.raises(UserError, match=message) as caught:
        command(check, part)
    assert len(str(caught.value)) < 200


def test_the_command_prints_what_it_finds_and_exits_with_1(command, capsys):
    assert 'NO' not in command(check, 'swiglu', '--quick').out
    with pytest.raises(SystemExit) as leaving:
        command(check, 'test_testing.SeesTheFuture', '--quick')
    assert leaving.value.code == 1
    line = 'on later tokens +NO +logits at position 0 change by .* with token 1'
    assert re.search(line, capsys.readouterr().out)


@pytest.mark.slow
def test_the_example_of_a_block_keeps_the_contracts(tmp_path, monkeypatch, command):
    code = pages.files('docs/how_to/extend.md')['my_blocks.py']
    (tmp_path / 'my_blocks.py').write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    found = command(check, 'my_blocks.Convolution(width=4)').out
    assert 'cached decoding equals teacher forcing  ' in found


class Careless(Source):
    def __init__(self, val=(), train=()):
        self.val, self.calls = val, iter(train)

    def train(self):
        return iter(next(self.calls))

    def evaluation(self):
        return {'val': self.val}


@pytest.mark.parametrize(
    ('train', 'val', 'example'),
    [
        ([[('a', 'b')]] * 2, [('a', 'b')], 'evaluation sets .*: val, pair 0: '),
        (
            [[('a', 'b')], [('c', 'd')]],
            [],
            'every pass .*: number 0: .* first, then',
        ),
        ([[('a', 'o\u0308')]] * 2, [], 'text is NFC.*: training, pair 0: '),
        ([[]] * 2, [], 'training has pairs: no pair'),
    ],
)
def test_a_careless_source_is_found(train, val, example):
    found = contracts.source_findings(Careless(val, train))
    with pytest.raises(testing.BrokenContract, match=f'contracts:\n{example}'):
        testing.require(found, 'Careless')


@pytest.mark.parametrize('name', ['grammar(pairs=300)', 'needles(pairs=300)'])
def test_our_sources_that_make_their_text_keep_their_contracts(name):
    testing.require(contracts.source_findings(sources.load(name)), name)


def config_with(part='relu', **train):
    settings = wmt_base.get_config()
    load.fill(settings)
    settings.model.decoder.feed_forward = part
    settings.train.update(train)
    return load.from_config_dict(settings)


def test_a_run_refuses_a_part_that_breaks_a_contract_unless_told_to_train_it(
    tmp_path, cache
):
    part = 'test_testing.SeesTheFuture'
    message = (
        f'model.decoder.feed_forward={part}: failed contract .logits do not depend on '
        'later tokens.: logits at position 0 change by .* with token 1.*'
        'train.check_parts=False'
    )
    with pytest.raises(UserError, match=message):
        setup.prepare(config_with(part), tmp_path / 'run', Screen())
    check_contracts(config_with(part, check_parts=False))
    check_contracts(config_with('test_testing.HasTooMany'))
    with pytest.raises(UserError, match='Mean: failed contract .padding has no effect'):
        check_contracts(config_with(loss='test_testing.Mean'))


OF_OTHERS = {'wandb', 'mlflow'}  # hooks that call what is installed
OURS = [
    (field.rpartition('.')[2], 'profile(after=100)' if name == 'profile' else name)
    for field in ('filters', 'objective', 'train.hooks')
    for name in registries.FOLDERS[field].names()
    if name not in OF_OTHERS
]
# The library's tests hold the other strategies and processors to their contracts.
OURS += [('decode', 'beam'), ('processors', 'min_length(length=3)')]


@pytest.mark.parametrize(('kind', 'part'), OURS)
def test_ours_keep_the_contracts(kind, part):
    found = testing.require(contracts.findings(part, kind), part)
    assert len(found) >= 2 and all(finding.holds for finding in found)


class KeepsNothing(Filter):
    def keeps(self, source, target):
        return False


class GoesOn(Filter):
    """Counts over all passes."""

    calls = itertools.count()

    def keeps(self, source, target):
        return next(self.calls) % 3 != 1


class EverySecond(Filter):
    def __init__(self):
        self.calls = itertools.count()

    def keeps(self, source, target):
        return next(self.calls) % 2 == 0


class Draws(Objective):
    calls = itertools.count()

    def example(self, row, rng):
        return row, [3 + next(self.calls)]


class Doubles(Objective):
    def example(self, row, rng):
        return row * 2, row


class Ends(Objective):
    def example(self, row, rng):
        return row, [*row[:-1], 1]


class Overwrites(Hook):
    def row(self, row):
        row['loss'] = 0.0


class AddsItself(Hook):
    def row(self, row):
        return {'hook': self}


CARELESS = [
    ('filters', KeepsNothing, 'some pairs are kept: no pair'),
    ('filters', GoesOn, 'every pass keeps the same pairs: '),
    ('filters', EverySecond, 'filtering twice changes nothing: '),
    ('objective', Draws, 'equal seeds give equal examples: number 0'),
    ('objective', Doubles, 'sides are not longer than the text: 1 ids became 2'),
    ('objective', Ends, r'examples have no special ids: \[57\] contains id 1'),
    ('hooks', Overwrites, 'rows are not modified: number 0: .* first, then'),
    ('hooks', AddsItself, 'added values are JSON serializable: .*AddsItself'),
]


@pytest.mark.parametrize(('kind', 'part', 'message'), CARELESS)
def test_a_careless_part_of_the_runner_is_found(kind, part, message):
    found = contracts.findings(f'{__name__}.{part.__name__}', kind)
    with pytest.raises(testing.BrokenContract, match=message):
        testing.require(found, 'it')
