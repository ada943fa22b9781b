"""Tests that a sentence's decoding does not depend on device, batch or window."""

import functools
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import tiny
from collectives import collectives
from small_runs import Numbers

from experiments.config.decoding import decoding_options
from experiments.config.schema import EvaluationConfig
from experiments.errors import UserError
from experiments.evaluation import scorer, translator
from experiments.runtime import compilation, mesh
from flaxformer_lite.generation import DecodingOptions, as_strategy, generate

ROWS = 64  # 16 of each device, of which 8 leave once the others are finished
LONGEST = 10
MODEL = tiny.model(num_layers=1)


def sources():
    """Returns short sources for the first device only, so that searches end apart."""
    rng = np.random.default_rng(0)
    longest = np.repeat([2, 6, LONGEST, LONGEST], ROWS // 4)
    lengths = rng.integers(1, longest)
    return [[*rng.integers(3, tiny.VOCAB, n).tolist(), 1] for n in lengths]


@pytest.mark.slow
@pytest.mark.parametrize(
    'settings',
    [
        {'strategy': 'greedy'},
        {'strategy': 'beam(beams=3)', 'n_best': 2},
        {'strategy': 'diverse_beam(beams=4, groups=2)'},
        {'strategy': 'sample(top_p=0.9)', 'key': jax.random.key(3)},
        {'strategy': 'mbr(samples=3)', 'key': jax.random.key(3)},
    ],
    ids=lambda settings: settings['strategy'],
)
def test_a_search_on_devices_finds_what_that_on_one_finds(settings):
    assert jax.device_count() == 4
    source_BS = tiny.padded(sources())
    variables = tiny.all_variables(MODEL)
    search = functools.partial(generate, MODEL, **settings)
    expected = jax.jit(search)(variables, source_BS)

    placed = (
        jax.device_put(variables, mesh.make_mesh().everywhere()),
        jax.device_put(source_BS, mesh.make_mesh().rows()),
    )
    program = compilation.compile_program(jax.jit(search), *placed)
    assert not collectives(program)
    found = program(*placed)
    assert found.scores_BN.sharding.is_equivalent_to(mesh.make_mesh().rows(), 2)
    np.testing.assert_array_equal(found.tokens_BNL, expected.tokens_BNL)
    np.testing.assert_array_equal(found.exists_BN, expected.exists_BN)
    np.testing.assert_allclose(found.scores_BN, expected.scores_BN, rtol=1e-5)
    lengths = (np.asarray(found.tokens_BNL[:, 0]) != 0).sum(-1).reshape(4, -1)
    assert len(set(lengths.max(1))) > 1  # the devices' loops are of unequal length


def test_the_program_of_translations_exchanges_nothing():
    options = DecodingOptions(as_strategy('beam(beams=3)'), extra_length=5)
    program = translator._search(MODEL, options, mesh.make_mesh())
    numbers_B = np.arange(ROWS, dtype=np.int32)
    limit_B = np.full(ROWS, LONGEST, np.int32)
    whole = tiny.all_variables(MODEL), jax.random.key(0)
    whole = jax.device_put(whole, mesh.make_mesh().everywhere())
    arrays = tiny.padded(sources()), limit_B, numbers_B
    rows = jax.device_put(arrays, mesh.make_mesh().rows())
    assert not collectives(
        compilation.compile_program(program._function, *whole, *rows, None)
    )


def test_a_sample_does_not_depend_on_the_window(monkeypatch):
    settings = EvaluationConfig(decode='sample', extra_length=5)
    translate = translator.Translator(MODEL, Numbers(), decoding_options(settings))
    variables = tiny.all_variables(MODEL)

    def drawn():
        return [found.text for (found,) in translate(variables, ['3 4'] * 4)]

    expected = drawn()
    assert expected[:2] != expected[2:]
    monkeypatch.setattr(translator, 'WINDOW', 2)
    assert drawn() == expected


def test_a_translation_may_exceed_its_source_by_extra_length():
    for extra in (2, 6):
        settings = EvaluationConfig(decode='greedy', extra_length=extra)
        translate = translator.Translator(MODEL, Numbers(), decoding_options(settings))
        texts = ['3', '4 5', '6 7 8']
        found = translate(tiny.all_variables(MODEL), texts)
        # A model with random weights rarely chooses the end token.
        excess = [
            len(best.text.replace(' 0', '').split()) - len(text.split())
            for (best,), text in zip(found, texts, strict=True)
        ]
        assert max(excess) == extra, excess


def test_a_text_with_too_many_tokens_is_named_after_those_before_it(monkeypatch):
    settings = EvaluationConfig(decode='greedy', extra_length=5)
    translate = translator.Translator(
        MODEL, Numbers(), decoding_options(settings), longest=4
    )
    monkeypatch.setattr(translator, 'WINDOW', 2)
    texts = ['3 4', '', '5', '3 4 5 6', '3']
    found = translate(tiny.all_variables(MODEL), texts)
    assert len([next(found) for _ in range(3)]) == 3
    with pytest.raises(UserError, match='line 4: 5 tokens exceed the limit of 4'):
        next(found)


def test_a_text_that_cannot_be_encoded_is_named_with_its_line():
    class Strict(Numbers):
        def encode(self, texts):
            if 'x' in texts:
                raise UserError('x is unknown.')
            return super().encode(texts)

    variables = tiny.all_variables(MODEL)
    decoding = decoding_options(EvaluationConfig(decode='greedy'))
    translate = translator.Translator(MODEL, Strict(), decoding)
    with pytest.raises(UserError, match='^line 4: x is unknown'):
        next(translate(variables, ['3', 'x'], first=2))
    with pytest.raises(UserError, match='^line 2: x is unknown'):
        next(scorer.Scorer(MODEL, Strict(), 64)(variables, [('3', '4'), ('x', '4')]))


def test_a_line_beyond_the_learned_positions_is_named():
    model = SimpleNamespace(max_length=4)
    message = 'line 12: a sentence has 5 tokens, but the model has learned positions'
    with pytest.raises(UserError, match=message):
        translator.check_lengths(model, [2, 5], 10)


def test_a_pair_with_too_many_tokens_is_named_after_those_before_it():
    class Pieces(Numbers):
        vocab_size = tiny.VOCAB

        def pieces(self, ids):
            return list(map(str, ids))

    score = scorer.Scorer(MODEL, Pieces(), 64, longest=4)
    found = score(tiny.all_variables(MODEL), [('3', '4'), ('3', '4 5 6 7')])
    assert len(next(found)) == 2
    with pytest.raises(UserError, match='line 2: 5 tokens exceed the limit of 4'):
        next(found)
