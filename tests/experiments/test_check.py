"""Tests of the command `check`, and of the contracts of the runner's components."""

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
    ('component', 'message'),
    [
        ('focl', "'focl' .*did you mean 'focal'"),
        ('local(', r"'local\(' is not a spec"),
        ('builtins.dict', 'builtins.dict cannot be a component'),
    ],
)
def test_invalid_components_are_rejected(component, message, command):
    with pytest.raises(UserError, match=message) as error:
        command(check, component)
    assert len(str(error.value)) < 200


def test_command_prints_broken_contracts_and_exits_with_status_1(command, capsys):
    assert 'NO' not in command(check, 'swiglu', '--quick').out
    with pytest.raises(SystemExit) as error:
        command(check, 'test_testing.SeesTheFuture', '--quick')
    assert error.value.code == 1
    line = 'on later tokens +NO +logits at position 0 change by .* with token 1'
    assert re.search(line, capsys.readouterr().out)


@pytest.mark.slow
def test_example_block_of_the_page_keeps_the_contracts(tmp_path, monkeypatch, command):
    code = pages.files('docs/how_to/extend.md')['my_blocks.py']
    (tmp_path / 'my_blocks.py').write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    out = command(check, 'my_blocks.Convolution(width=4)').out
    assert 'cached decoding equals teacher forcing  ' in out


class ListSource(Source):
    """A source that is given its sets, and the training pairs of each pass."""

    def __init__(self, val, passes):
        self.val, self.passes = val, iter(passes)

    def train(self):
        return iter(next(self.passes))

    def evaluation(self):
        return {'val': self.val}


@pytest.mark.parametrize(
    ('train', 'val', 'contract'),
    [
        ([[('a', 'b')]] * 2, [('a', 'b')], 'evaluation sets .*: val, pair 0: '),
        ([[('a', 'b')], [('c', 'd')]], [], 'every pass .*: number 0: .* first, then'),
        ([[('a', 'o\u0308')]] * 2, [], 'text is NFC.*: training, pair 0: '),
        ([[]] * 2, [], 'training has pairs: no pair'),
    ],
)
def test_broken_sources_fail_a_contract(train, val, contract):
    findings = contracts.source_findings(ListSource(val, train))
    with pytest.raises(testing.BrokenContract, match=f'contracts:\n{contract}'):
        testing.require(findings, 'it')


@pytest.mark.parametrize('name', ['grammar(pairs=300)', 'needles(pairs=300)'])
def test_synthetic_sources_keep_the_contracts(name):
    testing.require(contracts.source_findings(sources.load(name)), name)


def config_with(feed_forward='relu', **train):
    settings = wmt_base.get_config()
    load.fill(settings)
    settings.model.decoder.feed_forward = feed_forward
    settings.train.update(train)
    return load.from_config_dict(settings)


@pytest.mark.ci
@pytest.mark.ci
def test_run_rejects_components_that_break_a_contract_unless_checks_are_off(
    tmp_path, cache
):
    name = 'test_testing.SeesTheFuture'
    message = (
        f'model.decoder.feed_forward={name}: failed contract .logits do not depend on '
        'later tokens.: logits at position 0 .*train.check_parts=False'
    )
    with pytest.raises(UserError, match=message):
        setup.prepare(config_with(name), tmp_path / 'run', Screen())
    check_contracts(config_with(name, check_parts=False))
    with pytest.raises(UserError, match='Mean: failed contract .padding has no effect'):
        check_contracts(config_with(loss='test_testing.Mean'))


EXTERNAL_HOOKS = {'wandb', 'mlflow'}  # call installed packages
COMPONENTS = [
    (field.rpartition('.')[2], 'profile(after=100)' if name == 'profile' else name)
    for field in ('filters', 'objective', 'train.hooks')
    for name in registries.FOLDERS[field].names()
    if name not in EXTERNAL_HOOKS
]
# Tests of the library check the other strategies and processors.
COMPONENTS += [
    pytest.param('decode', 'beam', marks=pytest.mark.slow),
    ('processors', 'min_length(length=3)'),
]


@pytest.mark.ci
@pytest.mark.parametrize(('kind', 'component'), COMPONENTS)
def test_shipped_components_keep_the_contracts(kind, component):
    findings = testing.require(contracts.findings(component, kind), component)
    assert len(findings) >= 2 and all(finding.holds for finding in findings)


class RemovesAll(Filter):
    def keeps(self, source, target):
        return False


class CountsOverPasses(Filter):
    calls = itertools.count()

    def keeps(self, source, target):
        return next(self.calls) % 3 != 1


class EverySecond(Filter):
    def __init__(self):
        self.calls = itertools.count()

    def keeps(self, source, target):
        return next(self.calls) % 2 == 0


class Unseeded(Objective):
    calls = itertools.count()

    def example(self, row, rng):
        return row, [3 + next(self.calls)]


class Doubles(Objective):
    def example(self, row, rng):
        return row * 2, row


class AddsEndToken(Objective):
    def example(self, row, rng):
        return row, [*row[:-1], 1]


class Overwrites(Hook):
    def row(self, row):
        row['loss'] = 0.0


class AddsItself(Hook):
    def row(self, row):
        return {'hook': self}


@pytest.mark.parametrize(
    ('kind', 'component', 'contract'),
    [
        ('filters', RemovesAll, 'some pairs are kept: no pair'),
        ('filters', CountsOverPasses, 'every pass keeps the same pairs: '),
        ('filters', EverySecond, 'filtering twice changes nothing: '),
        ('objective', Unseeded, 'equal seeds give equal examples: number 0'),
        ('objective', Doubles, 'sides are not longer than the text: 1 ids became 2'),
        ('objective', AddsEndToken, r'no special ids: \[57\] contains id 1'),
        ('hooks', Overwrites, 'rows are not modified: number 0: .* first, then'),
        ('hooks', AddsItself, 'added values are JSON serializable: .*AddsItself'),
    ],
)
def test_broken_components_fail_a_contract(kind, component, contract):
    findings = contracts.findings(f'{__name__}.{component.__name__}', kind)
    with pytest.raises(testing.BrokenContract, match=contract):
        testing.require(findings, 'it')
