"""Tests of ensembles against the mean probability in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from flaxformer_lite import Ensemble
from flaxformer_lite.generation import as_strategy

SOURCE = tiny.padded(tiny.SOURCES)
LENGTH = 7


def beam_search(model, variables):

    @jax.jit
    def run(variables, source_BS):
        max_len_B = jnp.full(len(source_BS), LENGTH)
        inputs = tiny.decode_inputs(model, variables, source_BS, max_len_B, LENGTH)
        return as_strategy('beam(beams=3)')(inputs, n_best=3)

    return run(variables, SOURCE)


@pytest.mark.ci
def test_score_is_the_log_of_the_mean_probability_of_each_token():
    models = [
        tiny.model(num_layers=1, architecture='decoder_only'),
        tiny.model(num_layers=1, architecture='recurrent'),
        tiny.model(num_layers=1, norm='batch', architecture='decoder_only'),
    ]
    each = [tiny.all_variables(model, seed=i) for i, model in enumerate(models)]
    ensemble = Ensemble(list(zip(models, each, strict=True)))
    found = beam_search(ensemble.model, ensemble.variables)
    num_checked = 0
    for row, (tokens_NL, scores_N) in enumerate(
        zip(found.tokens, found.scores, strict=True)
    ):
        for tokens, score in zip(np.asarray(tokens_NL), scores_N, strict=True):
            tokens = tokens[: list(tokens).index(1) + 1]
            # Of one length, since each length is compiled apart.
            inputs = tiny.padded([[2, *tokens[:-1]]], LENGTH)
            p = [
                tiny.softmax(tiny.apply(m, v, SOURCE[row : row + 1], inputs))[0]
                for m, v in zip(models, each, strict=True)
            ]
            mean = np.mean(p, axis=0)[np.arange(len(tokens)), tokens]
            penalty = ((5 + len(tokens)) / 6) ** 0.6
            assert score == pytest.approx(np.log(mean).sum() / penalty, abs=1e-3)
            num_checked += 1
    assert num_checked == 9


@pytest.mark.ci
def test_logits_are_logs_of_the_mean_probability():
    models = [tiny.model(num_layers=1, architecture='decoder_only')] * 2
    each = [tiny.all_variables(model, seed) for seed, model in enumerate(models)]
    arguments = tiny.padded([[4, 5, 1]]), tiny.padded([[2, 6, 7]])
    ensemble = Ensemble(list(zip(models, each, strict=True)))
    found = tiny.apply(ensemble.model, ensemble.variables, *arguments)
    p = [tiny.softmax(tiny.apply(models[0], v, *arguments)) for v in each]
    np.testing.assert_allclose(np.exp(found), np.mean(p, 0), rtol=1e-5)


def test_length_is_limited_by_the_model_with_the_fewest_positions():
    short, shorter = (tiny.model(positions=f'learned(max_length={n})') for n in (9, 6))
    members = [(model, {}) for model in (short, tiny.model(), shorter)]
    assert Ensemble(members).model.max_length == 6
    assert Ensemble([(tiny.model(), {})]).model.max_length is None
