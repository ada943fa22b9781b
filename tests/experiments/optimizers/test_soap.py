"""Tests SOAP on algorithms 3 and 4 of Vyas et al. (2024), written in float64 NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AbstractMesh, PartitionSpec

from experiments.optimizers.soap import soap
from flaxformer_lite.sharding import state_shardings

RATE, B1, B2, EPS, DECAY, FREQUENCY, MAX_SIZE = 0.1, 0.8, 0.9, 1e-3, 0.2, 3, 6
STEPS = 12


def eigenvectors(covariance):
    return np.linalg.eigh(covariance)[1][:, ::-1]


def power_iteration(covariance, basis):
    """Returns algorithm 4's eigenvectors, and the order in which they were sorted."""
    order = np.argsort(-np.diag(basis.T @ covariance @ basis))
    return np.linalg.qr(covariance @ basis[:, order])[0], order


def matrices(w, gradients, left_out=()):
    """Returns a matrix after each step; long axes and `left_out` have Q = I."""
    rows, columns = w.shape
    has_left, has_right = (
        name not in left_out and size <= MAX_SIZE
        for name, size in (('rows', rows), ('columns', columns))
    )
    left, right = np.zeros((rows, rows)), np.zeros((columns, columns))
    q_left, q_right = np.eye(rows), np.eye(columns)
    m, v = np.zeros_like(w), np.zeros_like(w)
    history = []
    for t, g in enumerate(gradients):
        direction = np.zeros_like(w)
        if t > 0:
            m = B1 * m + (1 - B1) * g
            v = B2 * v + (1 - B2) * (q_left.T @ g @ q_right) ** 2
            m_hat = m / (1 - B1**t)
            scale = np.sqrt(v / (1 - B2**t)) + EPS / np.sqrt(1 - B2**t)
            direction = q_left @ ((q_left.T @ m_hat @ q_right) / scale) @ q_right.T
        w = w - RATE * (direction + DECAY * w)
        history.append(w)
        left = B2 * left + (1 - B2) * g @ g.T
        right = B2 * right + (1 - B2) * g.T @ g
        if t == 0:
            q_left = eigenvectors(left) if has_left else q_left
            q_right = eigenvectors(right) if has_right else q_right
        elif t % FREQUENCY == 0:
            if has_left:
                q_left, order = power_iteration(left, q_left)
                v = v[order]
            if has_right:
                q_right, order = power_iteration(right, q_right)
                v = v[:, order]
    return history


def entries(w, gradients):
    """Returns Adam's parameter after each step; the first gradient is not used."""
    m, v = np.zeros_like(w), np.zeros_like(w)
    history = []
    for t, g in enumerate(gradients):
        direction = np.zeros_like(w)
        if t > 0:
            m = B1 * m + (1 - B1) * g
            v = B2 * v + (1 - B2) * g**2
            scale = np.sqrt(v / (1 - B2**t)) + EPS / np.sqrt(1 - B2**t)
            direction = m / (1 - B1**t) / scale
        w = w - RATE * (direction + DECAY * w)
        history.append(w)
    return history


def trained(path, w, gradients):
    """Returns a parameter after each step of ours."""
    update = soap(RATE, B1, B2, EPS, DECAY, FREQUENCY, MAX_SIZE)

    def tree(x):
        for name in reversed(path.split('/')):
            x = {name: x}
        return x

    @jax.jit
    def step(gradient, state, params):
        updates, state = update.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    params = tree(jnp.float32(w))
    state = update.init(params)
    history = []
    for gradient in gradients:
        params, state = step(tree(jnp.float32(gradient)), state, params)
        (leaf,) = jax.tree.leaves(params)
        history.append(leaf)
    return np.stack(history)


def drawn(shape):
    rng = np.random.default_rng(0)
    # Correlated gradients, for which eigenbases matter.
    first, last = (
        np.linalg.qr(rng.normal(size=(n, n)))[0] for n in (shape[0], shape[-1])
    )
    scales = 2.0 ** -np.arange(shape[-1])
    noise = rng.normal(size=(STEPS, *shape))
    gradients = np.einsum('ab,tb...c,c,cd->ta...d', first, noise, scales, last)
    return rng.normal(size=shape), gradients


@pytest.mark.parametrize(
    ('path', 'shape', 'matrix'),
    [
        ('up/kernel', (4, 4), (4, 4)),
        ('down/kernel', (4, 9), (4, 9)),
        ('query/kernel', (4, 2, 2), (4, 4)),
        ('out_proj/kernel', (2, 2, 4), (4, 4)),
    ],
)
def test_matrices_are_updated_in_the_eigenbases_of_their_gradients(path, shape, matrix):
    w, gradients = drawn(shape)
    expected = matrices(w.reshape(matrix), gradients.reshape(STEPS, *matrix))
    found = trained(path, w, gradients)
    expected = np.reshape(expected, found.shape)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    # They differ from Adam's.
    assert abs(found - entries(w, gradients)).max() > 0.05


@pytest.mark.parametrize('path', ['embedding', 'source_embedding', 'output'])
def test_vocabulary_of_a_table_has_no_preconditioner(path):
    w, gradients = drawn((5, 4))
    found = trained(path, w, gradients)
    expected = matrices(w, gradients, left_out=['rows'])
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert abs(found - matrices(w, gradients)).max() > 0.01


def test_each_expert_has_its_own_eigenbases():
    shape = (3, 4, 4)
    w, gradients = drawn(shape)
    found = trained('experts/up/kernel', w, gradients)
    for i in range(3):
        np.testing.assert_allclose(
            found[:, i], matrices(w[i], gradients[:, i]), atol=1e-4
        )


@pytest.mark.parametrize(
    ('path', 'shape'),
    [
        ('up/bias', (4,)),
        ('query/bias', (2, 4)),
        ('experts/up/bias', (3, 4)),
        ('scale', ()),
        ('static', (2, 3, 4)),
    ],
)
def test_other_parameters_are_updated_by_adam(path, shape):
    rng = np.random.default_rng(0)
    w, gradients = rng.normal(size=shape), rng.normal(size=(STEPS, *shape))
    found = trained(path, w, gradients)
    np.testing.assert_allclose(found, entries(w, gradients), atol=1e-5)


def test_a_rotation_of_the_gradients_rotates_the_updates():
    """Adam's updates depend on the axes, and SOAP's do not."""
    w, gradients = drawn((4, 4))
    rng = np.random.default_rng(1)
    turn, other = (np.linalg.qr(rng.normal(size=(4, 4)))[0] for _ in range(2))
    found = trained('kernel', turn @ w @ other, turn @ gradients @ other)
    expected = turn @ trained('kernel', w, gradients) @ other
    np.testing.assert_allclose(found, expected, atol=1e-3)


def test_both_sides_of_a_matrix_have_the_means_of_products_and_orthogonal_bases():
    """At first a covariance is singular, so eigenvectors may differ."""
    w, gradients = drawn((5, 3))
    update = soap(RATE, B1, B2, EPS, frequency=FREQUENCY)
    params = {'kernel': jnp.float32(w)}
    state = update.init(params)
    for gradient in gradients:
        _, state = update.update({'kernel': jnp.float32(gradient)}, state, params)
    sides = state[0].sides['kernel']
    weights = (1 - B2) * B2 ** np.arange(STEPS)[::-1]
    products = {
        'rows': np.einsum('t,tij,tkj->ik', weights, gradients, gradients),
        'columns': np.einsum('t,tij,tik->jk', weights, gradients, gradients),
    }
    assert sides.keys() == products.keys()
    for name, side in sides.items():
        np.testing.assert_allclose(side.covariance, products[name], atol=1e-5)
        unit = np.eye(len(side.basis))
        np.testing.assert_allclose(side.basis.T @ side.basis, unit, atol=1e-5)


def test_moments_are_sharded_as_their_parameters_are():
    params = {'up': {'kernel': jnp.zeros((4, 8))}}
    state = soap(RATE).init(params)[0]
    mesh = AbstractMesh((2, 2), ('fsdp', 'tensor'))
    expected = state_shardings(params, mesh)
    assert expected['up']['kernel'].spec != PartitionSpec()
    for moments in (state.mean, state.square):
        assert state_shardings(moments, mesh) == expected


def test_one_branch_is_for_all_parameters():
    """Collectives in branches that run side by side deadlock on CPU devices."""
    params = {name: {'kernel': jnp.ones((4, 4))} for name in ('up', 'down')}
    update = soap(RATE)
    jaxpr = jax.make_jaxpr(update.update)(params, update.init(params), params)
    names = [equation.primitive.name for equation in jaxpr.eqns]
    assert names.count('cond') == 1
