"""Tests of translation: choice of texts, and independence of device, batch, window."""

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
from experiments.evaluation.translator import Translator
from experiments.runtime import compilation, mesh
from flaxformer_lite.generation import DecodingOptions, as_strategy, generate

ROWS = 64  # 16 per device; the batch shrinks to 8 once the others have finished
LONGEST = 10
MODEL = tiny.model(num_layers=1)
EXTRA_LENGTH = 3
PROGRAMS = compilation.ProgramCache()


class Parities(Numbers):
    """Writes whether each token is even or odd, so that several ids share a text."""

    def decode(self, ids):
        return [' '.join(str(i % 2) for i in row) for row in ids]


def make_translator(decode='greedy', tokenizer=None, **options):
    decoding = decoding_options(
        EvaluationConfig(decode=decode, extra_length=EXTRA_LENGTH)
    )
    options |= {'seed': 5, 'program_cache': PROGRAMS}
    return Translator(MODEL, tokenizer or Numbers(), decoding, **options)


def translated(sources, *arguments, **options):
    translate = make_translator(*arguments, **options)
    return list(translate(tiny.all_variables(MODEL), sources))


@pytest.mark.ci
def test_each_text_of_a_search_comes_once_with_its_best_score():
    sources, decode = ['3 4', '5', '6 7 8'], 'beam(beams=8)'
    all_ids = translated(sources, decode, n_best=8)
    distinct = translated(sources, decode, Parities(), n_best=2)
    for hypotheses, ids in zip(distinct, all_ids, strict=True):
        best = {}
        for x in ids:
            row = [[int(i) for i in x.text.split()]]
            best.setdefault(Parities().decode(row)[0], x.score)
        assert len(best) < len(ids)
        assert [x.text for x in hypotheses] == list(best)
        assert [x.score for x in hypotheses] == pytest.approx(list(best.values()))


@pytest.mark.slow
def test_minimum_risk_with_one_sample_equals_sampling():
    sources = ['3 4', '5', '', '6 7 8']
    expected = translated(sources, 'sample(top_p=0.9)')
    assert translated(sources, 'mbr(samples=1, top_p=0.9)') == expected


def source_tokens():
    """Returns short sources on the first device, so that searches end at once there."""
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
def test_search_on_four_devices_equals_search_on_one(settings):
    assert jax.device_count() == 4
    source_BS = tiny.padded(source_tokens())
    variables = tiny.all_variables(MODEL)
    search = functools.partial(generate, MODEL, **settings)
    expected = jax.jit(search)(variables, source_BS)

    placed = (
        jax.device_put(variables, mesh.make_mesh().everywhere()),
        jax.device_put(source_BS, mesh.make_mesh().rows()),
    )
    program = compilation.compile_program(jax.jit(search), *placed)
    assert not collectives(program)
    result = program(*placed)
    assert result.scores.sharding.is_equivalent_to(mesh.make_mesh().rows(), 2)
    np.testing.assert_array_equal(result.tokens, expected.tokens)
    np.testing.assert_array_equal(result.exists, expected.exists)
    np.testing.assert_allclose(result.scores, expected.scores, rtol=1e-5)
    lengths = (np.asarray(result.tokens[:, 0]) != 0).sum(-1).reshape(4, -1)
    assert len(set(lengths.max(1))) > 1  # so the devices' loops have unequal lengths


@pytest.mark.ci
@pytest.mark.ci
def test_program_of_translation_has_no_collectives():
    options = DecodingOptions(as_strategy('greedy'), extra_length=5)
    program = translator._search(MODEL, options, mesh.make_mesh())
    numbers_B = np.arange(ROWS, dtype=np.int32)
    limit_B = np.full(ROWS, LONGEST, np.int32)
    replicated = tiny.all_variables(MODEL), jax.random.key(0)
    replicated = jax.device_put(replicated, mesh.make_mesh().everywhere())
    arrays = tiny.padded(source_tokens()), limit_B, numbers_B
    rows = jax.device_put(arrays, mesh.make_mesh().rows())
    assert not collectives(
        compilation.compile_program(program._function, *replicated, *rows, None)
    )


@pytest.mark.ci
@pytest.mark.ci
def test_samples_do_not_depend_on_the_window(monkeypatch):
    expected = [best.text for (best,) in translated(['3 4'] * 4, 'sample')]
    assert expected[:2] != expected[2:]
    monkeypatch.setattr(translator, 'WINDOW', 2)
    assert [best.text for (best,) in translated(['3 4'] * 4, 'sample')] == expected


@pytest.mark.ci
def test_translation_may_exceed_its_source_by_extra_length():
    sources = ['3', '4 5', '6 7 8']
    # A model with random weights rarely chooses the end token.
    excess = [
        len(best.text.replace(' 0', '').split()) - len(source.split())
        for (best,), source in zip(translated(sources), sources, strict=True)
    ]
    assert max(excess) == EXTRA_LENGTH, excess


class Strict(Numbers):
    vocab_size = tiny.VOCAB

    def encode(self, texts):
        if 'x' in texts:
            raise UserError('x is unknown.')
        return super().encode(texts)

    def pieces(self, ids):
        return list(map(str, ids))


@pytest.mark.ci
def test_invalid_line_is_named_after_the_results_before_it(monkeypatch):
    monkeypatch.setattr(translator, 'WINDOW', 2)
    variables = tiny.all_variables(MODEL)
    translate = make_translator(tokenizer=Strict(), longest=4)
    results = translate(variables, ['3 4', '', '5', '3 4 5 6', '3'])
    assert len([next(results) for _ in range(3)]) == 3
    with pytest.raises(UserError, match='line 4: 5 tokens exceed the limit of 4'):
        next(results)
    with pytest.raises(UserError, match='^line 4: x is unknown'):
        next(translate(variables, ['3', 'x'], first=2))
    score = scorer.Scorer(MODEL, Strict(), 64, longest=4)
    results = score(variables, [('3', '4'), ('3', '4 5 6 7')])
    assert len(next(results)) == 2
    with pytest.raises(UserError, match='line 2: 5 tokens exceed the limit of 4'):
        next(results)
    with pytest.raises(UserError, match='^line 2: x is unknown'):
        next(score(variables, [('3', '4'), ('x', '4')]))
    # Learned positions also have a limit.
    with pytest.raises(UserError, match='line 12: a sentence has 5 tokens'):
        translator.check_lengths(SimpleNamespace(max_length=4), [2, 5], 10)
