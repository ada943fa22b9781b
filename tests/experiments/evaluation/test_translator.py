"""Tests of the texts that a translator chooses, against choices by hand."""

import pytest
import tiny
from small_runs import Numbers

from experiments.config import search
from experiments.config.schema import EvaluationConfig
from experiments.evaluation.translator import Translator, mean_utilities
from experiments.metrics.base import Metric


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
