"""Adam that keeps matrices normalized (Loshchilov et al. 2024, "nGPT")."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax

# Matrices that read and write the residual stream, by the name of their module, and
# their axis of `d_model`.
_AXES = {'query': 0, 'key': 0, 'value': 0, 'out_proj': -1, 'down': -1}


def normalized_adam(
    learning_rate: optax.ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.95,
    eps: float = 1e-8,
    has_output: bool = True,
) -> optax.GradientTransformation:
    """Adam, after which matrices are divided by their norms along `d_model`.

    This is step 2 of §2.6 for the matrices of attention, `down` and the embeddings of
    inputs. The norms of `gate`, `up` and the embeddings that give logits stay free:
    they are the paper's s_u, s_v and s_z.

    Args:
      has_output: Whether logits have their own embeddings, possibly frozen.

    Examples:
      >>> params = {'query': {'kernel': jnp.array([[[3.0]], [[4.0]]])}}
      >>> update = normalized_adam(0.0)
      >>> updates, _ = update.update(params, update.init(params), params)
      >>> kernel = optax.apply_updates(params, updates)['query']['kernel']
      >>> [f'{x:.1f}' for x in kernel.ravel()]
      ['0.6', '0.8']
    """
    adam = optax.adam(learning_rate, b1, b2, eps)
    normalize = functools.partial(_normalize, has_output)
    return optax.chain(adam, optax.stateless(normalize))


def _normalize(has_output: bool, updates: Any, params: Any) -> Any:
    def of_leaf(path, update, x):
        axis = _axis([entry.key for entry in path], has_output)
        if axis is None:
            return update
        new = x + update
        # A frozen or unused row of zeros stays.
        norm = jnp.linalg.norm(new, axis=axis, keepdims=True)
        return new / jnp.where(norm == 0, 1.0, norm) - x

    return jax.tree_util.tree_map_with_path(of_leaf, updates, params)


def _axis(names: list[Any], has_output: bool) -> int | None:
    if names[-1] == 'kernel':
        return _AXES.get(names[-2]) if len(names) > 1 else None
    is_input = names[0] == 'source_embedding' or (
        names[0] == 'embedding' and has_output
    )
    return -1 if is_input else None
