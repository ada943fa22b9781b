"""Tests of log-probabilities of targets against float64 formulas."""

import functools

import jax
import numpy as np
import pytest
import tiny
from scipy import special, stats
from tiny import float64, log_probs, loss_sums, slow

import flaxformer_lite
from flaxformer_lite.training.batch import source_and_inputs


@functools.cache
def opened(**overrides):
    fields = dict(dropout=0.3, num_layers=1, architecture='decoder_only')
    model = tiny.model(**fields | overrides)
    return model, tiny.all_variables(model)


@pytest.mark.ci
@pytest.mark.parametrize(
    'config',
    [{}, slow({'logit_cap': 2.0, 'output_bias': True, 'architecture': 'recurrent'})],
    ids=str,
)
def test_scores_equal_the_formulas_and_sum_to_the_loss(config):
    model, variables = opened(**config)
    batch = tiny.pairs_batch()
    found = log_probs(model, variables, batch)
    logits = float64(tiny.apply(model, variables, *source_and_inputs(batch)))
    labels = np.asarray(batch['labels'])
    p = special.softmax(logits, -1)
    own = np.take_along_axis(p, labels[..., None], -1)
    expected = np.log(own)[..., 0], 1 + (p > own).sum(-1), stats.entropy(p, axis=-1)
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, np.where(labels != 0, y, 0), rtol=2e-5, atol=2e-6)
    sums = loss_sums(model, variables, batch)
    np.testing.assert_allclose(-found.log_p.sum(), sums.nll, rtol=1e-5)
    assert (found.rank == 1).sum() == sums.correct


@pytest.mark.ci
def test_neither_packing_nor_padding_changes_scores(monkeypatch):
    model, variables = opened()
    alone = log_probs(model, variables, tiny.pairs_batch())
    packed = log_probs(model, variables, tiny.batch([tiny.PAIRS]))
    is_token = np.asarray(tiny.pairs_batch()['labels']) != 0
    for x, y in zip(alone, packed, strict=True):
        np.testing.assert_allclose(np.asarray(x)[is_token], y[0], rtol=1e-4, atol=1e-5)
    # In parts that do not divide the length.
    monkeypatch.setattr('flaxformer_lite.scoring._ROWS', 16)
    longer = flaxformer_lite.make_batch(tiny.SOURCES, tiny.TARGETS, length=11)
    in_parts = jax.jit(functools.partial(flaxformer_lite.log_probs, model))
    for x, y in zip(alone, in_parts(variables, longer), strict=True):
        np.testing.assert_allclose(x, y[:, :6], rtol=1e-4, atol=1e-5)
        assert not y[:, 6:].any()


def test_equal_layers_are_traced_once_per_stack():
    model = tiny.model(num_layers=3)

    def loss(variables):
        return flaxformer_lite.loss_sums(model, variables, tiny.pairs_batch()).loss

    text = jax.jit(loss).lower(tiny.all_variables(model)).as_text()
    assert text.count('call @apply') == 6
    assert text.count('func.func private @apply') == 2
