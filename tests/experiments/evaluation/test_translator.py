"""Tests of the texts that a translator chooses, against choices by hand."""

import pytest
import tiny
from small_runs import Numbers

from experiments.config.decoding import decoding_options
from experiments.config.schema import EvaluationConfig
from experiments.evaluation.translator import Translator


class Parities(Numbers):
    """Writes whether each token is even or odd, so that several ids share a text."""

    def decode(self, ids):
        return [' '.join(str(i % 2) for i in row) for row in ids]


def translated(decode, sources, n_best=1, tokenizer=None):
    model = tiny.model(num_layers=1)
    settings = EvaluationConfig(decode=decode, extra_length=3)
    tokenizer = tokenizer or Numbers()
    translate = Translator(
        model, tokenizer, decoding_options(settings), seed=5, n_best=n_best
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
