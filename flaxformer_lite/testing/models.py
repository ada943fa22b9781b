"""Contracts of models, independent of their components."""

import contextlib
import functools
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import optax
from flax.traverse_util import flatten_dict

from flaxformer_lite.models.base import Model
from flaxformer_lite.testing import rows
from flaxformer_lite.testing.finding import Finding, from_differences
from flaxformer_lite.training.batch import Batch, source_and_inputs
from flaxformer_lite.training.train_step import init_variables

# These programs run for milliseconds, and optimization dominates compile time.
UNOPTIMISED: Any = {'xla_backend_optimization_level': 0}
MIN_EFFECT = 1e-3  # minimum effect of a token on its own logits, which are about 1


class ModelOutputs(NamedTuple):
    """Results of a model on the test rows, as host arrays.

    Attributes:
      logits: Logits of both batches, (2, rows, target length, V).
      steps_TBNV: Logits by cached decoding; None if `quick`.
      gradients: Gradients of all parameters, as a tree; {} if `quick`.
    """

    logits: Any
    steps_TBNV: Any
    gradients: Any


def random_variables(model: Model) -> Any:
    """Returns random variables, since initial zeros and ones hide what they multiply.

    Variables that aren't parameters, such as a running variance, are positive.
    """
    rng = random.Random(0)
    shapes = jax.eval_shape(lambda: init_variables(model, jax.random.key(0)))
    variables = {}
    for collection, tree in shapes.items():
        values = jax.tree.map(lambda x: rows.random_array(rng, x.shape), tree)
        if collection != 'params':
            values = jax.tree.map(lambda x: abs(x) + 0.5, values)
        variables[collection] = values
    return variables


def first_values(model: Model) -> Finding:
    contract = 'initial variables are finite and float32'
    init = functools.partial(init_variables, model)
    begin = jax.jit(init, compiler_options=UNOPTIMISED)
    variables = jax.device_get(begin(jax.random.key(0)))
    for path, x in by_path(variables).items():
        largest = abs(x).max()
        if x.dtype != 'float32' or not largest < float('inf'):
            return Finding(contract, False, f'{path}: {x.dtype}, up to {largest}')
    return Finding(contract, True)


def examine(model: Model, variables: Any, quick: bool = False) -> ModelOutputs:
    """Computes the results that the contracts compare.

    The model needs at least `rows.VOCAB_SIZE` tokens and the default special tokens.
    """
    program = _logits if quick else _compute_results
    with exact_products():
        found = program(model, variables, rows.both_batches(), rows.steps())
    return ModelOutputs(*jax.device_get(found))


def exact_products() -> contextlib.AbstractContextManager[None]:
    """Context with exact float32 products; GPUs and TPUs round operands otherwise."""
    return jax.default_matmul_precision('float32')


def loss(
    model: Model, variables: Any, params: Any, batch: Batch
) -> tuple[jax.Array, jax.Array]:
    """Returns Σ −log p of all labels of a batch and all heads, and its logits."""
    given = variables | {'params': params}
    logits_BTV: Any = model.apply(given, *source_and_inputs(batch))
    each = [logits_BTV]
    if type(model).hidden_of_heads is not Model.hidden_of_heads:
        (_, *later), *_ = model.apply(
            given, *source_and_inputs(batch), method='factors_of_heads'
        )
        each += [model.apply(given, x_BTD, method='_logits') for x_BTD in later]
    labels_BT = batch['labels']
    nll_BT = sum(
        optax.softmax_cross_entropy_with_integer_labels(x_BTV, labels_BT)
        for x_BTV in each
    )
    return (nll_BT * (labels_BT != 0)).sum(), logits_BTV


@functools.partial(jax.jit, static_argnums=0, compiler_options=UNOPTIMISED)
def _logits(model, variables, batches, steps):
    def logits(batch):
        return model.apply(variables, *source_and_inputs(batch))

    return jax.lax.map(logits, batches), None, {}


@functools.partial(jax.jit, static_argnums=0, compiler_options=UNOPTIMISED)
def _compute_results(model, variables, batches, steps):
    gradient = jax.grad(functools.partial(loss, model, variables), has_aux=True)
    # A loop, so that one compiled body serves both batches.
    gradients, logits = jax.lax.map(
        lambda batch: gradient(variables['params'], batch), batches
    )
    state = model.apply(variables, steps.source_BS, method='prefill')
    state = state.allocate(rows.N, rows.T)

    def step(state, at_step):
        token_BN, beam = at_step
        method = 'decode_step'
        logits, state = model.apply(variables, token_BN, state, beam, method=method)
        return state, logits

    _, steps_TBNV = jax.lax.scan(step, state, (steps.tokens_TBN, steps.beams))
    return logits, steps_TBNV, jax.tree.map(lambda x: x.sum(0), gradients)


def findings(
    found: ModelOutputs, dtype: str = 'float32', all_counts: bool = True
) -> list[Finding]:
    """Tests each contract for which `found` has results.

    Args:
      dtype: Operand dtype of the model's products.
      all_counts: Whether each token and each parameter must have an effect.
    """
    sanity_findings = [_finite(found), _float32(found)]
    if not sanity_findings[0].holds:
        return sanity_findings  # NaN can't be compared
    atol = tolerance(found, dtype)
    contracts = [_future, _padding, _packing, _other_rows]
    if found.steps_TBNV is not None:
        contracts.append(_token_by_token)
    counting = [_present(found), _parameters(found)] if all_counts else []
    return [
        *sanity_findings,
        *(contract(found, atol) for contract in contracts),
        *counting,
    ]


def tolerance(found: ModelOutputs, dtype: str = 'float32') -> float:
    """Returns the tolerance of logits for sums in a different order."""
    precision = 4e-6 if dtype == 'float32' else 2**-5
    return precision * float(abs(found.logits).max()) + 1e-5


def same(
    contract: str, found: ModelOutputs, expected: ModelOutputs, dtype: str = 'float32'
) -> Finding:
    """Tests that two forms of a model compute the same logits and gradients."""
    gradients = by_path(expected.gradients)
    others = by_path(found.gradients)
    if gradients.keys() != others.keys():
        return Finding(contract, False, 'the parameters have other names')
    at_once = _largest(found.logits, expected.logits)
    by_token = _largest(found.steps_TBNV, expected.steps_TBNV)
    differences = [
        (at_once, 'logits change by {}'),
        (by_token, 'logits of cached decoding change by {}'),
    ]
    logits = from_differences(contract, tolerance(expected, dtype), differences)
    if not logits.holds:
        return logits
    largest = max(float(abs(x).max()) for x in gradients.values())
    share = 2e-5 if dtype == 'float32' else 2**-4
    differences = [
        (_largest(others[path], x), f'the gradient of {path} changes by {{}}')
        for path, x in gradients.items()
    ]
    return from_differences(contract, share * largest, differences)


def _finite(found: ModelOutputs) -> Finding:
    """Also covers queries that attend to nothing, and empty rows."""
    contract = 'logits and gradients are finite'
    arrays = {'logits': found.logits} | by_path(found.gradients, 'the gradient of ')
    for name, x in arrays.items():
        if not abs(x).max() < float('inf'):
            return Finding(contract, False, f'{name}: NaN or infinity')
    return Finding(contract, True)


def _float32(found: ModelOutputs) -> Finding:
    dtypes = {str(x.dtype) for x in jax.tree.leaves(found)}
    contract = 'logits and gradients are float32'
    others = sorted(dtypes - {'float32'})
    return Finding(contract, not others, ', '.join(others))


def _future(found: ModelOutputs, atol: float) -> Finding:
    differences = _logit_changes(found)

    def examples():
        for token in range(rows.LENGTH):
            for position in reversed(range(token)):
                example = (
                    f'logits at position {position} change by {{}} with token {token}'
                )
                yield differences[token][position], example

    return from_differences('logits do not depend on later tokens', atol, examples())


def _present(found: ModelOutputs) -> Finding:
    contract = 'logits depend on the token at their position'
    for token, differences in enumerate(_logit_changes(found)):
        if not differences[token] > MIN_EFFECT:
            return Finding(
                contract, False, f'logits at {token} do not change with the token'
            )
    return Finding(contract, True)


def _logit_changes(found: ModelOutputs) -> Any:
    """Returns the change of logits by [changed token][position]."""
    changed = slice(rows.CHANGED, rows.CHANGED + rows.LENGTH)
    logits_NTV = found.logits[0, :, : rows.LENGTH]
    return abs(logits_NTV[changed] - logits_NTV[rows.PLAIN]).max(-1)


def _padding(found: ModelOutputs, atol: float) -> Finding:
    """Also covers a source of padding alone, which is equivalent to zeros."""

    def examples():
        for plain, noisy in ((rows.PLAIN, rows.NOISY), (rows.BLIND, rows.BLIND_NOISY)):
            one, other = found.logits[0, [plain, noisy], : rows.LENGTH]
            yield from _by_position(other, one, 'with other tokens in padding')

    return from_differences('padding has no effect', atol, examples())


def _packing(found: ModelOutputs, atol: float) -> Finding:
    def examples():
        start = 0
        for row, (_, labels) in enumerate(rows.PAIRS):
            unpacked = found.logits[0, row, : len(labels)]
            packed = found.logits[0, rows.PACKED, start : start + len(labels)]
            start += len(labels)
            yield from _by_position(
                packed, unpacked, f'if packed as number {row} of a row'
            )

    return from_differences('packing has no effect', atol, examples())


def _other_rows(found: ModelOutputs, atol: float) -> Finding:
    def examples():
        for row, (_, labels) in enumerate(rows.PAIRS):
            one, other = found.logits[:, row, : len(labels)]
            yield from _by_position(one, other, 'with other rows in the batch')

    return from_differences('other rows have no effect', atol, examples())


def _token_by_token(found: ModelOutputs, atol: float) -> Finding:
    at_once = found.logits[1, len(rows.PAIRS) :]

    def examples():
        for row, (i, j, k) in enumerate(rows.HYPOTHESES):
            difference = _largest(found.steps_TBNV[i, j, k], at_once[row, i])
            yield difference, f'logits at position {i} differ by {{}}'

    return from_differences('cached decoding equals teacher forcing', atol, examples())


def _parameters(found: ModelOutputs) -> Finding:
    contract = 'every parameter has a nonzero gradient'
    for path, gradient in by_path(found.gradients).items():
        if not abs(gradient).max() > 0:
            return Finding(contract, False, f'the gradient of {path} is 0')
    return Finding(contract, True)


def _by_position(found: Any, expected: Any, when: str) -> Iterator[tuple[float, str]]:
    for position in range(len(expected)):
        difference = _largest(found[position], expected[position])
        yield difference, f'logits at position {position} change by {{}} {when}'


def _largest(found: Any, expected: Any) -> float:
    return float(abs(found - expected).max())


def by_path(tree: Any, before: str = '') -> dict[str, Any]:
    found = flatten_dict(tree, sep='/')
    return {f'{before}{path}': x for path, x in found.items()}
