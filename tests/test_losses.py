"""The label-smoothed cross-entropy by its formula: values, gradients, padding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.ops.loss_of_logits import Settings, cross_entropy, loss_of_logits

B, T, D, V = 2, 6, 5, 9


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


H, TABLE = random(B, T, D), random(V, D, seed=1)
LABELS = np.random.default_rng(2).integers(1, V, (B, T))
LABELS[0, 4:] = LABELS[1, :1] = 0


def label_smoothed_cross_entropy(h, table, labels, smoothing, dtype):
    settings = Settings(cross_entropy(smoothing, padding=0), dtype)
    return loss_of_logits(h, (table, None), (labels,), settings)


def by_hand(h, table, labels, smoothing):
    """Σ −q·log p over the labels but 0, in float64 → loss, nll, correct, tokens."""
    loss = nll = correct = 0.0
    for h_D, label in zip(h.reshape(-1, h.shape[-1]), labels.ravel(), strict=True):
        if label:
            logits = table @ h_D
            log_p = logits - np.log(np.exp(logits).sum())
            q = np.full(len(table), smoothing / len(table))
            q[label] += 1 - smoothing
            loss, nll = loss - q @ log_p, nll - log_p[label]
            correct += label == logits.argmax()
    return loss, nll, correct, (labels != 0).sum()


def sums(h=H, table=TABLE, labels=LABELS, smoothing=0.0, dtype=jnp.float32):
    h, table = jnp.asarray(h, jnp.float32), jnp.asarray(table, jnp.float32)
    labels = jnp.asarray(labels, jnp.int32)

    @jax.jit
    def run(h, table, labels):
        return label_smoothed_cross_entropy(h, table, labels, smoothing, dtype)

    return run(h, table, labels)


def gradients(smoothing=0.1, dtype=jnp.float32, of='loss', scale=1.0):
    def loss(h, table):
        labels = jnp.asarray(LABELS)
        s = label_smoothed_cross_entropy(h, table, labels, smoothing, dtype)
        return scale * getattr(s, of)

    h, table = jnp.asarray(H, jnp.float32), jnp.asarray(TABLE, jnp.float32)
    return jax.jit(jax.grad(loss, argnums=(0, 1)))(h, table)


def plain_gradients(smoothing=0.1):
    """Those of the formula, by autodiff."""

    def loss(h, table):
        log_p = jax.nn.log_softmax(h @ table.T)
        q = (1 - smoothing) * jax.nn.one_hot(LABELS, V) + smoothing / V
        return -((q * log_p).sum(-1) * (LABELS != 0)).sum()

    h, table = jnp.asarray(H, jnp.float32), jnp.asarray(TABLE, jnp.float32)
    return jax.jit(jax.grad(loss, argnums=(0, 1)))(h, table)


@pytest.mark.parametrize('smoothing', [0.0, 0.1, 0.9])
def test_is_its_formula(smoothing):
    s = sums(smoothing=smoothing)
    found = s.loss, s.nll, s.correct, s.tokens
    assert all(x.dtype == jnp.float32 for x in found)
    np.testing.assert_allclose(found, by_hand(H, TABLE, LABELS, smoothing), rtol=1e-5)


def test_padding_adds_nothing_whatever_stands_there():
    other = np.where((LABELS == 0)[..., None], 50.0, H)
    np.testing.assert_array_equal(
        jax.tree.leaves(sums(smoothing=0.1)),
        jax.tree.leaves(sums(other, smoothing=0.1)),
    )
    dh, _ = gradients()
    np.testing.assert_array_equal(np.asarray(dh)[LABELS == 0], 0.0)
    assert (np.abs(np.asarray(dh)[LABELS != 0]).max(-1) > 1e-3).all()


@pytest.mark.parametrize('smoothing', [0.0, 0.1])
def test_gradients_are_those_of_the_formula(smoothing):
    for found, expected in zip(
        gradients(smoothing), plain_gradients(smoothing), strict=True
    ):
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize('metric', ['nll', 'correct', 'tokens'])
def test_metrics_have_no_gradient(metric):
    for gradient in gradients(of=metric):
        np.testing.assert_array_equal(gradient, 0.0)


def test_smoothing_spreads_over_the_whole_vocabulary_and_no_entropy_is_taken_off():
    # p = (1/2, 1/4, 1/8, 1/8), label 1, ε = .4: q = (.1, .7, .1, .1), so
    # −Σ q log₂ p = 2.1. Spread over the other three words it were 2.0; less the entropy
    # of q, less again.
    table = np.log(2.0) * np.array([[-1.0], [-2.0], [-3.0], [-3.0]])
    s = sums(np.ones((1, 1, 1)), table, np.array([[1]]), smoothing=0.4)
    np.testing.assert_allclose(s.loss / np.log(2.0), 2.1, rtol=1e-6)
