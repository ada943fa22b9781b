"""Tests of minimum Bayes risk decoding, against choices by hand."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from flaxformer_lite import generate
from flaxformer_lite.decoding.strategies.mbr import MBRDecoding, gleu
from flaxformer_lite.decoding.strategies.sample import Sampling


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
