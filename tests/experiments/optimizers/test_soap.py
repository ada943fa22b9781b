"""Tests SOAP on algorithms 3 and 4 of Vyas et al. (2024), written in float64 NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict
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


def adam(w, gradients):
    """Returns Adam's parameter after each step; the first gradient is not used."""
    column, columns = w.reshape(-1, 1), gradients.reshape(STEPS, -1, 1)
    history = matrices(column, columns, left_out=('rows', 'columns'))
    return np.reshape(history, gradients.shape)


def drawn(shape):
    """Returns a parameter and its gradients, correlated so that eigenbases matter."""
    rng = np.random.default_rng(0)
    if len(shape) < 2:
        return rng.normal(size=shape), rng.normal(size=(STEPS, *shape))
    first, last = (
        np.linalg.qr(rng.normal(size=(n, n)))[0] for n in (shape[0], shape[-1])
    )
    scales = 2.0 ** -np.arange(shape[-1])
    noise = rng.normal(size=(STEPS, *shape))
    gradients = np.einsum('ab,tb...c,c,cd->ta...d', first, noise, scales, last)
    return rng.normal(size=shape), gradients


# Path → its shape, and its shape as a matrix.
MATRICES = {
    'up/kernel': ((4, 4), (4, 4)),
    'down/kernel': ((4, 9), (4, 9)),
    'query/kernel': ((4, 2, 2), (4, 4)),
    'out_proj/kernel': ((2, 2, 4), (4, 4)),
}
TABLES = ('embedding', 'source_embedding', 'output')
OTHERS = {
    'up/bias': (4,),
    'query/bias': (2, 4),
    'experts/up/bias': (3, 4),
    'scale': (),
    'static': (2, 3, 4),
}
EXPERTS, ROTATED, NARROW = 'experts/up/kernel', 'rotated/kernel', 'narrow/kernel'
ROTATIONS = [
    np.linalg.qr(np.random.default_rng(i).normal(size=(4, 4)))[0] for i in (1, 2)
]
PARAMS = {
    **{path: drawn(shape) for path, (shape, _) in MATRICES.items()},
    **{path: drawn((5, 4)) for path in TABLES},
    **{path: drawn(shape) for path, shape in OTHERS.items()},
    NARROW: drawn((5, 3)),
    EXPERTS: drawn((3, 4, 4)),
    ROTATED: tuple(ROTATIONS[0] @ x @ ROTATIONS[1] for x in drawn((4, 4))),
}


@pytest.fixture(scope='module')
def trained():
    """Returns path → its values after each step, and the last state."""
    update = soap(RATE, B1, B2, EPS, DECAY, FREQUENCY, MAX_SIZE)

    @jax.jit
    def step(gradient, state, params):
        updates, state = update.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    def tree(arrays):
        return unflatten_dict(jax.tree.map(jnp.float32, arrays), sep='/')

    params = tree({path: w for path, (w, _) in PARAMS.items()})
    state = update.init(params)
    history = []
    for t in range(STEPS):
        gradient = tree({path: gradients[t] for path, (_, gradients) in PARAMS.items()})
        params, state = step(gradient, state, params)
        history.append(flatten_dict(jax.device_get(params), sep='/'))
    return {path: np.stack([x[path] for x in history]) for path in PARAMS}, state[0]


@pytest.mark.ci
@pytest.mark.parametrize('path', MATRICES)
def test_matrix_is_updated_in_the_eigenbases_of_its_gradients(trained, path):
    w, gradients = PARAMS[path]
    found, (_, matrix) = trained[0][path], MATRICES[path]
    expected = matrices(w.reshape(matrix), gradients.reshape(STEPS, *matrix))
    expected = np.reshape(expected, found.shape)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    # Adam's differ.
    assert abs(found - adam(w, gradients)).max() > 0.05


@pytest.mark.parametrize('path', TABLES)
def test_vocabulary_of_a_table_has_no_preconditioner(trained, path):
    found, (w, gradients) = trained[0][path], PARAMS[path]
    expected = matrices(w, gradients, left_out=['rows'])
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert abs(found - matrices(w, gradients)).max() > 0.01


def test_each_expert_has_its_own_eigenbases(trained):
    found, (w, gradients) = trained[0][EXPERTS], PARAMS[EXPERTS]
    for i in range(3):
        expected = matrices(w[i], gradients[:, i])
        np.testing.assert_allclose(found[:, i], expected, atol=1e-4)


@pytest.mark.parametrize('path', OTHERS)
def test_other_parameters_are_updated_by_adam(trained, path):
    np.testing.assert_allclose(trained[0][path], adam(*PARAMS[path]), atol=1e-5)


def test_rotated_gradients_give_rotated_updates(trained):
    """Adam's updates depend on the axes, and SOAP's do not."""
    expected = ROTATIONS[0] @ trained[0]['up/kernel'] @ ROTATIONS[1]
    np.testing.assert_allclose(trained[0][ROTATED], expected, atol=1e-3)


def test_covariances_are_moving_averages_and_bases_orthogonal(trained):
    _, gradients = PARAMS[NARROW]
    sides = trained[1].sides['narrow']['kernel']
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


def test_moments_are_sharded_like_their_parameters():
    params = {'up': {'kernel': jnp.zeros((4, 8))}}
    state = soap(RATE).init(params)[0]
    mesh = AbstractMesh((2, 2), ('fsdp', 'tensor'))
    expected = state_shardings(params, mesh)
    assert expected['up']['kernel'].spec != PartitionSpec()
    for moments in (state.mean, state.square):
        assert state_shardings(moments, mesh) == expected


def test_all_parameters_share_one_branch():
    """Collectives in branches that run side by side deadlock on CPU devices."""
    params = {name: {'kernel': jnp.ones((4, 4))} for name in ('up', 'down')}
    update = soap(RATE)
    jaxpr = jax.make_jaxpr(update.update)(params, update.init(params), params)
    names = [equation.primitive.name for equation in jaxpr.eqns]
    assert names.count('cond') == 1
