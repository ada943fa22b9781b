"""Tests that each contract finds a broken component and shows an example."""

import itertools
import re

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn

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
from flaxformer_lite.attention.softmax import SoftmaxAttention
from flaxformer_lite.decoding.processors.base import Processor
from flaxformer_lite.decoding.strategies.greedy import GreedySearch
from flaxformer_lite.decoding.strategies.sample import Sampling
from flaxformer_lite.feed_forward.base import FeedForward
from flaxformer_lite.feed_forward.relu import ReluFeedForward
from flaxformer_lite.init.xavier import XavierInit
from flaxformer_lite.kv_cache import Cache
from flaxformer_lite.losses.base import Loss, label_log_p
from flaxformer_lite.norms.layer import LayerNorm
from flaxformer_lite.positions.base import Positions
from flaxformer_lite.testing import forms, models, parts


class SeesTheFuture(ReluFeedForward):
    """A convolution that looks ahead."""

    @nn.compact
    def __call__(self, x_BTD):
        return super().__call__(x_BTD + jnp.roll(x_BTD, -1, axis=1))


class IgnoresThePadding(SoftmaxAttention):
    def __call__(self, q_BTHK, kv, *, positions_BT, mask_BHTS, **others):
        before_BTS = kv.positions_BS[:, None] <= positions_BT[:, :, None]
        mask_BHTS |= before_BTS[:, None]
        arguments = dict(positions_BT=positions_BT, mask_BHTS=mask_BHTS)
        return super().__call__(q_BTHK, kv, **arguments, **others)


class CountsAlongTheRow(Positions):
    def embed(self, x_BTD, positions_BT):
        return x_BTD + jnp.arange(x_BTD.shape[1])[None, :, None]


class OfTheBatch(LayerNorm):
    def normalize(self, x_BTD):
        return x_BTD - x_BTD.mean(0, keepdims=True)


class Forgetful(Cache):
    def append(self, new, beam):
        _, everything = super().append(new, beam)
        return self, everything


class Forgets(SoftmaxAttention):
    def init_cache(self, prefix, valid_BS):
        return Forgetful.starting_with(prefix)


class InfiniteSlope(ReluFeedForward):
    def activation(self, h_BTF):
        return jnp.sqrt(jnp.maximum(h_BTF, 0.0))


class HasTooMany(ReluFeedForward):
    @nn.compact
    def __call__(self, x_BTD):
        self.param('spare', nn.initializers.ones, (3,))
        return super().__call__(x_BTD)


BROKEN = [
    (
        SeesTheFuture,
        'logits do not depend on later tokens',
        r'logits at position 0 change by \d.* with token 1',
    ),
    (
        IgnoresThePadding,
        'padding has no effect',
        'logits at position 0 change by .* with other tokens in padding',
    ),
    (
        CountsAlongTheRow,
        'packing has no effect',
        'logits at position 0 change by .* if packed as number 1 of a row',
    ),
    (
        OfTheBatch,
        'other rows have no effect',
        'logits at position 0 change by .* with other rows in the batch',
    ),
    (
        Forgets,
        'cached decoding equals teacher forcing',
        'logits at position 1 differ by ',
    ),
    (
        InfiniteSlope,
        'logits and gradients are finite',
        'the gradient of decoder/layer_0/.*: NaN or infinity',
    ),
    (
        HasTooMany,
        'every parameter has a nonzero gradient',
        'the gradient of decoder/layer_0/feed_forward/spare is 0',
    ),
]


QUICK = (SeesTheFuture, IgnoresThePadding, CountsAlongTheRow, OfTheBatch)


@pytest.mark.parametrize(('part', 'contract', 'example'), BROKEN)
def test_a_mistake_is_found_with_its_smallest_example(part, contract, example):
    with pytest.raises(testing.BrokenContract, match=f'{contract}: {example}'):
        testing.check(part, quick=part in QUICK)


def test_products_that_are_summed_in_bfloat16_are_found():
    class Rounds(FeedForward):
        @nn.compact
        def __call__(self, x_BTD):
            shape = x_BTD.shape[-1:] * 2
            kernel = self.param('kernel', nn.initializers.ones, shape)
            return x_BTD.astype(self.dense.dtype) @ kernel.astype(self.dense.dtype)

    def found(part):
        model = parts.model_with(part, 'feed_forward').with_separate_layers()
        rounded = forms.in_bfloat16(model)
        products = forms.products(rounded, models.random_variables(model))
        return forms.float32_sums(products)

    assert found(ReluFeedForward).holds
    assert not found(Rounds).holds
    assert found(Rounds).detail == 'dot_general of bfloat16 accumulates in bfloat16'


def test_first_values_that_are_no_numbers_are_found():
    class Endless(XavierInit):
        def matrix(self, key, fan_in, fan_out, name):
            return super().matrix(key, fan_in, fan_out, name) / 0.0

    assert models.first_values(parts.model_with(XavierInit, 'init')).holds
    found = models.first_values(parts.model_with(Endless, 'init'))
    assert not found.holds and 'kernel: float32, up to' in found.detail


@pytest.mark.slow
def test_a_part_of_ours_keeps_its_contracts_in_all_forms():
    found = testing.check(ReluFeedForward(bias=False), 'feed_forward')
    assert len(found) == 15 and all(finding.holds for finding in found)


def test_a_whole_model_is_held_to_the_same():
    model = testing.small_model(architecture='decoder_only', block='parallel')
    found = testing.check(model, quick=True)
    assert 'logits do not depend on later tokens' in {
        finding.contract for finding in found
    }


def test_what_cannot_be_tried_is_no_failure_and_says_so():
    class OfAnotherDevice(SoftmaxAttention):
        backend = 'abacus'

    (found,) = testing.check(OfAnotherDevice)
    assert found.holds is None and found.detail == 'only on abacus'


@pytest.mark.parametrize(
    ('part', 'message'),
    [
        ('relu', "'relu' matches several kinds of component: attention, feed_f"),
        ('nowhere.Near', 'nowhere.Near: module nowhere not found'),
        (
            dict,
            'builtins.dict is not a component. Derive it from the base class of its',
        ),
        ('softmx', "'softmx' is not a component, .*Close matches: softmax"),
    ],
)
def test_what_is_no_part_is_refused(part, message):
    with pytest.raises(ValueError, match=message):
        testing.check(part)


@pytest.mark.parametrize(
    ('part', 'message'),
    [
        ('focl', "'focl' is not a component, .*Close matches: focal"),
        ('local(', r"'local\(' is not a spec: write name or name"),
        ('builtins.dict', 'builtins.dict cannot be a component. Give the path of'),
    ],
)
def test_the_command_names_what_is_no_part_in_one_short_line(part, message):
    with pytest.raises(UserError, match=message) as caught:
        check._kind_of(part)
    assert len(str(caught.value)) < 200


def test_the_command_prints_what_it_finds_and_exits_with_1(command, capsys):
    assert 'NO' not in command(check, 'swiglu', '--quick').out
    with pytest.raises(SystemExit) as leaving:
        command(check, 'test_testing.SeesTheFuture', '--quick')
    assert leaving.value.code == 1
    line = 'on later tokens +NO +logits at position 0 change by .* with token 1'
    assert re.search(line, capsys.readouterr().out)


class Mean(Loss):
    """A mean over all positions, padding included."""

    def token_losses(self, logits_BTV, labels_BT, *more):
        return label_log_p(logits_BTV, labels_BT) / labels_BT.size


class OfTheFirst(Loss):
    """A loss that weights the labels of the first row most."""

    def token_losses(self, logits_BTV, labels_BT, *more):
        weight_B1 = 1 / (1 + jnp.arange(len(labels_BT)))[:, None]
        return weight_B1 * label_log_p(logits_BTV, labels_BT)


class InfiniteCost(Loss):
    def token_losses(self, logits_BTV, labels_BT, *more):
        return jnp.sqrt(label_log_p(logits_BTV, labels_BT))


class LearnsNothing(Loss):
    def token_losses(self, logits_BTV, labels_BT, *more):
        return jnp.ones(labels_BT.shape)


@pytest.mark.parametrize(
    ('loss', 'message'),
    [
        (Mean, 'padding has no effect: the loss has a relative'),
        (OfTheFirst, 'the order of rows has no effect: the loss has a'),
        (InfiniteCost, 'the loss and its gradients are finite: NaN'),
        (LearnsNothing, 'gradients are not all zero: all are 0'),
    ],
)
def test_a_loss_with_a_mistake_is_found(loss, message):
    with pytest.raises(testing.BrokenContract, match=message):
        testing.require(testing.loss_findings(loss), 'it')


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


# What the files of a folder need to be told; of the others their names are specs.
TOLD = {
    'forced_prefix': 'forced_prefix(tokens=(5, 9))',
    'min_length': 'min_length(length=3)',
    'profile': 'profile(after=100)',
}
OF_OTHERS = {'wandb', 'mlflow'}  # hooks that call what is installed
OURS = [
    (field.rpartition('.')[2], TOLD.get(name, name))
    for field in ('filters', 'objective', 'train.hooks')
    for name in registries.FOLDERS[field].names()
    if name not in OF_OTHERS
] + [
    (field, TOLD.get(name, name))
    for field in ('decode', 'processors')
    for name in registries.FOLDERS[f'evaluation.{field}'].names()
]


# Slow tests: the tests of decoding hold every strategy to the same.
SLOW = ('diverse_beam', 'greedy', 'mbr')


@pytest.mark.parametrize(
    ('kind', 'part'),
    [pytest.param(*x, marks=[pytest.mark.slow] if x[1] in SLOW else []) for x in OURS],
)
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


class Twice(GreedySearch):
    def __call__(self, inputs, n_best=1):
        found = super().__call__(inputs, n_best)
        return found._replace(scores_BN=2 * found.scores_BN)


class FindsNothing(GreedySearch):
    def __call__(self, inputs, n_best=1):
        found = super().__call__(inputs, n_best)
        return found._replace(exists_BN=jnp.zeros_like(found.exists_BN))


class NeverEnds(GreedySearch):
    def __call__(self, inputs, n_best=1):
        found = super().__call__(inputs, n_best)
        return found._replace(tokens_BNL=jnp.full_like(found.tokens_BNL, 5))


class OfTheWholeBatch(Sampling):
    """Draws noise that depends on the number of rows."""

    def choose(self, state, logits_BNV, total_BNV):
        key = jax.random.fold_in(jax.random.key(1), state.beam.step)
        drawn_B = jax.random.categorical(key, logits_BNV[:, 0])
        return drawn_B[:, None].astype(jnp.int32)


class Forbids(Processor):
    def __call__(self, logits_BNV, tokens_BNL, step, eos):
        return jnp.full_like(logits_BNV, -jnp.inf)


class LooksAhead(Processor):
    def __call__(self, logits_BNV, tokens_BNL, step, eos):
        return logits_BNV + tokens_BNL[..., -1:]


class Raises(Processor):
    def __call__(self, logits_BNV, tokens_BNL, step, eos):
        return logits_BNV + 9.0


class OfAllRows(Processor):
    def __call__(self, logits_BNV, tokens_BNL, step, eos):
        return logits_BNV - logits_BNV[:1]


class InBfloat16(Processor):
    def __call__(self, logits_BNV, tokens_BNL, step, eos):
        return logits_BNV.astype(jnp.bfloat16)


CARELESS = [
    ('filters', KeepsNothing, 'some pairs are kept: no pair'),
    ('filters', GoesOn, 'every pass keeps the same pairs: '),
    ('filters', EverySecond, 'filtering twice changes nothing: '),
    ('objective', Draws, 'equal seeds give equal examples: number 0'),
    ('objective', Doubles, 'sides are not longer than the text: 1 ids became 2'),
    ('objective', Ends, r'examples have no special ids: \[57\] contains id 1'),
    ('hooks', Overwrites, 'rows are not modified: number 0: .* first, then'),
    ('hooks', AddsItself, 'added values are JSON serializable: .*AddsItself'),
    ('decode', Twice, 'scores equal teacher forcing: the score of .* differs'),
    ('decode', FindsNothing, 'every sentence has a result: sentence 0 has none'),
    ('decode', NeverEnds, 'results are tokens, an end token and padding: '),
    ('decode', OfTheWholeBatch, 'other rows have no effect: sentence .: '),
    (
        'processors',
        Forbids,
        'some token stays possible: no finite logit after 0 tokens',
    ),
    (
        'processors',
        LooksAhead,
        'later tokens have no effect: logits differ after 0',
    ),
    ('processors', Raises, 'no probability exceeds 1: the log-probability is '),
    ('processors', OfAllRows, 'other hypotheses have no effect: logits differ after 0'),
    (
        'processors',
        InBfloat16,
        'logits keep their shape, in float32: .* became bfloat16',
    ),
]


@pytest.mark.parametrize(('kind', 'part', 'message'), CARELESS)
def test_a_careless_part_of_the_runner_is_found(kind, part, message):
    found = contracts.findings(f'test_testing.{part.__name__}', kind)
    with pytest.raises(testing.BrokenContract, match=message):
        testing.require(found, 'it')
