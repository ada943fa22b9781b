"""Tests of each public function with each kind of model."""

import functools

import jax
import numpy as np
import optax
import pytest
import tiny

import flaxformer_lite
from flaxformer_lite import interventions
from flaxformer_lite.interventions.context import with_separate_layers
from flaxformer_lite.special_tokens import SpecialTokens

SOURCES = [[4, 5, 6, 7], [10, 4], [9]]
TARGETS = [[5, 9], [8, 6, 7], [4]]
MODELS = {
    'plain': {},
    'scanned': {'scan_layers': True},
    'recurrent': {'architecture': 'recurrent'},
    'decoder_only': {'architecture': 'decoder_only'},
}
ENSEMBLES = {'scanned, recurrent': ['scanned', 'recurrent']}
# A slow test: most other tests are of the plain model.
CASES = [
    pytest.param(name, marks=[pytest.mark.slow] if name == 'plain' else [])
    for name in MODELS
]


@pytest.fixture(params=CASES)
def single_model(request):
    return opened(request.param)


@pytest.fixture(params=ENSEMBLES)
def ensemble(request):
    return opened(request.param)


@pytest.fixture(params=[*CASES, *ENSEMBLES])
def model_or_ensemble(request):
    return opened(request.param)


@functools.cache
def opened(name):
    if name in ENSEMBLES:
        models, variables = zip(*map(opened, ENSEMBLES[name]), strict=True)
        variables = flaxformer_lite.ensemble_variables(variables)
        return flaxformer_lite.ensemble(models), variables
    model = tiny.model(num_layers=1, **MODELS[name])
    return model, tiny.all_variables(model)


def batch_of(model, targets):
    sources = [[*row, model.special_tokens.eos] for row in SOURCES]
    return flaxformer_lite.make_batch(sources, targets, model=model)


def a_batch(model):
    return batch_of(model, [[*row, model.special_tokens.eos] for row in TARGETS])


def test_what_is_generated_has_the_score_that_it_is_given(model_or_ensemble):
    model, variables = model_or_ensemble
    end = model.special_tokens.eos
    sources = [[*row, end] for row in SOURCES]
    beam = 'beam(beams=2, alpha=0)'
    found = flaxformer_lite.generate(model, variables, sources, beam, max_length=5)
    targets = [tokens.tolist() for tokens in found.tokens_BNL[:, 0]]
    targets = [tokens[: tokens.index(end) + 1] for tokens in targets]
    scores = tiny.log_probs(model, variables, batch_of(model, targets))
    np.testing.assert_allclose(scores.log_p.sum(1), found.scores_BN[:, 0], atol=1e-3)


def test_a_call_gives_the_logits_that_are_scored(model_or_ensemble):
    model, variables = model_or_ensemble
    batch = a_batch(model)
    logits = tiny.apply(model, variables, batch['source'], batch['inputs'])
    log_p = jax.nn.log_softmax(logits)
    labels = batch['labels'][..., None]
    expected = np.take_along_axis(np.asarray(log_p), np.asarray(labels), -1)[..., 0]
    expected = np.where(batch['target_segments'] > 0, expected, 0)
    found = tiny.log_probs(model, variables, batch).log_p
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_what_is_recorded_can_be_patched(single_model):
    model, variables = single_model
    batch = a_batch(model)
    recorded = tiny.record(model, variables, batch)
    assert recorded.weights
    values = dict(list(recorded.values.items())[:3])
    functions = {name: interventions.set_to(x) for name, x in values.items()}
    separate, separate_variables = with_separate_layers(model, variables)

    @jax.jit
    def patched(variables, functions):
        with flaxformer_lite.intervene(functions):
            return separate.apply(variables, batch['source'], batch['inputs'])

    found = patched(separate_variables, functions)
    expected = tiny.apply(model, variables, batch['source'], batch['inputs'])
    is_token = np.asarray(batch['target_segments'] > 0)
    np.testing.assert_allclose(found[is_token], expected[is_token], atol=1e-4)
    assert tiny.attention_stats(model, variables, batch)


def test_it_is_trained_from_where_it_is(single_model):
    model, variables = single_model
    batch = a_batch(model)
    optimizer = optax.sgd(1e-3)
    state = flaxformer_lite.TrainState.create(variables, optimizer)
    step = jax.jit(flaxformer_lite.make_train_step(model, optimizer))
    state, _ = step(state, batch, jax.random.key(0))
    before = tiny.loss_sums(model, variables, batch)
    after = tiny.loss_sums(model, state.variables, batch)
    assert np.isfinite(after.loss) and after.loss != before.loss
    log_p = tiny.log_probs(model, variables, batch).log_p
    np.testing.assert_allclose(before.nll, -log_p.sum(), rtol=1e-4)


def test_an_ensemble_refuses_what_one_model_is_asked_for(ensemble):
    model, variables = ensemble
    batch = a_batch(model)
    optimizer = optax.sgd(1e-3)
    for ask in (
        lambda: flaxformer_lite.record(model, variables, batch),
        lambda: flaxformer_lite.attention_stats(model, variables, batch),
        lambda: flaxformer_lite.loss_sums(model, variables, batch),
        lambda: flaxformer_lite.init_state(model, optimizer, jax.random.key(0)),
        lambda: flaxformer_lite.make_train_step(model, optimizer)(
            flaxformer_lite.TrainState.create(variables, optimizer),
            batch,
            jax.random.key(0),
        ),
    ):
        with pytest.raises(ValueError, match='model: ensembles support only __call__'):
            ask()


def test_models_of_several_vocabularies_are_no_ensemble():
    special = SpecialTokens(padding=1, bos=2, eos=2)
    one = tiny.model()
    for other, name in (
        (one.clone(vocab_size=14), 'vocab_size'),
        (one.clone(special_tokens=special), 'special_tokens'),
    ):
        with pytest.raises(ValueError, match=f'models: their {name} differ'):
            flaxformer_lite.ensemble([one, other])
    with pytest.raises(ValueError, match='models: an ensemble needs at least one'):
        flaxformer_lite.ensemble([])
