"""Tests of the library alone, as the README uses it."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny

import flaxformer_lite
from flaxformer_lite.config.schema import ModelConfig
from flaxformer_lite.decoding.strategies.sample import Sampling
from flaxformer_lite.generation import as_strategy
from flaxformer_lite.special_tokens import SpecialTokens
from flaxformer_lite.training.batch import BATCH_ARRAYS


def test_a_former_name_raises_an_error_that_names_its_replacement():
    for name, replacement in (
        ('from_pretrained', 'flaxformer_checkpoints.from_pretrained'),
        ('explanations', 'flaxformer_explain.explanations'),
        ('patch', 'intervene({name: interventions.set_to(value)})'),
        ('ablation_masks', 'intervene({name: interventions.scale(0.0, heads=[…])})'),
    ):
        expected = re.escape(f'flaxformer_lite.{name} is now {replacement}')
        with pytest.raises(AttributeError, match=f'^{expected}$'):
            getattr(flaxformer_lite, name)


def test_the_defaults_are_the_papers_base_model():
    paper = dict(
        d_model=512,
        num_layers=6,
        num_heads=8,
        d_ff=2048,
        dropout=0.1,
        attention='softmax',
        positions='sinusoidal',
        norm='layer',
        residual='post_norm',
        feed_forward='relu',
        tie='all',
        scale_embeddings=True,
    )
    assert ModelConfig.of(paper) == ModelConfig()


def test_a_batch_is_one_pair_a_row():
    sources = [source for source, _ in tiny.PAIRS]
    targets = [target for _, target in tiny.PAIRS]
    found = flaxformer_lite.make_batch(sources, targets)
    expected = tiny.batch([[pair] for pair in tiny.PAIRS])
    assert found.keys() == set(BATCH_ARRAYS)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
        assert found[name].dtype == jnp.int32
    # Arrays that are filled up are the same, also while they are traced.
    padded = tiny.padded(sources), np.asarray(tiny.padded(targets))
    again = jax.jit(flaxformer_lite.make_batch)(*padded)
    jax.tree.map(np.testing.assert_array_equal, again, found)


@pytest.mark.parametrize(
    ('source', 'target', 'message'),
    [
        ([[4], [5]], [[6]], 'each of the 2 sources, not 1 rows'),
        ([[4, 0, 5]], [[6]], 'source, row 0: .* none of them may be 0'),
        ([4, 5], [[6]], 'source must be rows of tokens, a list for each'),
        (np.ones((2, 3)), [[6]], r'source must be whole numbers .* float64 \(2, 3\)'),
    ],
)
def test_a_batch_refuses_what_is_no_rows_of_tokens(source, target, message):
    with pytest.raises(ValueError, match=message):
        flaxformer_lite.make_batch(source, target)


def test_rows_longer_than_the_length_asked_for_are_refused():
    assert flaxformer_lite.make_batch([[4, 1]], [[5]], length=3)['labels'].shape == (
        1,
        3,
    )
    with pytest.raises(ValueError, match='target has a row of 4 tokens, more than len'):
        flaxformer_lite.make_batch([[4, 1]], [[5, 6, 7, 1]], length=3)


@pytest.mark.parametrize(('side', 'size'), [('source', 9), ('target', 6)])
def test_a_token_beyond_the_vocabulary_of_its_side_is_refused(side, size):
    model = tiny.model(tie='decoder').clone(vocab_size=6, source_vocab_size=9)
    largest = dict(source=[[8, 1]], target=[[5, 1]])
    flaxformer_lite.make_batch(**largest, model=model)
    message = f'{side} contains token id {size}, but vocab_size={size} '
    with pytest.raises(ValueError, match=message):
        flaxformer_lite.make_batch(**largest | {side: [[size, 1]]}, model=model)


def test_a_batch_for_a_model_has_its_special_tokens():
    special_tokens = SpecialTokens(padding=7, bos=7, eos=1)
    model = tiny.model().clone(special_tokens=special_tokens)
    pairs = [[4, 1], [5, 6, 1]], [[6, 5, 1], [4, 1]]
    found = flaxformer_lite.make_batch(*pairs, model=model)
    expected = flaxformer_lite.make_batch(*pairs, bos=7, padding=7)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    np.testing.assert_array_equal(found['inputs'], [[7, 6, 5], [7, 4, 7]])
    np.testing.assert_array_equal(found['source'], [[4, 1, 7], [5, 6, 1]])


SOURCES = [[4, 5, 6, 7, 1], [10, 4, 1], [], [9, 1]]


def made(**overrides):
    model = tiny.model(num_layers=1, **overrides)
    return model, tiny.all_variables(model)


def by_decoding(model, variables, strategy, limits, length, n_best=2, **more):

    @jax.jit
    def run(source):
        max_len_B = jnp.asarray(limits)
        inputs = tiny.decode_inputs(model, variables, source, max_len_B, length)
        return as_strategy(strategy)(inputs._replace(**more), n_best)

    return run(tiny.padded(SOURCES))


def assert_same(found, expected):
    np.testing.assert_array_equal(found.tokens_BNL, expected.tokens_BNL)
    np.testing.assert_array_equal(found.exists_BN, expected.exists_BN)
    np.testing.assert_allclose(found.scores_BN, expected.scores_BN, atol=1e-5)


def test_generate_is_the_search_that_it_names():
    model, variables = made()
    limits = [55, 53, 0, 52]
    beam = 'beam(beams=3, alpha=1.0)'
    found = flaxformer_lite.generate(model, variables, SOURCES, beam, n_best=2)
    expected = by_decoding(model, variables, beam, limits, 55)
    assert_same(found, expected)
    assert found.exists_BN.all(1).tolist() == [True, True, False, True]

    key, sample = jax.random.key(3), Sampling(temperature=0.7, top_k=5, top_p=0.9)
    found = flaxformer_lite.generate(
        model, variables, tiny.padded(SOURCES), sample, key=key, max_length=6
    )
    keys_B = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(4))
    expected = by_decoding(
        model, variables, sample, [6, 6, 0, 6], 6, n_best=1, keys_B=keys_B
    )
    assert_same(found, expected)


def test_numbers_of_tokens_mean_nothing_by_themselves():
    new = np.array([5, 0, 3, 1, 2, 4, 12, 11, 10, 9, 8, 7, 6])
    special = SpecialTokens(padding=5, eos=0, bos=3)
    sizes = tiny.SIZES | dict(num_layers=1)
    model = flaxformer_lite.build.model(sizes, 13)
    other = flaxformer_lite.build.model(sizes, 13, special)
    variables = tiny.all_variables(model)
    table = variables['params']['embedding']
    moved = {'params': variables['params'] | {'embedding': table[np.argsort(new)]}}

    pairs = [source for source, _ in tiny.PAIRS], [target for _, target in tiny.PAIRS]
    renumbered = [[new[row].tolist() for row in side] for side in pairs]
    batch = flaxformer_lite.make_batch(*pairs)
    again = flaxformer_lite.make_batch(*renumbered, bos=3, padding=5)
    sums = jax.jit(flaxformer_lite.loss_sums, static_argnums=0)
    found, expected = sums(other, moved, again), sums(model, variables, batch)
    jax.tree.map(lambda *x: np.testing.assert_allclose(*x, rtol=1e-5), found, expected)

    expected = flaxformer_lite.generate(model, variables, pairs[0], max_length=6)
    found = flaxformer_lite.generate(other, moved, renumbered[0], max_length=6)
    np.testing.assert_array_equal(found.tokens_BNL, new[expected.tokens_BNL])
    np.testing.assert_allclose(found.scores_BN, expected.scores_BN, rtol=1e-5)


def test_generate_stays_within_learned_positions():
    model, variables = made(positions='learned(max_length=6)')
    found = flaxformer_lite.generate(model, variables, SOURCES, 'greedy')
    assert found.tokens_BNL.shape == (4, 1, 6)
    with pytest.raises(ValueError, match='a source has 7 tokens, but .* for only 6'):
        flaxformer_lite.generate(model, variables, [[4] * 7])


def test_a_forced_prefix_leaves_room_for_the_end_of_each_target():
    model, variables = made(positions='learned(max_length=6)')
    for length, refused in ((5, False), (6, True)):
        tokens = (4, 5, 6, 7, 8, 9)[:length]
        ask = functools.partial(
            flaxformer_lite.generate,
            model,
            variables,
            SOURCES,
            'greedy',
            processors=f'forced_prefix(tokens={tokens})',
        )
        if refused:
            with pytest.raises(ValueError, match='exceed the 6 tokens of a target'):
                ask()
        else:
            assert ask().tokens_BNL[0, 0].tolist() == [*tokens, 1]


@pytest.mark.parametrize(
    ('settings', 'message'),
    [
        (dict(strategy='beams'), "'beams' is not one of beam, .*did you mean 'beam'"),
        (dict(strategy='beam(beams=2)', n_best=3), 'n_best must be from 1 to the 2 '),
        (dict(processors='no_repeat'), "'no_repeat' is not one of forced_prefix, "),
        (dict(strategy='sample'), 'sampling needs a key'),
        (dict(strategy='mbr'), 'sampling needs a key'),
        (
            dict(strategy='mbr(utility="bleu")', key=jax.random.key(0)),
            "utility must be a function of token ids, not 'bleu'. Leave it out, or",
        ),
        (dict(source=[[4, 13, 1]]), 'source contains token id 13, but vocab_size=13 '),
        (dict(max_length=0), 'max_length must be at least 1, not 0'),
        (
            dict(forced_first=2),
            'forced prefix: token 2 is not text. Choose from the 13',
        ),
        (dict(forced_first=0), 'forced prefix: token 0 is not text'),
        (dict(forced_first=13), 'forced prefix: token 13 is not text'),
        (dict(forced_first=-1), 'forced prefix: token -1 is not text'),
        (
            dict(forced_first=4, max_length=1),
            '1 tokens and the end .* exceed the 1 tok',
        ),
        (dict(processors='forced_prefix(tokens=(5, 2))'), 'token 2 is not text'),
        (
            dict(processors='forced_prefix(tokens=(5, 6, 7))', max_length=3),
            'forced prefix: 3 tokens and the end token exceed the 3 tokens of a target',
        ),
    ],
)
def test_generate_refuses_what_it_cannot_do(settings, message):
    model, variables = made()
    with pytest.raises(ValueError, match=message):
        flaxformer_lite.generate(model, variables, **dict(source=SOURCES) | settings)


def test_parameters_alone_are_no_variables():
    model, variables = made()
    params, rows = variables['params'], tiny.batch([[pair] for pair in tiny.PAIRS])
    for ask in (
        lambda: flaxformer_lite.record(model, params, rows),
        lambda: flaxformer_lite.attention_stats(model, params, rows),
        lambda: flaxformer_lite.generate(model, params, SOURCES),
        lambda: flaxformer_lite.loss_sums(model, params, rows),
    ):
        with pytest.raises(ValueError, match="variables must be {'params': …}"):
            ask()


def test_a_batch_without_one_of_its_arrays_is_refused():
    model, variables = made()
    rows = tiny.batch([[pair] for pair in tiny.PAIRS])
    del rows['labels']
    optimizer = optax.sgd(1.0)
    state = flaxformer_lite.TrainState.create(variables, optimizer)
    step = flaxformer_lite.make_train_step(model, optimizer)
    for ask in (
        lambda: step(state, rows, jax.random.key(0)),
        lambda: flaxformer_lite.loss_sums(model, variables, rows),
        lambda: flaxformer_lite.attention_stats(model, variables, rows),
    ):
        with pytest.raises(ValueError, match='batch: missing labels'):
            ask()


def test_a_loss_is_smoothed_alike_wherever_nothing_is_said():
    model = tiny.model(num_layers=1, dropout=0.0)
    rows = tiny.batch([[pair] for pair in tiny.PAIRS])
    variables, optimizer = {'params': tiny.parameters(model)}, optax.sgd(1.0)
    state = flaxformer_lite.TrainState.create(variables, optimizer)
    step = jax.jit(flaxformer_lite.make_train_step(model, optimizer))
    _, metrics = step(state, rows, jax.random.key(0))
    sums = jax.jit(flaxformer_lite.loss_sums, static_argnums=0)(model, variables, rows)
    np.testing.assert_allclose(sums.loss, metrics.sums.loss, rtol=1e-6)
    assert abs(sums.loss - sums.nll) > 0.1  # which is without
