"""What must hold of every model, whatever it is made of.

One batch shows most of it: a sentence a row, all of them packed in one, a row of
nothing, rows that differ from the first of them in one token each, and every target
that the hypotheses of a search have had. What is cached gives the same token by token.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tiny
from flax.traverse_util import flatten_dict
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from flaxformer_lite.kv_cache import BeamState
from flaxformer_lite.training.batch import source_and_inputs

SINGLE, PACKED, SAME = [0, 1, 2], 3, 5
LENGTH = 6  # of the rows that differ in one token
# Two hypotheses of each of two sentences, which part and die as those of a beam do.
T, B, N = 4, 2, 2
SOURCES = [[4, 5, 6, 1], [7, 1]]
PARENTS = np.int32(
    [[[0, 0], [0, 0]], [[0, 1], [0, 1]], [[1, 1], [0, 1]], [[0, 1], [1, 0]]]
)


class Examined(NamedTuple):
    """Logits of all rows; of the hypotheses, token by token; gradients by path."""

    whole: np.ndarray
    steps: np.ndarray
    gradients: dict[str, np.ndarray]


@functools.cache
def hypotheses():
    """→ tokens TBN, the slots of each one's past TBNS, and the targets TBN so far."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(3, tiny.VOCAB, (T, B, N), dtype=np.int32)
    tokens[0] = 2
    visible = np.zeros((T, B, N, T * N), bool)
    past = {}
    for i, j, k in np.ndindex(T, B, N):
        before = []
        if i:
            visible[i, j, k] = visible[i - 1, j, PARENTS[i, j, k]]
            before = past[i - 1, j, PARENTS[i, j, k]]
        visible[i, j, k, i * N + k] = True
        past[i, j, k] = [*before, int(tokens[i, j, k])]
    return tokens, visible, past


def all_rows():
    """The batch, as the module describes it."""
    pair = [4, 5, 1], [4, 5, 6, 7, 8, 1]
    rows = [*([p] for p in tiny.PAIRS), tiny.PAIRS, [], *[[pair]] * (1 + LENGTH)]
    for (_, sentence, _), inputs in hypotheses()[2].items():
        rows.append([(SOURCES[sentence], [*inputs[1:], 1])])
    batch = tiny.batch(rows)
    position = jnp.arange(LENGTH)
    batch['inputs'] = batch['inputs'].at[SAME + 1 + position, position].set(9)
    return batch


def sum_of_nll(logits_BTV, labels_BT):
    """The sum of −log p of the labels; 0 is no label."""
    log_p_BTV = jax.nn.log_softmax(logits_BTV)
    nll_BT = -jnp.take_along_axis(log_p_BTV, labels_BT[..., None], axis=-1)[..., 0]
    return jnp.sum(jnp.where(labels_BT != 0, nll_BT, 0.0))


def loss(model, variables, params, rows):
    """The loss of all rows, and their logits."""
    logits = model.apply(variables | {'params': params}, *source_and_inputs(rows))
    return sum_of_nll(logits, rows['labels']), logits


@functools.partial(jax.jit, static_argnums=0)
def _examined(model, variables):
    # Rows are divided among devices, and what goes token by token is not.
    devices = NamedSharding(Mesh(np.array(jax.devices()), 'd'), PartitionSpec('d'))
    rows = jax.lax.with_sharding_constraint(all_rows(), devices)
    gradient = jax.grad(functools.partial(loss, model, variables), has_aux=True)
    gradients, whole = gradient(variables['params'], rows)
    tokens, visible, _ = hypotheses()
    source = tiny.padded(SOURCES, 5)
    state = model.apply(variables, source, method='prefill').allocate(N, T)

    def step(state, now):
        token_BN, beam = now
        method = 'decode_step'
        logits, state = model.apply(variables, token_BN, state, beam, method=method)
        return state, logits

    beams = BeamState(jnp.arange(T), jnp.asarray(PARENTS), jnp.asarray(visible))
    _, steps = jax.lax.scan(step, state, (tokens, beams))
    return whole, steps, gradients


def examine(model, variables) -> Examined:
    whole, steps, gradients = jax.device_get(_examined(model, variables))
    return Examined(whole, steps, flatten_dict(gradients, sep='/'))


def tolerance(found: Examined, dtype: str) -> float:
    """Sums in another order differ by float32's rounding; in bfloat16 they fall on
    either side of its."""
    precision = 4e-6 if dtype == 'float32' else 2**-5
    return precision * float(np.abs(found.whole).max()) + 1e-5


def check(found: Examined, dtype: str = 'float32', all_counts: bool = False) -> None:
    """Asserts what must hold of any model.

    Args:
      found: of the model.
      dtype: of its products.
      all_counts: whether each token and parameter must count, too. They need not where
        a ReLU of scores is zero and no residual connection passes it by.
    """
    assert found.whole.dtype == found.steps.dtype == np.float32
    assert np.isfinite(found.whole).all()
    for path, gradient in found.gradients.items():
        assert gradient.dtype == np.float32, path
        assert np.isfinite(gradient).all(), path
        assert not all_counts or np.abs(gradient).max() > 0, f'{path} is not used'
    close = functools.partial(
        np.testing.assert_allclose, rtol=0, atol=tolerance(found, dtype)
    )
    start = 0
    for row, (_, labels) in zip(SINGLE, tiny.PAIRS, strict=True):
        packed = found.whole[PACKED, start : start + len(labels)]
        start += len(labels)
        close(packed, found.whole[row, : len(labels)], err_msg='packed')

    rows = found.whole[SAME : SAME + 1 + LENGTH, :LENGTH]
    difference = np.abs(rows[1:] - rows[0]).max(-1)  # [changed token, position]
    close(np.tril(difference, -1), 0.0, err_msg='the future is seen')
    assert not all_counts or (np.diag(difference) > 1e-3).all(), 'a token is not seen'

    whole = found.whole[SAME + 1 + LENGTH :]
    for row, (i, j, k) in enumerate(np.ndindex(T, B, N)):
        close(found.steps[i, j, k], whole[row, i], err_msg=f'step {i}')


def check_same(found: Examined, expected: Examined, dtype: str = 'float32') -> None:
    """Asserts that two forms of one model compute the same."""
    close = functools.partial(np.testing.assert_allclose, rtol=0)
    atol = tolerance(expected, dtype)
    close(found.whole, expected.whole, atol=atol)
    close(found.steps, expected.steps, atol=atol)
    assert found.gradients.keys() == expected.gradients.keys()
    largest = max(np.abs(x).max() for x in expected.gradients.values())
    share = 2e-5 if dtype == 'float32' else 2**-4
    for path, gradient in expected.gradients.items():
        close(found.gradients[path], gradient, atol=share * largest, err_msg=path)
