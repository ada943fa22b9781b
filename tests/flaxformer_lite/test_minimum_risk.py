"""Tests of minimum Bayes risk decoding, against choices by hand."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from small_runs import Numbers

from experiments.config import search
from experiments.config.schema import EvaluationConfig
from experiments.evaluation.translator import Translator, mean_utilities
from experiments.metrics.base import Metric
from flaxformer_lite import generate
from flaxformer_lite.decoding.strategies.mbr import MBRDecoding, gleu
from flaxformer_lite.decoding.strategies.sample import Sampling


class Shared(Metric):
    def statistics(self, outputs, references, sources):
        assert set(sources) == {'3 4'}
        return [
            (len(set(output.split()) & set(known.split())), len(known.split()))
            for output, (known,) in zip(outputs, references, strict=True)
        ]


class Missing(Shared):
    higher_is_better = False

    def score_of(self, total):
        return 100 - super().score_of(total)


@pytest.mark.parametrize(
    ('metric', 'expected'),
    [
        # u('a b', 'a b') = 100, u('a b', 'a c d e') = 25, u('a c d e', 'a b') = 50.
        (Shared(), {'a c d e': 200 / 4, '': 0, 'a b': 225 / 4}),
        (Missing(), {'a c d e': -100 / 4, '': -300 / 4, 'a b': -75 / 4}),
    ],
)
def test_mean_utilities_are_those_by_hand(metric, expected):
    drawn = ['a c d e', '', 'a b', 'a b']
    found = mean_utilities(drawn, '3 4', metric)
    assert list(found) == list(expected)
    assert found == pytest.approx(expected)


class Parities(Numbers):
    """Writes whether each token is even or odd, so that several ids share a text."""

    def decode(self, ids):
        return [' '.join(str(i % 2) for i in row) for row in ids]


def translated(decode, sources, n_best=1, tokenizer=None):
    model = tiny.model(num_layers=1)
    settings = EvaluationConfig(decode=decode, extra_length=3)
    tokenizer = tokenizer or Numbers()
    translate = Translator(
        model, tokenizer, search.make(settings), seed=5, n_best=n_best
    )
    return list(translate(tiny.all_variables(model), sources))


def test_each_text_of_a_search_comes_once_with_its_best_score():
    sources, decode = ['3 4', '5', '6 7 8'], 'beam(beams=8)'
    every = translated(decode, sources, n_best=8)
    distinct = translated(decode, sources, n_best=2, tokenizer=Parities())
    for found, ids in zip(distinct, every, strict=True):
        best = {}
        for x in ids:
            row = [[int(i) for i in x.text.split()]]
            best.setdefault(Parities().decode(row)[0], x.score)
        assert len(best) < len(ids)
        assert [x.text for x in found] == list(best)
        assert [x.score for x in found] == pytest.approx(list(best.values()))


def test_one_sample_is_what_sample_draws():
    sources = ['3 4', '5', '', '6 7 8']
    expected = translated('sample(top_p=0.9)', sources)
    assert translated('mbr(samples=1, top_p=0.9)', sources) == expected


def shared(text, references):
    known = [reference.split() for reference in references]
    shares = [len(set(text.split()) & set(x)) / len(x) for x in known]
    return sum(shares) / len(shares)


def test_texts_come_once_and_in_the_order_of_their_utilities():
    drawn = translated('sample(top_k=2)', ['3 4'] * 4, n_best=6)
    spec = f'mbr(samples=6, top_k=2, utility="{__name__}.Shared")'
    for found, samples in zip(translated(spec, ['3 4'] * 4), drawn, strict=True):
        texts = [x.text for x in samples]
        assert len(found) == len(set(texts)) > 1 and set(found) <= set(samples)
        utilities = [shared(x.text, texts) for x in found]
        # Equal ones differ by rounding.
        assert utilities == pytest.approx(sorted(utilities, reverse=True))


def ngrams(tokens):
    return collections.Counter(
        tuple(tokens[i : i + n])
        for n in range(1, 5)
        for i in range(len(tokens) - n + 1)
    )


def expected_gleu(tokens, reference):
    """Counts n-grams as Wu et al. (2016) do."""
    own, others = ngrams(tokens), ngrams(reference)
    most = max(own.total(), others.total())
    return (own & others).total() / most if most else 0.0


def test_gleu_is_the_lower_of_precision_and_recall():
    rng = np.random.default_rng(0)
    found, expected = [], []
    jitted = jax.jit(gleu)
    for _ in range(50):
        texts = [rng.integers(3, 6, n).tolist() for n in rng.integers(0, 8, 2)]
        arguments = []
        for text in texts:
            padded = jnp.asarray([*text, 1, *[0] * (7 - len(text))], jnp.int32)
            arguments += [padded, len(text)]
        found.append(float(jitted(*arguments)))
        expected.append(expected_gleu(*texts))
    assert 0 < np.mean(expected) < 0.9
    np.testing.assert_allclose(found, expected, rtol=1e-6)


SOURCES = [[4, 5, 6, 1], [7, 1], [], [5, 5, 1]]


def decoded(strategy, sources=SOURCES):
    model = tiny.model(num_layers=1)
    found = generate(
        model,
        tiny.all_variables(model),
        sources,
        strategy,
        max_length=5,
        key=jax.random.key(3),
    )
    rows = [found.of_row(1, i) for i in range(len(sources))]
    return [row[0][0][:-1] if row else None for row in rows], found


def test_generate_finds_the_sample_most_similar_to_all(monkeypatch):
    found, _ = decoded('mbr(samples=6, top_k=4)')
    draw, drawn = Sampling.__call__, []

    def record(self, inputs, n_best=1):
        result = draw(self, inputs, n_best)
        jax.debug.callback(lambda *x: drawn.append(x), result, inputs.keys_B)
        return result

    monkeypatch.setattr(Sampling, '__call__', record)
    jax.clear_caches()  # of the program without the record
    assert decoded('mbr(samples=6, top_k=4)')[0] == found
    jax.clear_caches()
    assert len(drawn) == 6
    for i, best in enumerate(found):
        samples = [result.of_row(1, i) for result, _ in drawn]
        if best is None:
            assert not any(samples)
            continue
        texts = [sample[0][0][:-1] for sample in samples]
        means = {x: np.mean([expected_gleu(x, y) for y in texts]) for x in texts}
        assert len(means) > 1
        assert means[best] == pytest.approx(max(means.values()))


def test_one_sample_of_generate_is_what_sample_draws():
    expected, found = (decoded(x)[1] for x in ('sample', 'mbr(samples=1)'))
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def longest(y_L, length, reference_L, reference_length):
    return jnp.float32(length)


def shortest(y_L, length, reference_L, reference_length):
    return -jnp.float32(length)


@pytest.mark.slow
def test_the_utility_can_be_a_function_of_token_ids():
    long, short = (decoded(MBRDecoding(utility=x))[0] for x in (longest, shortest))
    for one, other in zip(long, short, strict=True):
        assert one is other is None or len(one) > len(other)
