"""Tests of the library's public functions with a published model."""

import functools

import pytest
from published import GOLDENS
from test_public_pairs import (  # noqa: F401
    test_a_call_gives_the_logits_that_are_scored,
    test_an_ensemble_refuses_what_one_model_is_asked_for,
    test_it_is_trained_from_where_it_is,
    test_what_is_generated_has_the_score_that_it_is_given,
    test_what_is_recorded_can_be_patched,
)

import flaxformer_checkpoints
import flaxformer_lite

# Slow tests: those of the library have models and an ensemble of their own.
BART = pytest.param('bart', marks=pytest.mark.slow)
ENSEMBLE = pytest.param('bart, bart', marks=pytest.mark.slow)


@functools.cache
def load(names):
    """Returns a published model, or an ensemble of several, with its variables."""
    loaded = [
        flaxformer_checkpoints.from_pretrained(GOLDENS / name)
        for name in names.split(', ')
    ]
    if len(loaded) == 1:
        return loaded[0]
    models, variables = zip(*loaded, strict=True)
    variables = flaxformer_lite.ensemble_variables(variables)
    return flaxformer_lite.ensemble(models), variables


@pytest.fixture(params=[BART])
def single_model(request):
    return load(request.param)


@pytest.fixture(params=['bart, bart'])
def ensemble(request):
    return load(request.param)


@pytest.fixture(params=[BART, ENSEMBLE])
def model_or_ensemble(request):
    return load(request.param)
