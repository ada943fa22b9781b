"""Tests that each tuned operation of `ops/` equals its reference."""

import functools
import inspect
import pkgutil
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import normal32

import flaxformer_lite
from flaxformer_lite import ops
from flaxformer_lite.ops import (
    einsum,
    fused_attention,
    loss_of_logits,
    masked_softmax,
    matmul,
    random_bits,
    relu,
    rms,
    softmax_statistics,
    sum_by_index,
    top_k,
)
from flaxformer_lite.training.loss import as_loss

F32, BF16 = jnp.float32, jnp.bfloat16
# Bounds of the differences of two orders of summation, or two roundings.
TOLERANCE = {F32: 1e-5, BF16: 2 * 2.0**-8}


def value_and_gradients(function, direction, *arguments):
    """Returns a function's value, and the gradients of its sum times a direction."""

    def weighted(*arguments):
        y = function(*arguments)
        return (y * direction).sum(), y

    every = tuple(range(len(arguments)))
    grad = jax.grad(weighted, every, has_aux=True)
    gradients, y = jax.jit(grad)(*arguments)
    return y, gradients


def assert_equal(found, expected, tolerance):
    """Checks equal dtypes and a small error relative to the largest number."""

    def check(one, other):
        assert one.dtype == other.dtype and one.shape == other.shape
        one, other = np.float64(one.astype(F32)), np.float64(other.astype(F32))
        np.testing.assert_allclose(one, other, atol=tolerance * np.abs(other).max())

    jax.tree.map(check, found, expected)


def test_every_operation_has_a_test():
    files = {f.name for f in pkgutil.iter_modules(ops.__path__)} - {'choose'}
    tests = {name for name in globals() if name.startswith('test_tuned_')}
    assert tests == {f'test_tuned_{name}_equals_the_reference' for name in files}


@pytest.mark.ci
@pytest.mark.parametrize('dtype', [F32, BF16])
@pytest.mark.parametrize('shape', [(5, 9, 4), (1, 1, 1), (333, 130, 65)])
def test_tuned_matmul_equals_the_reference(shape, dtype):
    n, d, f = shape
    x_ND, w_DF = normal32(n, d).astype(dtype), normal32(d, f, seed=1).astype(dtype)
    g_NF = normal32(n, f, seed=2)
    assert_equal(
        value_and_gradients(matmul.tuned, g_NF, x_ND, w_DF),
        value_and_gradients(matmul.reference, g_NF, x_ND, w_DF),
        TOLERANCE[dtype],
    )
    g_NF = g_NF.astype(dtype)
    assert_equal(
        jax.jit(matmul.weight_gradient_on_cpu)(x_ND, g_NF),
        jax.jit(matmul.weight_gradient_reference)(x_ND, g_NF),
        # Both sum in float32.
        TOLERANCE[F32],
    )
    # XLA on a CPU has no algorithm of bfloat16 for a product of two numbers.
    if shape != (1, 1, 1):
        assert_equal(
            jax.jit(matmul.input_gradient_on_gpu)(g_NF, w_DF),
            jax.jit(matmul.input_gradient_reference)(g_NF, w_DF),
            TOLERANCE[dtype],
        )


@pytest.mark.parametrize('dtype', [F32, BF16])
@pytest.mark.parametrize(
    ('subscripts', 'x', 'y', 'result'),
    [
        ('bthk,bhks->bhts', (2, 3, 4, 5), (2, 4, 5, 6), (2, 4, 3, 6)),
        ('bhts,bhus->bthu', (2, 4, 3, 6), (2, 4, 7, 6), (2, 3, 4, 7)),
    ],
    ids=['scores', 'sum'],
)
def test_tuned_einsum_equals_the_reference(subscripts, x, y, result, dtype):
    x, y = normal32(*x).astype(dtype), normal32(*y, seed=1).astype(dtype)
    g = normal32(*result, seed=2)
    found, expected = (
        value_and_gradients(functools.partial(version, subscripts), g, x, y)
        for version in (einsum.tuned, einsum.reference)
    )
    assert_equal(found, expected, TOLERANCE[dtype])


@pytest.mark.parametrize('dtype', [F32, BF16])
def test_tuned_relu_equals_the_reference(dtype):
    x = jnp.concatenate([normal32(50), jnp.asarray([0.0, -0.0, 1e-30, -1e-30])])
    direction = normal32(54, seed=1).astype(dtype)
    tuned, reference = (
        value_and_gradients(f, direction, x.astype(dtype))
        for f in (relu.tuned, relu.reference)
    )
    assert_equal(tuned, reference, 0.0)


@pytest.mark.parametrize('level', [0.0, 1e4, -1e4])
def test_tuned_masked_softmax_equals_the_reference(level):
    scores_BHTS = normal32(2, 3, 5, 7) + level
    mask_BHTS = jnp.asarray(np.random.default_rng(1).random((2, 1, 5, 7)) < 0.6)
    mask_BHTS = mask_BHTS.at[0, 0, 2].set(False)
    direction = normal32(2, 3, 5, 7, seed=2)
    tuned, reference = (
        value_and_gradients(lambda s, f=f: f(s, mask_BHTS), direction, scores_BHTS)
        for f in (masked_softmax.tuned, masked_softmax.reference)
    )
    assert_equal(tuned, reference, TOLERANCE[F32])
    np.testing.assert_array_equal(tuned[0][0, :, 2], 0.0)


@pytest.mark.parametrize('centered', [False, True])
@pytest.mark.parametrize('epsilon', [1e-6, 0.1])
def test_tuned_rms_equals_the_reference(epsilon, centered):
    x = 2.0 + 0.3 * normal32(2, 5, 8)  # far from 0, so that the mean counts, and ε
    direction = normal32(2, 5, 8, seed=1)
    tuned, reference = (
        value_and_gradients(lambda x, f=f: f(x, epsilon, centered), direction, x)
        for f in (rms.tuned, rms.reference)
    )
    assert_equal(tuned, reference, TOLERANCE[F32])


@pytest.mark.ci
@pytest.mark.parametrize('dtype', [F32, BF16])
@pytest.mark.parametrize(('chunk', 'vocab_multiple'), [(6, 4), (512, 1)])
def test_tuned_loss_of_logits_equals_the_reference(
    chunk, vocab_multiple, dtype, monkeypatch
):
    monkeypatch.setattr(loss_of_logits, 'CHUNK_ON_CPU', chunk)
    monkeypatch.setattr(loss_of_logits, 'VOCAB_MULTIPLE_ON_CPU', vocab_multiple)
    hidden_BTD, table_VD = normal32(2, 7, 5), normal32(9, 5, seed=1)
    labels_BT = jnp.asarray(np.random.default_rng(2).integers(0, 9, (2, 7)))

    def run(version):
        def loss(hidden_BTD, table_VD):
            formula = loss_of_logits.cross_entropy(0.1, padding=0)
            settings = loss_of_logits.LossOptions(formula, dtype)
            sums = version(hidden_BTD, (table_VD, None), (labels_BT,), settings)
            return 3 * sums.loss, sums

        return jax.jit(jax.grad(loss, (0, 1), has_aux=True))(hidden_BTD, table_VD)

    gradients, sums = run(loss_of_logits.tuned)
    expected_gradients, expected_sums = run(loss_of_logits.reference)
    # Logits, and all that is computed of them, are float32 in both.
    assert_equal(sums, expected_sums, TOLERANCE[F32])
    assert_equal(gradients, expected_gradients, TOLERANCE[dtype])


@pytest.mark.ci
def test_gradients_of_sums_other_than_the_loss_are_errors():
    formula = as_loss('[cross_entropy, z_loss]').formula(padding=0)
    arguments = (normal32(9, 5, seed=1), None), (jnp.ones((2, 7), jnp.int32),)
    settings = loss_of_logits.LossOptions(formula)

    def gradient(read):
        def total(hidden_BTD):
            sums = loss_of_logits.loss_of_logits(hidden_BTD, *arguments, settings)
            return read(sums)

        return jax.jit(jax.grad(total))(normal32(2, 7, 5))

    assert jnp.any(gradient(lambda sums: sums.loss / sums.tokens) != 0)
    assert jnp.all(gradient(lambda sums: sums.correct) == 0)
    others = [lambda sums: sums.nll, lambda sums: sum(sums.others.values())]
    for field, read in zip(('nll', 'others'), others, strict=True):
        message = rf'LossSums\.{field}: only loss has a gradient\. Differentiate loss'
        with pytest.raises(ValueError, match=message):
            gradient(read)
    with ops.use_reference():
        assert jnp.any(gradient(others[0]) != 0)


def test_tuned_softmax_statistics_equals_the_reference():
    logits_NV = jnp.concatenate([normal32(3, 50), 200 * normal32(2, 50, seed=1)])
    logits_NV = logits_NV.at[0, -1].set(90.0).at[1, :7].set(-jnp.inf)
    direction = normal32(5, seed=2)

    def log_z(version, logits_NV):
        statistics = version(logits_NV)
        return statistics.highest_N + jnp.log(statistics.sum_exp_N)

    tuned, reference = (
        value_and_gradients(functools.partial(log_z, version), direction, logits_NV)
        for version in (softmax_statistics.in_one_pass, softmax_statistics.reference)
    )
    assert_equal(tuned, reference, TOLERANCE[F32])
    expected = np.logaddexp.reduce(np.float64(logits_NV), axis=1)
    assert_equal(tuned[0], jnp.asarray(expected, F32), TOLERANCE[F32])
    finite_NV = logits_NV[2:]
    sums_N = softmax_statistics.in_one_pass(finite_NV).sum_N
    assert_equal(sums_N, finite_NV.sum(-1), TOLERANCE[F32])


@pytest.mark.parametrize('version', [random_bits.reference, random_bits.tuned])
def test_tuned_random_bits_equals_the_reference(version):
    """Words differ but follow the same distribution, with fair, independent bits."""
    words = np.asarray(version(jax.random.key(3), (1 << 8, 1 << 8))).reshape(-1)
    assert words.dtype == np.uint32
    bits = (words[:, None] >> np.arange(32, dtype=np.uint32)) & 1
    # Five standard deviations of the mean of fair coins.
    bound = 5 * 0.5 / np.sqrt(len(words))
    assert np.abs(bits.mean(0) - 0.5).max() < bound
    flips = bits[1:] ^ bits[:-1]
    assert np.abs(flips.mean(0) - 0.5).max() < bound
    pairs = (bits[:, :-1] ^ bits[:, 1:]).mean(0)
    assert np.abs(pairs - 0.5).max() < bound
    if version is random_bits.tuned:  # a bijection of the index
        assert len(np.unique(words)) == len(words)
    # Words of another key, and of the next row, are independent.
    other = np.asarray(version(jax.random.key(4), (1 << 8, 1 << 8))).reshape(-1)
    rows = words.reshape(1 << 8, 1 << 8)
    for one, two in ((words, other), (rows[1:].reshape(-1), rows[:-1].reshape(-1))):
        agree = (((one ^ two)[:, None] >> np.arange(32, dtype=np.uint32)) & 1).mean(0)
        assert np.abs(agree - 0.5).max() < bound * np.sqrt(len(words) / len(one))


def test_words_differ_in_arrays_of_more_than_32_bits_of_elements():
    """Two rows hold 2³² elements, so the third would repeat a wrapped index."""
    corner = np.indices((4, 8, 8), np.uint32).reshape(3, -1)
    key = jax.random.key(3)
    words = random_bits.words_at(key, (4, 1 << 16, 1 << 15), list(corner))
    assert len(np.unique(words)) == words.size == 256
    first = random_bits.words_at(key, (1 << 16, 1 << 15), list(corner[1:, :64]))
    np.testing.assert_array_equal(words[:64], first)


def ties(vocab, seed):
    """Returns rows with many ties, far apart, and zeros of both signs."""
    rng = np.random.default_rng(seed)
    x_BV = np.round(3 * rng.normal(size=(40, vocab)))
    x_BV[rng.random(x_BV.shape) < 0.2] = -np.inf
    x_BV[:2] = rng.choice([-0.0, 0.0], size=(2, vocab))
    return x_BV


@pytest.mark.parametrize('vocab', [10, 128, 1000])
@pytest.mark.parametrize('k', [1, 8])
def test_tuned_top_k_equals_the_reference(vocab, k):
    x_BV = jnp.asarray(ties(vocab, vocab + k) + 0.0, F32)
    tuned = jax.jit(top_k.tuned, static_argnums=(1, 2))
    expected = jax.jit(top_k.reference, static_argnums=1)(x_BV, k)
    for block in (7, top_k.BLOCK):
        np.testing.assert_array_equal(tuned(x_BV, k, block), expected)
    # The largest first, and of equal ones, also of both zeros, the first.
    x_BV = ties(vocab, vocab + k)
    expected = np.argsort(-x_BV, axis=-1, kind='stable')[:, :k]
    largest = jax.jit(top_k.top_k_indices, static_argnums=1)
    np.testing.assert_array_equal(largest(jnp.asarray(x_BV, F32), k), expected)


@pytest.mark.parametrize('shape', [(1, 5), (7, 1), (300, 1000)])
def test_sums_of_rows_equal_those_of_float64(shape):
    x_ND = normal32(*shape)
    expected = np.float32(np.float64(x_ND).sum(0))
    for version in (matmul.sum_rows_reference, matmul.sum_rows_on_cpu):
        assert_equal(jax.jit(version)(x_ND), expected, TOLERANCE[F32])


def test_tuned_sum_by_index_equals_the_reference():
    weights_BHTS, direction = normal32(2, 3, 4, 7), normal32(2, 3, 4, 5, seed=1)
    index_BTS = np.random.default_rng(2).integers(5, size=(2, 4, 7))

    expected = np.zeros((2, 3, 4, 5))
    gradient = np.zeros((2, 3, 4, 7))
    for b, h, t, s in np.ndindex(2, 3, 4, 7):
        expected[b, h, t, index_BTS[b, t, s]] += weights_BHTS[b, h, t, s]
        gradient[b, h, t, s] = direction[b, h, t, index_BTS[b, t, s]]
    for version in (sum_by_index.reference, sum_by_index.on_cpu):
        found = value_and_gradients(
            lambda weights, version=version: version(weights, index_BTS, 5),
            direction,
            weights_BHTS,
        )
        assert_equal(
            found, (np.float32(expected), (np.float32(gradient),)), TOLERANCE[F32]
        )


def test_tuned_fused_attention_equals_the_reference():
    q, key, value = (normal32(2, 4, 2, 8, seed=i).astype(BF16) for i in range(3))
    bias = normal32(1, 2, 4, 4, seed=3).astype(BF16)
    mask = jnp.tril(jnp.ones((2, 1, 4, 4), bool))

    def version(attend):
        def weighted(q, key, value, bias):
            return attend(q, key, value, bias, mask, 0.3)

        return functools.partial(
            value_and_gradients, weighted, normal32(2, 4, 2, 8, seed=4).astype(BF16)
        )

    arguments = q, key, value, bias
    expected = version(fused_attention.reference)(*arguments)
    if jax.default_backend() == 'gpu':
        found = version(fused_attention.tuned)(*arguments)
        assert_equal(found, expected, TOLERANCE[BF16])
    found = jax.eval_shape(version(fused_attention.tuned), *arguments)
    assert found == jax.eval_shape(lambda: expected)


def test_only_ops_contains_tuned_operations():
    tuning = re.compile(
        r'custom_vjp|custom_jvp|optimization_barrier|platform_dependent|malloc'
    )
    folder = Path(inspect.getfile(flaxformer_lite)).parent
    tuned = {
        path.relative_to(folder).parts[0]
        for path in folder.rglob('*.py')
        if tuning.search(path.read_text())
    }
    assert tuned == {'ops'}
