"""Tests of ensembles against the mean probability in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

import flaxformer_lite
from flaxformer_lite.generation import as_strategy

SOURCE = tiny.padded([source for source, _ in tiny.PAIRS])
LENGTH = 7


def softmax(logits):
    p = np.exp(np.float64(logits) - np.float64(logits).max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def search(model, variables, beams=3):

    @jax.jit
    def run(variables, source_BS):
        max_len_B = jnp.full(len(source_BS), LENGTH)
        inputs = tiny.decode_inputs(model, variables, source_BS, max_len_B, LENGTH)
        return as_strategy(f'beam(beams={beams})')(inputs, n_best=beams)

    return run(variables, SOURCE)


def several():
    """Returns two models of one config, a recurrent one and one with batch norm."""
    models = [
        tiny.model(num_layers=1),
        tiny.model(num_layers=1),
        tiny.model(num_layers=1, architecture='recurrent'),
        tiny.model(num_layers=1, norm='batch'),
    ]
    return models, [tiny.all_variables(m, seed=i) for i, m in enumerate(models)]


def test_a_model_beside_itself_finds_what_it_finds_alone():
    model = tiny.model(num_layers=1)
    own = tiny.all_variables(model)
    alone = search(model, own)
    both = flaxformer_lite.ensemble([model, model])
    together = search(both, flaxformer_lite.ensemble_variables([own, own]))
    np.testing.assert_array_equal(together.tokens_BNL, alone.tokens_BNL)
    np.testing.assert_allclose(together.scores_BN, alone.scores_BN, atol=1e-4)


def test_a_score_is_the_log_of_the_mean_probability_token_by_token():
    models, each = several()
    found = search(
        flaxformer_lite.ensemble(models), flaxformer_lite.ensemble_variables(each)
    )
    checked = 0
    for row, (tokens_NL, scores_N) in enumerate(
        zip(found.tokens_BNL, found.scores_BN, strict=True)
    ):
        for tokens, score in zip(np.asarray(tokens_NL), scores_N, strict=True):
            tokens = tokens[: list(tokens).index(1) + 1]
            # Of one length, for each has a program of its own.
            inputs = tiny.padded([[2, *tokens[:-1]]], LENGTH)
            p = [
                softmax(tiny.apply(m, v, SOURCE[row : row + 1], inputs))[0]
                for m, v in zip(models, each, strict=True)
            ]
            mean = np.mean(p, axis=0)[np.arange(len(tokens)), tokens]
            penalty = ((5 + len(tokens)) / 6) ** 0.6
            assert score == pytest.approx(np.log(mean).sum() / penalty, abs=1e-3)
            checked += 1
    assert checked == 9


def test_it_has_room_for_what_the_least_of_its_models_has_room_for():
    short, shorter = (tiny.model(positions=f'learned(max_length={n})') for n in (9, 6))
    made = flaxformer_lite.ensemble([short, tiny.model(), shorter])
    assert made.max_length == 6
    assert flaxformer_lite.ensemble([tiny.model()]).max_length is None
