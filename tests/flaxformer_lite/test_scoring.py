"""Tests of log-probabilities of targets against float64 formulas."""

import functools

import jax
import numpy as np
import pytest
import tiny
from scipy import special, stats
from tiny import float64, log_probs, loss_sums

import flaxformer_lite
from flaxformer_lite.training.batch import source_and_inputs


def single():
    return tiny.batch([*([pair] for pair in tiny.PAIRS), []])


@functools.cache
def model(**overrides):
    return tiny.model(dropout=0.3, **overrides)


@pytest.mark.parametrize(
    'config',
    [
        {},
        pytest.param(
            {'logit_cap': 2.0, 'output_bias': True, 'architecture': 'recurrent'},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_they_are_the_formulas_and_their_sum_is_the_loss(config):
    m, batch = model(**config), single()
    variables = tiny.all_variables(m)
    found = log_probs(m, variables, batch)
    logits = float64(tiny.apply(m, variables, *source_and_inputs(batch)))
    labels = np.asarray(batch['labels'])
    p = special.softmax(logits, -1)
    own = np.take_along_axis(p, labels[..., None], -1)
    wanted = (np.log(own)[..., 0], 1 + (p > own).sum(-1), stats.entropy(p, axis=-1))
    for x, y in zip(found, wanted, strict=True):
        np.testing.assert_allclose(x, np.where(labels != 0, y, 0), rtol=2e-5, atol=2e-6)
    sums = loss_sums(m, variables, batch)
    np.testing.assert_allclose(-found.log_p.sum(), sums.nll, rtol=1e-5)
    assert (found.rank == 1).sum() == sums.correct


def test_neither_packing_nor_padding_changes_them(monkeypatch):
    m = model()
    variables = tiny.all_variables(m)
    alone = log_probs(m, variables, single())
    packed = log_probs(m, variables, tiny.batch([tiny.PAIRS]))
    is_token = np.asarray(single()['labels']) != 0
    for x, y in zip(alone, packed, strict=True):
        np.testing.assert_allclose(np.asarray(x)[is_token], y[0], rtol=1e-4, atol=1e-5)
    # In parts that do not divide the length.
    monkeypatch.setattr('flaxformer_lite.scoring._ROWS', 16)
    sources, targets = zip(*tiny.PAIRS, strict=True)
    longer = flaxformer_lite.make_batch(sources, targets, length=11)
    in_parts = jax.jit(functools.partial(flaxformer_lite.log_probs, m))
    for x, y in zip(alone, in_parts(variables, longer), strict=True):
        np.testing.assert_allclose(x[:3], y[:, :6], rtol=1e-4, atol=1e-5)
        assert not y[:, 6:].any()


def test_layers_alike_are_traced_once_for_each_stack():
    m = tiny.model(num_layers=3)

    def loss(variables):
        return flaxformer_lite.loss_sums(m, variables, single()).loss

    text = jax.jit(loss).lower(tiny.all_variables(m)).as_text()
    assert text.count('call @apply') == 6
    assert text.count('func.func private @apply') == 2
