"""Tests of `generate`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

import flaxformer_lite
from flaxformer_lite.decoding import (
    MBR,
    BeamSearch,
    ForcedPrefix,
    Greedy,
    MinLength,
    Sample,
)
from flaxformer_lite.generation import as_strategy
from flaxformer_lite.special_tokens import SpecialTokens

SOURCES = [[4, 5, 6, 7, 1], [10, 4, 1], [], [9, 1]]


def decoder_only(**overrides):
    model = tiny.model(num_layers=1, architecture='decoder_only', **overrides)
    return model, tiny.all_variables(model)


def by_decoding(model, variables, strategy, limits, length, n_best, **more):

    @jax.jit
    def run(source):
        max_len_B = jnp.asarray(limits)
        inputs = tiny.decode_inputs(model, variables, source, max_len_B, length)
        return as_strategy(strategy)(inputs._replace(**more), n_best)

    return run(tiny.padded(SOURCES))


def assert_same(found, expected):
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    np.testing.assert_array_equal(found.exists, expected.exists)
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-5)


@pytest.mark.ci
def test_generate_equals_the_search_of_its_strategy():
    model, variables = decoder_only()
    limits = [55, 53, 0, 52]
    beam = BeamSearch(beams=3, alpha=1.0)
    found = flaxformer_lite.generate(model, variables, SOURCES, beam, n_best=2)
    assert_same(found, by_decoding(model, variables, beam, limits, 55, n_best=2))
    assert found.exists.all(1).tolist() == [True, True, False, True]

    key, sample = jax.random.key(3), Sample(temperature=0.7, top_k=5, top_p=0.9)
    found = flaxformer_lite.generate(
        model, variables, tiny.padded(SOURCES), sample, key=key, max_length=6
    )
    keys_B = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(4))
    limits = [6, 6, 0, 6]
    expected = by_decoding(model, variables, sample, limits, 6, n_best=1, keys_B=keys_B)
    assert_same(found, expected)


@pytest.mark.slow
def test_token_ids_can_be_permuted():
    new = np.array([5, 0, 3, 1, 2, 4, 12, 11, 10, 9, 8, 7, 6])
    special = SpecialTokens(padding=5, eos=0, bos=3)
    sizes = tiny.SIZES | dict(num_layers=1, architecture='decoder_only')
    model = flaxformer_lite.config.build(sizes, 13)
    other = flaxformer_lite.config.build(sizes, 13, special)
    variables = tiny.all_variables(model)
    table = variables['params']['embedding']
    moved = {'params': variables['params'] | {'embedding': table[np.argsort(new)]}}

    pairs = tiny.SOURCES, tiny.TARGETS
    renumbered = [[new[row].tolist() for row in side] for side in pairs]
    batch = flaxformer_lite.make_batch(*pairs)
    again = flaxformer_lite.make_batch(*renumbered, bos=3, padding=5)
    found = tiny.loss_sums(other, moved, again)
    expected = tiny.loss_sums(model, variables, batch)
    tiny.assert_close(found, expected, atol=0, rtol=1e-5)

    expected = flaxformer_lite.generate(model, variables, pairs[0], max_length=6)
    found = flaxformer_lite.generate(other, moved, renumbered[0], max_length=6)
    np.testing.assert_array_equal(found.tokens, new[expected.tokens])
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5)


@pytest.mark.ci
def test_learned_positions_limit_the_length():
    model = tiny.model(num_layers=1, positions='learned(max_length=6)')
    variables = tiny.all_variables(model)
    generate = flaxformer_lite.generate
    found = generate(model, variables, SOURCES, Greedy)
    assert found.tokens.shape == (4, 1, 6)
    with pytest.raises(ValueError, match='a source has 7 tokens, but .* for only 6'):
        generate(model, variables, [[4] * 7])
    # The end token follows a forced prefix.
    prefix = ForcedPrefix(tokens=(4, 5, 6, 7, 8))
    found = generate(model, variables, SOURCES, Greedy(), processors=prefix)
    assert found.tokens[0, 0].tolist() == [4, 5, 6, 7, 8, 1]
    with pytest.raises(ValueError, match='exceed the 6 tokens of a target'):
        prefix = [ForcedPrefix(tokens=(4, 5, 6, 7, 8, 9))]
        generate(model, variables, SOURCES, Greedy(), processors=prefix)


def test_strings_warn_and_show_the_objects():
    model, variables = decoder_only()
    generate = functools.partial(
        flaxformer_lite.generate, model, variables, SOURCES, max_length=3
    )
    for settings, objects, shown in (
        (
            dict(strategy='beam(beams=2)'),
            dict(strategy=BeamSearch(beams=2)),
            r"strategy='beam\(beams=2\)'.* Pass fl.decoding.BeamSearch\(beams=2\)\.",
        ),
        (
            dict(processors='[min_length(length=2)]'),
            dict(processors=[MinLength(length=2)]),
            r'processors=.* Pass \[fl.decoding.MinLength\(length=2\)\]\.',
        ),
    ):
        with pytest.warns(DeprecationWarning, match=shown) as caught:
            found = generate(**settings)
        assert [warning.filename for warning in caught] == [__file__]
        assert_same(found, generate(**objects))


@pytest.mark.parametrize(
    ('settings', 'message'),
    [
        (
            dict(strategy='beams'),
            "strategy: 'beams' is not one of .*did you mean 'beam'",
        ),
        (
            dict(strategy=BeamSearch(beams=2), n_best=3),
            'n_best must be from 1 to the 2',
        ),
        (
            dict(processors='no_repeat'),
            "processors: 'no_repeat' is not one of forced_prefix",
        ),
        (dict(strategy=Sample), 'sampling needs a key'),
        (dict(strategy=MBR()), 'sampling needs a key'),
        (
            dict(strategy='mbr(utility="bleu")', key=jax.random.key(0)),
            "MBR.utility must be a function of token ids, not 'bleu'",
        ),
        (dict(source=[[4, 13, 1]]), 'source contains token id 13'),
        (dict(max_length=0), 'max_length must be at least 1'),
        (dict(forced_first=2), 'forced prefix: token 2 is not text'),
        (dict(forced_first=0), 'forced prefix: token 0 is not text'),
        (dict(forced_first=13), 'forced prefix: token 13 is not text'),
        (dict(forced_first=-1), 'forced prefix: token -1 is not text'),
        (dict(forced_first=4, max_length=1), 'forced prefix: 1 tokens'),
        (dict(processors=MinLength), 'processors: fl.decoding.MinLength needs length'),
        (dict(processors=ForcedPrefix((5, 2))), 'token 2 is not text'),
        (
            dict(processors=[ForcedPrefix((5, 6, 7))], max_length=3),
            'forced prefix: 3 tokens',
        ),
    ],
)
def test_invalid_arguments_are_rejected(settings, message):
    model, variables = decoder_only()
    with pytest.raises(ValueError, match=message):
        flaxformer_lite.generate(model, variables, **dict(source=SOURCES) | settings)
