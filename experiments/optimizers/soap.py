"""SOAP: Adam in the eigenbases of Shampoo's preconditioners (Vyas et al. 2024)."""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from flaxformer_lite.validation import Epsilon, NotNegative, Rate, Size

# Embeddings and the matrix of logits, which have a row per token of the vocabulary.
TABLES = ('embedding', 'source_embedding', 'output')
NAMES = ('kernel', *TABLES, 'lora_a', 'lora_b')

Axes = tuple[int, ...]
_AXES = {'rows': -2, 'columns': -1}
# Products of rounded numbers would make eigenbases less orthogonal.
_matmul = functools.partial(jnp.matmul, precision='highest')


class Side(NamedTuple):
    """The preconditioner of the rows or of the columns of matrices, n × n.

    Attributes:
      covariance: The running mean of G Gᵀ, L in the paper, or of Gᵀ G, its R.
      basis: Its eigenvectors, in columns: Q_L or Q_R.
    """

    covariance: jax.Array
    basis: jax.Array


class SoapState(NamedTuple):
    """The state of SOAP.

    Attributes:
      count: The number of updates, int32.
      mean: The first moments, M, in the shapes of the parameters.
      square: The second moments in the eigenbases, V, in the same shapes.
      sides: The sides of each parameter by name, `rows` and `columns`; none for those
        that Adam updates.
    """

    count: jax.Array
    mean: Any
    square: Any
    sides: Any


def soap(
    learning_rate: optax.ScalarOrSchedule,
    b1: Rate = 0.95,
    b2: Rate = 0.95,
    eps: Epsilon = 1e-8,
    weight_decay: NotNegative = 0.0,
    frequency: Size = 10,
    max_size: Size = 10_000,
    mask: Any = None,
) -> optax.GradientTransformation:
    """Adam in the eigenbases of the covariance of gradients.

    Matrices are dense kernels, with all heads of an attention as one, and tables such
    as embeddings. Other parameters are updated by Adam. The state of an m × n matrix
    has 2 m² + 2 n² more numbers than Adam's. The vocabulary of a table has no
    preconditioner, only its features. Parameters are float32.

    Source: Vyas et al. (2024), algorithms 3 and 4. Four details are those of the
    authors' code. `max_size` is meant to leave out vocabularies. Moments are corrected
    for their bias, eigenvectors are sorted by eigenvalue, and the first gradient gives
    eigenbases but no step. Weights decay then, too.

    Args:
      weight_decay: As in AdamW.
      frequency: Number of updates between those of the eigenbases.
      max_size: Longer axes have no preconditioner.
      mask: Selects parameters with weight decay, as in `optax.add_decayed_weights`.

    Examples:
      >>> update = soap(1.0, eps=1e-3)
      >>> gradients = {'kernel': jnp.array([[2.0, 1.0], [1.0, 2.0]])}
      >>> state = update.init(gradients)
      >>> for _ in range(2):
      ...     updates, state = update.update(gradients, state, gradients)
      >>> abs(updates['kernel']).round(1).tolist()
      [[1.0, 0.0], [0.0, 1.0]]
    """

    def init(params):
        zeros = jax.tree.map(jnp.zeros_like, params)
        of_leaf = functools.partial(_sides, max_size)
        sides = jax.tree_util.tree_map_with_path(of_leaf, params)
        return SoapState(jnp.zeros((), jnp.int32), zeros, zeros, sides)

    def update(updates, state, params=None):
        del params
        leaves, tree = jax.tree_util.tree_flatten_with_path(updates)
        of_leaves = [tree.flatten_up_to(x) for x in state[1:]]
        step = functools.partial(_step, state.count, b1, b2, eps)
        steps = map(step, leaves, *of_leaves)
        new, mean, square, sides = map(list, zip(*steps, strict=True))
        square, sides = _with_new_bases(state.count, frequency, square, sides)
        square = [v.reshape(m.shape) for v, m in zip(square, mean, strict=True)]
        moments = [tree.unflatten(x) for x in (mean, square, sides)]
        return tree.unflatten(new), SoapState(state.count + 1, *moments)

    return optax.chain(
        optax.GradientTransformation(init, update),
        optax.add_decayed_weights(weight_decay, mask),
        optax.scale_by_learning_rate(learning_rate),
    )


def matrix_axes(names: Sequence[Any], ndim: int) -> tuple[Axes, Axes] | None:
    """Returns the axes of a kernel's inputs and outputs, or None for other parameters.

    The heads of an attention form one matrix: query kernels are d_model × (h d_k). The
    first axis of an expert's kernel, the expert, is in neither.

    Args:
      names: The path of the parameter.
      ndim: Its number of axes.
    """
    if names[-1] != 'kernel' or ndim < 2:
        return None
    if 'experts' in names:
        return (1,), (2,)
    inputs = ndim - 1 if 'out_proj' in names else 1
    every = tuple(range(ndim))
    return every[:inputs], every[inputs:]


def _sides(max_size, path, x):
    shape = _matrix_shape(path, x)
    if shape is None:
        return {}
    sides = {}
    for name, axis in _AXES.items():
        size = shape[axis]
        is_vocabulary = name == 'rows' and path[-1].key in TABLES
        if size <= max_size and not is_vocabulary:
            zeros = jnp.zeros((*shape[:-2], size, size), x.dtype)
            sides[name] = Side(zeros, zeros)
    return sides


def _matrix_shape(path, x):
    """Returns the shape as a matrix, or as several of experts; None for others."""
    names = [entry.key for entry in path]
    axes = matrix_axes(names, x.ndim)
    if axes is None:
        return x.shape if x.ndim == 2 and names[-1] in NAMES else None
    rows, columns = (math.prod(x.shape[i] for i in of_side) for of_side in axes)
    return (*x.shape[: axes[0][0]], rows, columns)


def _step(count, b1, b2, eps, leaf, mean, square, sides):
    """Returns the update, M, V as a matrix, and sides, from a path and gradient."""
    path, gradient = leaf
    shape = gradient.shape
    g, mean, square = (
        x.reshape(_matrix_shape(path, x) or shape) for x in (gradient, mean, square)
    )
    seen = jnp.where(count == 0, 0.0, g)
    mean = b1 * mean + (1 - b1) * seen
    square = b2 * square + (1 - b2) * _rotate(seen, sides) ** 2
    rotated = _rotate(mean, sides) / (jnp.sqrt(square) + eps)
    t = jnp.maximum(count, 1)
    rotated *= jnp.sqrt(1 - b2**t) / (1 - b1**t)
    update = _rotate_back(rotated, sides)

    sides = {
        name: side._replace(
            covariance=b2 * side.covariance + (1 - b2) * _outer(g, name)
        )
        for name, side in sides.items()
    }
    return update.reshape(shape), mean.reshape(shape), square, sides


def _with_new_bases(count, frequency, squares, sides):
    """Returns V and sides of all parameters, with eigenbases for the next update.

    There is one branch for all parameters, because collectives in separate branches
    deadlock on several CPU devices.
    """

    def branch(of_parameter):
        def all_updates(squares, sides):
            new = map(of_parameter, squares, sides)
            return tuple(map(list, zip(*new, strict=True)))

        return all_updates

    index = jnp.where(count == 0, 0, jnp.where(count % frequency == 0, 1, 2))
    branches = map(branch, (_first_bases, _next_bases, _same_bases))
    return jax.lax.switch(index, list(branches), squares, sides)


def _rotate(x, sides):
    """Returns Q_Lᵀ x Q_R."""
    if 'rows' in sides:
        x = _matmul(sides['rows'].basis.mT, x)
    if 'columns' in sides:
        x = _matmul(x, sides['columns'].basis)
    return x


def _rotate_back(x, sides):
    """Returns Q_L x Q_Rᵀ."""
    if 'rows' in sides:
        x = _matmul(sides['rows'].basis, x)
    if 'columns' in sides:
        x = _matmul(x, sides['columns'].basis.mT)
    return x


def _outer(g, name):
    return _matmul(g, g.mT) if name == 'rows' else _matmul(g.mT, g)


def _first_bases(square, sides):
    new = {
        name: side._replace(basis=jnp.linalg.eigh(side.covariance)[1])
        for name, side in sides.items()
    }
    return square, new


def _next_bases(square, sides):
    """Improves eigenvectors by a power iteration, and sorts them by eigenvalue."""
    new = {}
    for name, (covariance, basis) in sides.items():
        image = _matmul(covariance, basis)
        eigenvalues = jnp.sum(basis * image, axis=-2)
        order = jnp.argsort(eigenvalues, axis=-1, descending=True)
        sorted_image = jnp.take_along_axis(image, order[..., None, :], -1)
        new[name] = Side(covariance, jnp.linalg.qr(sorted_image)[0])
        of_axis = order[..., None] if name == 'rows' else order[..., None, :]
        square = jnp.take_along_axis(square, of_axis, _AXES[name])
    return square, new


def _same_bases(square, sides):
    return square, sides
