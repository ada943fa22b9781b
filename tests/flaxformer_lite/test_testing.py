"""Tests that each contract finds a broken component and shows an example."""

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn

from flaxformer_lite import generation, testing
from flaxformer_lite.attention.softmax import SoftmaxAttention
from flaxformer_lite.config import variants
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
        ('relu', 'relu matches several kinds of component. Pass its kind: atten'),
        ('nowhere.Near', 'nowhere.Near: module nowhere not found'),
        (
            dict,
            "'builtins.dict' is not a component. .* the base class of its kind",
        ),
        ('softmx', "'softmx' is not a component. .*did you mean 'softmax'"),
    ],
)
def test_what_is_no_part_is_refused(part, message):
    with pytest.raises(ValueError, match=message):
        testing.check(part)


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


def findings(kind, part):
    if kind == 'decode':
        return testing.strategy_findings(generation.as_strategy(part))
    (processor,) = generation.as_processors(part)
    return testing.processor_findings(processor)


# The arguments that a component needs.
GIVEN = {
    'forced_prefix': 'forced_prefix(tokens=(5, 9))',
    'min_length': 'min_length(length=3)',
}
OURS = [
    *(('decode', name) for name in variants.STRATEGIES.names()),
    *(('processors', GIVEN.get(name, name)) for name in variants.PROCESSORS.names()),
]
# Slow tests: the tests of decoding hold every strategy to the same.
SLOW = ('diverse_beam', 'greedy', 'mbr')


@pytest.mark.parametrize(
    ('kind', 'part'),
    [pytest.param(*x, marks=[pytest.mark.slow] if x[1] in SLOW else []) for x in OURS],
)
def test_our_strategies_and_processors_keep_the_contracts(kind, part):
    found = testing.require(findings(kind, part), part)
    assert len(found) >= 2 and all(finding.holds for finding in found)


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
def test_a_careless_strategy_or_processor_is_found(kind, part, message):
    with pytest.raises(testing.BrokenContract, match=message):
        testing.require(findings(kind, part), 'it')
