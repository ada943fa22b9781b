"""Tests of an opened run's arrays and interventions against the library."""

import math
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
import tiny
from small_runs import Numbers

import flaxformer_lite
from experiments.config.decoding import decoding_options
from experiments.config.schema import EvaluationConfig, ExperimentConfig
from experiments.errors import UserError
from experiments.evaluation.opened_run import OpenedRun
from experiments.evaluation.scorer import Scorer
from experiments.evaluation.translator import Translator
from flaxformer_lite import interventions

# Interventions run its layers one by one.
MODEL = tiny.model(num_layers=1, scan_layers=True)
PAIRS = [('5 6 7', '9'), ('8', '4 3 5')]
ROWS = [[5, 6, 7, 1], [8, 1]], [[9, 1], [4, 3, 5, 1]]
SETTINGS = EvaluationConfig(decode='greedy', extra_length=3)


class Tokens(Numbers):
    vocab_size = tiny.VOCAB

    def decode(self, ids):
        return super().decode([row[: [*row, 1].index(1)] for row in ids])

    def pieces(self, ids):
        return [str(i) for i in ids]


@pytest.fixture(scope='module')
def run():
    opened: Any = object.__new__(OpenedRun)
    opened.tokenizer, opened.model = Tokens(), MODEL
    opened.config = ExperimentConfig(evaluation=SETTINGS)
    opened.decoding = decoding_options(SETTINGS)
    opened.mean = SimpleNamespace(variables=tiny.all_variables(MODEL))
    return opened


class ForcedTokens(Tokens):
    forced_first = 5

    def encode_target(self, texts):
        return [[5, *row] if row else [] for row in self.encode(texts)]

    def decode(self, ids):
        return [' '.join(map(str, row[1 : [*row, 1].index(1)])) for row in ids]


@pytest.mark.slow
def test_forced_first_token_has_probability_1_in_scores_and_translations():
    variables = tiny.all_variables(MODEL)
    decoding = decoding_options(SETTINGS)
    (best,) = next(Translator(MODEL, ForcedTokens(), decoding)(variables, ['6 7']))
    score = Scorer(MODEL, ForcedTokens(), 64)
    pairs = [('6 7', best.text), ('6 7', '')]
    (first, *others), (end,) = score(variables, pairs)
    assert first == ('5', 0.0, 1, 0.0)
    total = math.fsum(token.log_p for token in others)
    assert best.score == pytest.approx(total, rel=1e-4)
    assert end.token == '1' and end.log_p < 0


@pytest.mark.parametrize('pair', [('5',), ('5', '6', '7'), 5, ('5', None)])
def test_pair_that_is_not_two_texts_is_named(run, pair):
    with pytest.raises(UserError, match=r'^pairs\[1\]'):
        run.batch([('5', '6'), pair])


def test_batch_has_the_tokens_and_end_of_each_side(run):
    batch = run.batch(PAIRS, length=5)
    expected = flaxformer_lite.make_batch(*ROWS, model=MODEL, length=5)
    jax.tree.map(np.testing.assert_array_equal, batch, expected)
    with pytest.raises(UserError, match='^pairs: a single text was given'):
        run.batch(('5 6', '7'))
    with pytest.raises(UserError, match='^pairs: is empty'):
        run.record([])


@pytest.mark.ci
def test_record_has_the_named_values_of_each_pair(run):
    name = 'decoder/layer_0/mlp_out'
    values = run.record(PAIRS, names=[name]).values
    assert list(values) == [name]
    batch = flaxformer_lite.make_batch(*ROWS, model=MODEL)
    expected = tiny.record(MODEL, run.variables, batch)
    np.testing.assert_allclose(values[name], expected.values[name], atol=1e-5)


@pytest.mark.slow
def test_intervention_changes_translations_scores_and_records(run):
    rng = np.random.default_rng(1)
    name = 'decoder/ln_final'
    edits = {name: interventions.add(20 * rng.normal(size=12), steps=[1])}
    changed = run.intervene(edits)
    lines = [source for source, _ in PAIRS]
    plain = run.translate(lines), run.score(PAIRS)

    greedy = flaxformer_lite.decoding.Greedy()
    expected = flaxformer_lite.generate(
        MODEL, run.variables, ROWS[0], greedy, max_length=6, interventions=edits
    )
    for text, row_L in zip(
        changed.translate(lines), expected.tokens[:, 0], strict=True
    ):
        tokens = [int(token) for token in text.split()]
        assert tokens and tokens == row_L[: len(tokens)].tolist()
    assert changed.translate(lines) != plain[0]

    batch = flaxformer_lite.make_batch(*ROWS, model=MODEL)
    recorded = flaxformer_lite.record(MODEL, run.variables, batch, interventions=edits)
    log_p_BTV = jax.nn.log_softmax(recorded.values['logits'])
    for row, tokens in enumerate(changed.score(PAIRS)):
        for step, scored in enumerate(tokens):
            expected_log_p = log_p_BTV[row, step, int(scored.token)]
            np.testing.assert_allclose(scored.log_p, expected_log_p, atol=1e-4)
    values = changed.record(PAIRS, names=[name]).values
    np.testing.assert_allclose(values[name], recorded.values[name], atol=1e-4)
    assert (run.translate(lines), run.score(PAIRS)) == plain


@pytest.mark.ci
def test_second_intervention_is_added_to_the_first(run):
    first = {'decoder/layer_0/mlp_out': interventions.set_to(0.0)}
    second = {'decoder/ln_final': interventions.set_to(1.0)}
    both = run.intervene(first).intervene(second).record(PAIRS)
    assert not both.values['decoder/layer_0/mlp_out'].any()
    assert (both.values['decoder/ln_final'] == 1).all()
