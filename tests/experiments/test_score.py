"""Tests of `experiments.score`."""

import json

import numpy as np
import pytest
import small_runs

import experiments
from experiments import score
from experiments.errors import UserError

pytestmark = pytest.mark.usefixtures('cache')


@pytest.mark.ci
def test_scores_of_a_set_sum_to_its_loss_and_accuracy(
    trained_run, short_text, command_on_input
):
    sides = [
        (short_text / f'news.{language}').read_text().splitlines()
        for language in ('en', 'de')
    ]
    pairs = [*zip(*sides, strict=True)]
    lines = ''.join(f'{source}\t{target}\n' for source, target in pairs)
    out = command_on_input(score, lines, f'--workdir={trained_run}')
    found = list(map(json.loads, out))
    tokens = [token for line in found for token in line['tokens']]
    expected = small_runs.result(trained_run)['evaluations']['news']
    loss = -sum(line['log_p'] for line in found) / len(tokens)
    assert loss == pytest.approx(expected['loss'], rel=1e-5)
    accuracy = np.mean([token['rank'] == 1 for token in tokens])
    assert accuracy == pytest.approx(expected['accuracy'])
    tokenizer = experiments.open_run(trained_run).tokenizer
    for line, (_, target) in zip(found, pairs, strict=True):
        assert sum(x['log_p'] for x in line['tokens']) == pytest.approx(line['log_p'])
        *pieces, _ = [x['token'] for x in line['tokens']]
        assert pieces == tokenizer.pieces(tokenizer.encode([target])[0])


@pytest.mark.parametrize(
    'line', ['A dog.', 'a\tb\tc', 'A dog.\t ', '\tEin Hund.'], ids=repr
)
def test_invalid_pair_is_rejected_before_the_run_is_opened(
    line, tmp_path, command_on_input
):
    lines = f'A cat.\tEine Katze.\n{line}\n'
    with pytest.raises(UserError, match='line 2: invalid pair '):
        command_on_input(score, lines, f'--workdir={tmp_path}')
