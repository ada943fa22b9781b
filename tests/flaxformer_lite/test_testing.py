"""Tests that each contract finds a broken component and shows an example."""

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn
from test_losses import Words, variables
from tiny import slow

from flaxformer_lite import generation, testing
from flaxformer_lite.attention.softmax import Softmax
from flaxformer_lite.config import variants
from flaxformer_lite.decoding.processors.base import Processor
from flaxformer_lite.decoding.strategies.greedy import Greedy
from flaxformer_lite.decoding.strategies.sample import Sample
from flaxformer_lite.feed_forward.base import FeedForward
from flaxformer_lite.feed_forward.relu import ReLU
from flaxformer_lite.init.xavier import Xavier
from flaxformer_lite.kv_cache import Cache
from flaxformer_lite.losses.base import Loss, label_log_p
from flaxformer_lite.norms.layer import LayerNorm
from flaxformer_lite.positions.base import Positions
from flaxformer_lite.testing import forms, models, parts


class SeesTheFuture(ReLU):
    """A convolution that looks ahead."""

    @nn.compact
    def __call__(self, x_BTD):
        return super().__call__(x_BTD + jnp.roll(x_BTD, -1, axis=1))


class IgnoresThePadding(Softmax):
    def __call__(self, q_BTHK, kv, *, positions_BT, mask_BHTS, **others):
        before_BTS = kv.positions_BS[:, None] <= positions_BT[:, :, None]
        mask_BHTS |= before_BTS[:, None]
        arguments = dict(positions_BT=positions_BT, mask_BHTS=mask_BHTS)
        return super().__call__(q_BTHK, kv, **arguments, **others)


class CountsAlongTheRow(Positions):
    def embed(self, x_BTD, positions_BT):
        return x_BTD + jnp.arange(x_BTD.shape[1])[None, :, None]


class SubtractsTheMeanOfTheBatch(LayerNorm):
    def normalize(self, x_BTD):
        return x_BTD - x_BTD.mean(0, keepdims=True)


class ForgetfulCache(Cache):
    def append(self, new, beam):
        _, everything = super().append(new, beam)
        return self, everything


class Forgets(Softmax):
    causal_only = True  # which tests it in a decoder alone

    def init_cache(self, prefix, valid_BS):
        return ForgetfulCache.starting_with(prefix)


class InfiniteSlope(ReLU):
    def activation(self, h_BTF):
        return jnp.sqrt(jnp.maximum(h_BTF, 0.0))


class HasTooMany(ReLU):
    @nn.compact
    def __call__(self, x_BTD):
        self.param('spare', nn.initializers.ones, (3,))
        return super().__call__(x_BTD)


QUICK = (
    SeesTheFuture,
    IgnoresThePadding,
    CountsAlongTheRow,
    SubtractsTheMeanOfTheBatch,
)


@pytest.mark.ci
@pytest.mark.parametrize(
    ('part', 'message'),
    [
        (
            SeesTheFuture,
            'logits do not depend on later tokens: '
            r'logits at position 0 change by \d.* with token 1',
        ),
        (
            IgnoresThePadding,
            'padding has no effect: '
            'logits at position 0 change by .* with other tokens in padding',
        ),
        (
            CountsAlongTheRow,
            'packing has no effect: '
            'logits at position 0 change by .* if packed as number 1 of a row',
        ),
        (
            SubtractsTheMeanOfTheBatch,
            'other rows have no effect: '
            'logits at position 0 change by .* with other rows in the batch',
        ),
        (
            Forgets,
            'cached decoding equals teacher forcing: logits at position 1 differ by ',
        ),
        (
            InfiniteSlope,
            'logits and gradients are finite: '
            'the gradient of decoder/layer_0/.*: NaN or infinity',
        ),
        (
            HasTooMany,
            'every parameter has a nonzero gradient: '
            'the gradient of decoder/layer_0/feed_forward/spare is 0',
        ),
    ],
)
def test_broken_component_is_found_with_its_smallest_example(part, message):
    with pytest.raises(testing.BrokenContract, match=message):
        testing.check(part, quick=part in QUICK)


def test_products_that_accumulate_in_bfloat16_are_found():
    class Rounds(FeedForward):
        @nn.compact
        def __call__(self, x_BTD):
            shape = x_BTD.shape[-1:] * 2
            kernel = self.param('kernel', nn.initializers.ones, shape)
            return x_BTD.astype(self.dense.dtype) @ kernel.astype(self.dense.dtype)

    def finding(part):
        model = parts.model_with(part, 'feed_forward').with_separate_layers()
        rounded = forms.in_bfloat16(model)
        products = forms.products(rounded, models.random_variables(model))
        return forms.float32_sums(products)

    assert finding(ReLU).holds
    found = finding(Rounds)
    assert not found.holds
    assert found.detail == 'dot_general of bfloat16 accumulates in bfloat16'


def test_initial_values_that_are_not_finite_are_found():
    class Infinite(Xavier):
        def matrix(self, key, fan_in, fan_out, name):
            return super().matrix(key, fan_in, fan_out, name) / 0.0

    found = models.first_values(parts.model_with(Infinite, 'init'))
    assert not found.holds and 'kernel: float32, up to' in found.detail


@pytest.mark.slow
def test_component_is_tested_in_all_forms():
    found = testing.check(ReLU(bias=False), 'feed_forward')
    assert len(found) == 15 and all(finding.holds for finding in found)
    assert models.first_values(parts.model_with(Xavier, 'init')).holds


def test_whole_model_is_tested():
    model = testing.small_model(architecture='decoder_only', block='parallel')
    contracts = {finding.contract for finding in testing.check(model, quick=True)}
    assert 'logits do not depend on later tokens' in contracts


def test_component_of_another_device_is_reported_as_untested():
    class OfAnotherDevice(Softmax):
        backend = 'abacus'

    (found,) = testing.check(OfAnotherDevice)
    assert found.holds is None and found.detail == 'only on abacus'


@pytest.mark.parametrize(
    ('part', 'message'),
    [
        ('relu', 'relu matches several kinds of component'),
        ('nowhere.Near', 'module nowhere not found'),
        (dict, "'builtins.dict' is not a component"),
        ('softmx', "did you mean 'softmax'"),
    ],
)
def test_unknown_component_is_rejected(part, message):
    with pytest.raises(ValueError, match=message):
        testing.check(part)


def test_model_with_a_too_small_vocabulary_is_rejected():
    model = parts.small_model().clone(vocab_size=12)
    with pytest.raises(ValueError, match='vocab_size=12 is too small'):
        testing.check(model)


class Mean(Loss):
    """A mean over all positions, padding included."""

    def __call__(self, logits, batch):
        return label_log_p(logits, batch['labels']) / batch['labels'].size


class WeightsTheFirstRow(Loss):
    def __call__(self, logits, batch):
        weight_B1 = 1 / (1 + jnp.arange(len(logits)))[:, None]
        return weight_B1 * label_log_p(logits, batch['labels'])


class InfiniteCost(Loss):
    def __call__(self, logits, batch):
        return jnp.sqrt(label_log_p(logits, batch['labels']))


class LearnsNothing(Loss):
    def __call__(self, logits, batch):
        return jnp.ones(batch['labels'].shape)


@pytest.mark.ci
@pytest.mark.parametrize(
    ('loss', 'message'),
    [
        (Mean, 'padding has no effect: the loss has a relative'),
        (WeightsTheFirstRow, 'the order of rows has no effect: the loss has a'),
        (InfiniteCost, 'the loss and its gradients are finite: NaN'),
        (LearnsNothing, 'gradients are not all zero: all are 0'),
    ],
)
def test_broken_loss_is_found(loss, message):
    with pytest.raises(testing.BrokenContract, match=message):
        found = testing.loss_findings(loss, Words(), variables())
        testing.require(found, 'the loss')


def made(kind, part):
    if kind == 'decode':
        return generation.as_strategy(part)
    (processor,) = generation.as_processors(part)
    return processor


# The arguments that a component needs.
SPECS = {
    'forced_prefix': 'forced_prefix(tokens=(5, 9))',
    'min_length': 'min_length(length=3)',
}
COMPONENTS = [
    # test_decoding tests the same of every strategy.
    *(slow('decode', name) for name in variants.STRATEGIES.names()),
    *(('processors', SPECS.get(name, name)) for name in variants.PROCESSORS.names()),
]


@pytest.mark.parametrize(('kind', 'part'), COMPONENTS)
def test_strategies_and_processors_keep_their_contracts(kind, part):
    found = testing.check(made(kind, part))
    assert len(found) >= 2 and all(finding.holds for finding in found)


class DoublesScores(Greedy):
    def __call__(self, inputs, n_best=1):
        found = super().__call__(inputs, n_best)
        return found._replace(scores=2 * found.scores)


class FindsNothing(Greedy):
    def __call__(self, inputs, n_best=1):
        found = super().__call__(inputs, n_best)
        return found._replace(exists=jnp.zeros_like(found.exists))


class NeverEnds(Greedy):
    def __call__(self, inputs, n_best=1):
        found = super().__call__(inputs, n_best)
        return found._replace(tokens=jnp.full_like(found.tokens, 5))


class PrefersTheUnlikely(Greedy):
    def score(self, log_p, length):
        return -log_p


class NoiseOfTheBatch(Sample):
    """Draws noise that depends on the number of rows."""

    def choose(self, state, logits_BNV, total_BNV):
        key = jax.random.fold_in(jax.random.key(1), state.beam.step)
        drawn_B = jax.random.categorical(key, logits_BNV[:, 0])
        return drawn_B[:, None].astype(jnp.int32)


class ForbidsEverything(Processor):
    def __call__(self, logits_BNV, tokens_BNL, step, eos):
        return jnp.full_like(logits_BNV, -jnp.inf)


class LooksAhead(Processor):
    def __call__(self, logits_BNV, tokens_BNL, step, eos):
        return logits_BNV + tokens_BNL[..., -1:]


class RaisesLogits(Processor):
    def __call__(self, logits_BNV, tokens_BNL, step, eos):
        return logits_BNV + 9.0


class ComparesRows(Processor):
    def __call__(self, logits_BNV, tokens_BNL, step, eos):
        return logits_BNV - logits_BNV[:1]


class ReturnsBfloat16(Processor):
    def __call__(self, logits_BNV, tokens_BNL, step, eos):
        return logits_BNV.astype(jnp.bfloat16)


@pytest.mark.parametrize(
    ('kind', 'part', 'message'),
    [
        slow(
            'decode',
            DoublesScores,
            'scores are `score` of the log-prob.*: the score of .* dif',
        ),
        slow(
            'decode',
            PrefersTheUnlikely,
            'does not score lower: 1 tokens with log-probability -8 score 8.000',
        ),
        slow('decode', NoiseOfTheBatch, 'other rows have no effect: sentence .: '),
        slow(
            'decode', FindsNothing, 'every sentence has a result: sentence 0 has none'
        ),
        slow('decode', NeverEnds, 'results are tokens, an end token and padding: '),
        ('processors', ForbidsEverything, 'some token stays possible: no finite logit'),
        ('processors', LooksAhead, 'later tokens have no effect: logits differ after'),
        ('processors', RaisesLogits, 'no probability exceeds 1: the log-probability'),
        ('processors', ComparesRows, 'other hypotheses have no effect: logits differ'),
        (
            'processors',
            ReturnsBfloat16,
            'logits keep their shape, in float32: .* became bfloat16',
        ),
    ],
)
def test_broken_strategy_or_processor_is_found(kind, part, message):
    with pytest.raises(testing.BrokenContract, match=message):
        testing.check(made(kind, part))
