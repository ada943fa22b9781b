"""Tests of the model as a whole, against numbers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import linen as nn
from flax.traverse_util import flatten_dict, unflatten_dict

import flaxformer_lite
from flaxformer_lite.generation import as_strategy
from flaxformer_lite.kv_cache import BeamState
from flaxformer_lite.layers.blocks.parallel import ParallelBlock
from flaxformer_lite.layers.blocks.sequential import SequentialBlock
from flaxformer_lite.layers.dropout import Dropout
from flaxformer_lite.masks import AttentionContext
from flaxformer_lite.residual.pre_norm import PreNorm
from flaxformer_lite.training.loss import loss_sums


def made(**overrides):
    model = tiny.model(**overrides)
    return model, tiny.all_variables(model)


def one_layer(overrides):
    return made(**dict(num_layers=1) | overrides)


def changed(p, pattern, change):
    """Returns parameters, changed where the path contains the pattern."""
    flat = flatten_dict(p, sep='/')
    assert any(pattern in name for name in flat)
    return unflatten_dict(
        {k: change(x) if pattern in k else x for k, x in flat.items()}, sep='/'
    )


def test_the_sources_keys_and_values_are_projected_once_a_sentence():
    model, p = made()
    source = tiny.padded([[4, 5, 6, 1], [7, 1]])
    state = tiny.apply(model, p, source, method='prefill')
    # Whatever the matrices are by then: a step does not look at them.
    later = p
    for name in ('key', 'value'):
        later = changed(later, f'cross_attention/{name}', lambda x: x * jnp.nan)
    beam = BeamState(
        step=jnp.int32(0),
        parent_BN=jnp.zeros((2, 1), jnp.int32),
        visible_BNS=jnp.ones((2, 1, 1), bool),
    )
    arguments = jnp.full((2, 1), 2), state.allocate(1, 1), beam
    found, _ = tiny.apply(model, later, *arguments, method='decode_step')
    expected, _ = tiny.apply(model, p, *arguments, method='decode_step')
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize('architecture', ['encoder_decoder', 'prefix_lm'])
def test_a_start_token_may_have_the_number_of_padding(architecture):
    """T5 shares the id: start token 0 with the vector of token 2 acts as token 2."""
    model, p = one_layer(dict(architecture=architecture, tie='none'))
    table = p['params']['embedding']
    zero = {'params': p['params'] | {'embedding': table.at[0].set(table[2])}}
    source = tiny.padded([[4, 5, 6, 1], [7, 1]])
    targets = [[8, 9, 3], [5]]
    expected = tiny.apply(model, p, source, tiny.padded([[2, *t] for t in targets]))
    found = tiny.apply(model, zero, source, tiny.padded([[0, *t] for t in targets]))
    np.testing.assert_allclose(found[0], expected[0], atol=1e-5)
    np.testing.assert_allclose(found[1, :2], expected[1, :2], atol=1e-5)

    tokens, scores, _ = translate(model, zero, source, bos=0)
    forced = teacher_forced(model, zero, source, tokens, bos=0)
    np.testing.assert_allclose(scores, forced, rtol=1e-4)


@pytest.mark.parametrize(
    ('tie', 'source', 'output'),
    [
        ('all', 'embedding', 'embedding'),
        ('decoder', 'source_embedding', 'embedding'),
        ('source_target', 'embedding', 'output'),
        ('none', 'source_embedding', 'output'),
    ],
)
def test_ties(tie, source, output):
    model, p = made(tie=tie)
    matrices = {k: v for k, v in p['params'].items() if k not in ('encoder', 'decoder')}
    assert set(matrices) == {'embedding', source, output}
    bound = model.bind(p)
    np.testing.assert_array_equal(bound.target_VD, matrices['embedding'])
    np.testing.assert_array_equal(bound.source_VD, matrices[source])
    np.testing.assert_array_equal(bound.output_VD, matrices[output])


def test_logits_are_scaled_then_biased_then_capped():
    model, p = made(tie='none', num_layers=1, output_bias=True)
    params = p['params']
    bias = np.float64(params['output_bias'])
    source, inputs = tiny.padded([[4, 5, 1]]), tiny.padded([[2, 6, 7]])
    z = np.float64(tiny.apply(model, p, source, inputs)) - bias
    capped = tiny.model(
        tie='none', num_layers=1, output_bias=True, scale_logits=True, logit_cap=0.5
    )
    found = tiny.apply(capped, p, source, inputs)
    expected = 0.5 * np.tanh((z / np.sqrt(12) + bias) / 0.5)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    batch = flaxformer_lite.make_batch([[4, 5, 1]], [[6, 7, 1]])
    nll = -np.log(np.exp(expected[0]) / np.exp(expected[0]).sum(-1, keepdims=True))
    sums = jax.jit(loss_sums, static_argnums=0)(capped, p, batch)
    np.testing.assert_allclose(sums.nll, nll[range(3), [6, 7, 1]].sum(), rtol=1e-5)


@functools.partial(jax.jit, static_argnums=0)
def translate(model, p, source, bos=2):
    words_B = (source != 0).sum(-1)
    max_len_B = jnp.where(words_B > 0, words_B + 5, 0)
    inputs = tiny.decode_inputs(model, p, source, max_len_B, length=10, bos=bos)
    return as_strategy('beam(beams=3)')(inputs, n_best=3)


def teacher_forced(model, p, source, tokens, bos=2):
    labels = np.asarray(tokens).reshape(-1, 10)
    inputs = np.insert(labels, 0, bos, axis=1)[:, :-1]
    out = tiny.apply(model, p, jnp.repeat(source, 3, axis=0), inputs)
    log_p = np.take_along_axis(
        np.asarray(jax.nn.log_softmax(out)), labels[..., None], -1
    )[..., 0]
    lengths = (labels == 1).argmax(-1) + 1
    sums = np.array([row[:n].sum() for row, n in zip(log_p, lengths, strict=True)])
    return (sums / ((5 + lengths) / 6) ** 0.6).reshape(-1, 3)


def listening():
    """Returns random weights whose outputs depend on the source."""
    model = tiny.model(tie='none')
    p = {'params': tiny.parameters(model, seed=2)}
    p = changed(changed(p, 'bias', jnp.zeros_like), 'scale', jnp.ones_like)
    return model, changed(p, 'cross_attention/', lambda x: 2 * x)


SOURCES = [source for source, _ in tiny.PAIRS]


def test_a_beam_is_as_it_was():
    """If you changed the model, the search or parameter names on purpose, copy the new
    beam here. The exhaustive search in test_decoding checks its correctness, and so do
    the scores of whole targets below.
    """
    tokens, scores, _ = translate(*listening(), tiny.padded([*SOURCES, []]))
    why = test_a_beam_is_as_it_was.__doc__
    expected = [[1], [5, 3, 5, 5, 5, 5, 5, 1], [1], []]
    expected = tiny.padded(expected, length=10)
    np.testing.assert_array_equal(tokens[:, 0], expected, err_msg=why)
    np.testing.assert_allclose(
        scores[:3, 0], [-2.7802, -8.7680, -2.9594], atol=1e-3, err_msg=why
    )


def test_a_sentence_translates_the_same_alone_and_in_any_batch():
    model, p = listening()
    tokens, scores, exists = translate(model, p, tiny.padded([*SOURCES, []]))
    np.testing.assert_array_equal(tokens[-1], 0)
    np.testing.assert_array_equal(exists.all(1), [True, True, True, False])
    alone = translate(model, p, tiny.padded(SOURCES[1:2]))
    np.testing.assert_array_equal(alone.tokens_BNL[0], tokens[1])
    np.testing.assert_allclose(alone.scores_BN[0], scores[1], atol=1e-5)

    # A translation's score is what the whole model says of its tokens.
    expected = teacher_forced(model, p, tiny.padded(SOURCES), tokens[:3])
    np.testing.assert_allclose(scores[:3], expected, rtol=1e-4)


class Times(nn.Module):
    """A stub of a sublayer that ignores its other arguments."""

    factor: float

    def project_kv(self, h_BTD, positions_BT):
        return h_BTD

    def __call__(self, h_BTD, *args, **kwargs):
        return self.factor * h_BTD


class PlusOne(nn.Module):
    """A stub of a norm."""

    def __call__(self, x_BTD):
        return x_BTD + 1


@pytest.mark.parametrize(
    ('kind', 'expected'),
    [
        (ParallelBlock, lambda x: x + (2 + 3 + 5) * (x + 1)),
        (
            SequentialBlock,
            lambda x: functools.reduce(lambda x, k: x + k * (x + 1), (2, 3, 5), x),
        ),
    ],
)
def test_sublayers_follow_each_other_or_read_the_same(kind, expected):
    block = kind(
        self_attention=Times(2.0),
        cross_attention=Times(3.0),
        feed_forward=Times(5.0),
        residual=PreNorm(norm=PlusOne(), dropout=Dropout(0.0)),
    )
    x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 2, 3)), jnp.float32)
    context = AttentionContext(
        positions_BT=jnp.zeros((1, 2)),
        mask_BHTS=jnp.ones((1, 2)),
        cross_mask_BHTS=jnp.ones(()),
    )
    y, _ = block.apply({}, x, context, x)
    np.testing.assert_allclose(y, expected(x), rtol=1e-5)
