"""Loss of logits and its gradient in float32, without materializing all logits."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax.typing import DTypeLike

from flaxformer_lite.ops.choose import choose
from flaxformer_lite.ops.matmul import matmul, sum_rows, weight_gradient
from flaxformer_lite.ops.softmax_statistics import softmax_statistics
from flaxformer_lite.shapes import split_into_blocks
from flaxformer_lite.sharding import (
    REPLICATED,
    by_device,
    is_divided,
    row_axes,
    rows_spec,
)

# Rows of logits per chunk on a device. On CPU: enough to keep the matrix units busy,
# but few enough for the caches.
CHUNK_ON_CPU = 512
# Elsewhere, a chunk's products, 6 N V D operations, must hide reading and writing the
# float32 V × D gradient, 8 V D bytes. Accelerators do 200 to 300 bfloat16 operations
# per byte of memory traffic. N = 512 rows would wait for memory almost as long as they
# compute; N = 4096 rows wait a tenth as long. With a vocabulary of 37,000, the logits
# of a chunk take 0.6 GB.
CHUNK_ELSEWHERE = 4096
# Accelerators multiply tiles. XLA would otherwise pad the operands of each product in a
# separate kernel. For the logits' gradient, this is a pass over N × V values.
VOCAB_MULTIPLE_ON_CPU = 1
VOCAB_MULTIPLE_ELSEWHERE = 128

# Most probabilities are too small for float16. A power of two adds no rounding, and a
# loss whose gradient by a logit is at most 255 does not overflow.
FLOAT16_FACTOR = 2.0**8


class LossSums(struct.PyTreeNode):
    """Sums over the labels that count, float32 scalars. Only `loss` has a gradient.

    Attributes:
      loss: Training loss in nats.
      nll: −log p(label) in nats. The exponential of its mean is the perplexity.
      correct: Number of labels with the highest probability, ties included.
    """

    loss: jax.Array
    nll: jax.Array
    correct: jax.Array
    tokens: jax.Array
    others: dict[str, jax.Array] = struct.field(default_factory=dict)


class Formula(NamedTuple):
    """Loss as a function of float32 logits NV and targets.

    Targets are arrays BT…, the labels first. N = B T, or B T P if hidden states have
    another axis P.

    Attributes:
      sums_and_gradient: As `sums`, with the gradient of the loss by the logits.
    """

    sums: Callable[[jax.Array, Any], LossSums]
    sums_and_gradient: Callable[[jax.Array, Any], tuple[LossSums, jax.Array]]


class LossOptions(NamedTuple):
    """Static arguments of `loss_of_logits`."""

    formula: Formula
    dtype: DTypeLike = jnp.float32
    cap: float | None = None
    padding: int = 0


def loss_of_logits(
    hidden_BTD: jax.Array,
    output: tuple[jax.Array, jax.Array | None],
    targets: tuple[jax.Array, ...],
    settings: LossOptions,
) -> LossSums:
    """Returns the sums of a formula over logits = hidden tableᵀ + bias.

    Only `loss` has a gradient, with respect to `hidden_BTD` and `output`. Gradients of
    `nll` and `others` raise ValueError.

    Args:
      hidden_BTD: Decoder output, float32 BTD or BTPD.
      output: Output matrix VD and bias V or None. Gradients have their dtypes.
      settings: `dtype` is that of product operands; logits and everything after them
        are float32. Logits z become `cap` · tanh(z / `cap`), if there is a cap.
        `padding` is the label that does not count.
    """
    chosen = choose(
        functools.partial(reference, settings=settings),
        # `custom_vjp` requires nondifferentiable arguments to be passed by position.
        lambda *arrays: _restrict_gradients(tuned(*arrays, settings)),
    )
    return chosen(hidden_BTD, output, targets)


def reference(hidden_BTD, output, targets, settings: LossOptions) -> LossSums:
    """Computes the formula with all logits in memory at once."""
    hidden_ND = hidden_BTD.reshape(-1, hidden_BTD.shape[-1])
    logits_NV = logits_of(hidden_ND, output, settings.dtype, settings.cap)
    return settings.formula.sums(logits_NV, targets)


def logits_of(
    hidden_ND: jax.Array,
    output: tuple[jax.Array, jax.Array | None],
    dtype: DTypeLike,
    cap: float | None,
) -> jax.Array:
    """Returns float32 logits NV."""
    table_VD, bias_V = output
    logits_NV = jnp.einsum(
        'nd,vd->nv',
        hidden_ND.astype(dtype),
        table_VD.astype(dtype),
        preferred_element_type=jnp.float32,
    )
    return finish_logits(logits_NV, bias_V, cap)


def finish_logits(
    logits_NV: jax.Array, bias_V: jax.Array | None, cap: float | None
) -> jax.Array:
    """Returns m tanh((z + b) / m) for z = hidden tableᵀ, or z + b without a cap m.

    Source of the cap: Gemma Team (2024).

    Examples:
      >>> logits_NV = jnp.array([[-100.0, 0.0, 100.0]])
      >>> print(finish_logits(logits_NV, None, cap=30.0).round())
      [[-30.   0.  30.]]
    """
    if bias_V is not None:
        logits_NV += bias_V[None]
    if cap is not None:
        logits_NV = cap * jnp.tanh(logits_NV / cap)
    return logits_NV


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def tuned(hidden_BTD, output, targets, settings: LossOptions) -> LossSums:
    """Computes one chunk of logits at a time, which it never stores.

    Each chunk's loss and gradient are computed together, and the backward pass only
    scales the gradient. Devices that shard the rows process their own rows and sum
    once.
    """
    return _forward(hidden_BTD, output, targets, settings)[0]


def _forward(hidden_BTD, output, targets, settings):

    def in_chunks(size, vocab_multiple):
        return functools.partial(_sum_chunks, size, vocab_multiple, settings)

    elsewhere = in_chunks(CHUNK_ELSEWHERE, VOCAB_MULTIPLE_ELSEWHERE)
    on_cpu = in_chunks(CHUNK_ON_CPU, VOCAB_MULTIPLE_ON_CPU)
    forward = choose(elsewhere, on_cpu, only_on='cpu')
    table_VD, bias_V = output
    output = table_VD.astype(settings.dtype), bias_V  # before devices gather it
    if is_divided(len(hidden_BTD)):
        forward = _sum_over_devices(forward)
    sums, gradients = forward(hidden_BTD, output, targets)
    return sums, _cast_like((hidden_BTD, (table_VD, bias_V)), gradients)


def _cast_like(primals, gradients):
    return jax.tree.map(lambda x, g: g.astype(x.dtype), primals, gradients)


def _sum_over_devices(forward):
    """Sums the function's results for each device's own rows, only once per step."""
    axes = row_axes()

    def of_device(hidden_BTD, output, targets):
        sums, (hidden_gradient_BTD, output_gradient) = forward(
            hidden_BTD, output, targets
        )
        sums, output_gradient = jax.lax.psum((sums, output_gradient), axes)
        return sums, (hidden_gradient_BTD, output_gradient)

    rows = rows_spec()
    return by_device(
        of_device, (rows, REPLICATED, rows), (REPLICATED, (rows, REPLICATED))
    )


def _sum_chunks(chunk_size, vocab_multiple, settings, hidden_BTD, output, targets):
    """Applies `_forward` to `chunk_size` rows of logits at a time.

    The table is padded to a multiple of `vocab_multiple` rows.
    """
    batch, length, *features = hidden_BTD.shape
    table_VD, bias_V = output
    vocab_size = len(table_VD)
    padding = -vocab_size % vocab_multiple
    table_PD = jnp.pad(table_VD, ((0, padding), (0, 0)))

    def add_chunk(carry, chunk):
        new_sums, hidden_gradient_BCD, new_gradient = _chunk_sums_and_gradients(
            settings, table_PD, bias_V, vocab_size, *chunk
        )
        carry = jax.tree.map(jnp.add, carry, (new_sums, new_gradient))
        return carry, hidden_gradient_BCD

    # Splits T, so that the sharding of the batch axis remains.
    size = max(chunk_size // batch, 1)
    labels_BT, *others = targets
    chunks = (
        split_into_blocks(hidden_BTD, 1, size),
        (
            split_into_blocks(labels_BT, 1, size, settings.padding),
            # A non-finite gradient times zero is NaN, even for padding labels. Copies
            # of real targets are as safe as the targets themselves.
            *(split_into_blocks(x, 1, size, None) for x in others),
        ),
    )
    shapes = jax.eval_shape(
        lambda chunks: _chunk_sums_and_gradients(
            settings,
            table_PD,
            bias_V,
            vocab_size,
            *jax.tree.map(lambda x: x[0], chunks),
        ),
        chunks,
    )
    zero = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), shapes[::2])
    (sums, output_gradient), gradients_CBTD = jax.lax.scan(add_chunk, zero, chunks)
    gradients_BCTD = jnp.moveaxis(gradients_CBTD, 0, 1)
    hidden_gradient_BTD = gradients_BCTD.reshape(batch, -1, *features)
    table_gradient_PD, bias_gradient_V = output_gradient
    output_gradient = table_gradient_PD[:vocab_size], bias_gradient_V
    return sums, (hidden_gradient_BTD[:, :length], output_gradient)


def _chunk_sums_and_gradients(
    settings, table_PD, bias_V, vocab_size, hidden_BCD, targets
):
    """Returns a chunk's sums and gradients; `table_PD` is padded with zeros."""
    dtype = settings.dtype
    hidden_ND = hidden_BCD.reshape(-1, hidden_BCD.shape[-1]).astype(dtype)
    logits_NP = logits_of(hidden_ND, (table_PD, None), dtype, None)
    logits_NV = finish_logits(logits_NP[:, :vocab_size], bias_V, settings.cap)
    sums, gradient_NV = settings.formula.sums_and_gradient(logits_NV, targets)
    if settings.cap is not None:  # derivative of m tanh(z / m)
        gradient_NV *= 1 - jnp.square(logits_NV / settings.cap)
    bias_gradient_V = None if bias_V is None else sum_rows(gradient_NV)
    padding = len(table_PD) - vocab_size
    factor = FLOAT16_FACTOR if dtype == jnp.float16 else 1.0
    gradient_NP = (factor * gradient_NV).astype(dtype)
    gradient_NP = jnp.pad(gradient_NP, ((0, 0), (0, padding)))
    hidden_gradient_ND = matmul(gradient_NP, table_PD) / factor
    table_gradient_PD = weight_gradient(gradient_NP, hidden_ND) / factor
    hidden_gradient_BCD = hidden_gradient_ND.reshape(hidden_BCD.shape)
    return sums, hidden_gradient_BCD, (table_gradient_PD, bias_gradient_V)


def _backward(settings, gradients, cotangent):
    scaled = jax.tree.map(lambda gradient: gradient * cotangent.loss, gradients)
    hidden_gradient_BTD, output_gradient = _cast_like(gradients, scaled)
    return hidden_gradient_BTD, output_gradient, None


tuned.defvjp(_forward, _backward)


def _restrict_gradients(sums: LossSums) -> LossSums:
    """Makes gradients of sums that `_backward` ignores an error instead of 0."""
    others = {name: _without_gradient('others', x) for name, x in sums.others.items()}
    return sums.replace(nll=_without_gradient('nll', sums.nll), others=others)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _without_gradient(field: str, x: jax.Array) -> jax.Array:
    return x


def _raise_for_gradient(field, residuals, cotangent):
    raise ValueError(
        f'LossSums.{field}: only loss has a gradient. Differentiate loss, which equals '
        'nll for the loss CrossEntropy(label_smoothing=0.0).'
    )


_without_gradient.defvjp(lambda field, x: (x, None), _raise_for_gradient)


def cross_entropy(smoothing: float, padding: int) -> Formula:
    """Returns −Σ_v q(v) log p(v), with q = (1 − ε) · label + ε / V over all V tokens.

    Source: paper §5.4; Szegedy et al. 2016.

    Args:
      smoothing: ε, in [0, 1).
    """
    options = dict(smoothing=smoothing, padding=padding)
    return Formula(
        functools.partial(cross_entropy_sums, **options),
        functools.partial(_cross_entropy_sums_and_gradient, **options),
    )


def _is_label(labels_N, vocab_size):
    return jnp.arange(vocab_size, dtype=jnp.int32)[None] == labels_N[:, None]


def cross_entropy_sums(
    logits_NV: jax.Array,
    targets: tuple[jax.Array, ...],
    smoothing: float,
    padding: int,
) -> LossSums:
    """Returns −(1 − ε) log p(label) − ε / V Σ_v log p(v), and the other sums.

    Examples:
      >>> logits_NV = jnp.array([[0.0, 0.0, 9.0], [0.0, 9.0, 0.0]])
      >>> labels_N = jnp.array([2, 0])
      >>> sums = cross_entropy_sums(logits_NV, (labels_N,), smoothing=0.0, padding=0)

      >>> int(sums.tokens), int(sums.correct), round(float(sums.nll), 4)
      (1, 1, 0.0002)
    """
    statistics = softmax_statistics(logits_NV)
    return _cross_entropy_sums(logits_NV, statistics, targets, smoothing, padding)


def _cross_entropy_sums(logits_NV, statistics, targets, smoothing, padding):
    labels_N = targets[0].reshape(-1)
    log_z_N = statistics.highest_N + jnp.log(statistics.sum_exp_N)
    label_logit_N = jnp.take_along_axis(logits_NV, labels_N[:, None], 1)[:, 0]
    mean_logit_N = statistics.sum_N / logits_NV.shape[-1]
    loss_N = log_z_N - (1 - smoothing) * label_logit_N - smoothing * mean_logit_N
    nll_N = log_z_N - label_logit_N
    correct_N = (label_logit_N >= statistics.highest_N).astype(jnp.float32)
    counts_N = (labels_N != padding).astype(jnp.float32)
    return LossSums(
        # Not `counts_N @ loss_N`: accelerators round the operands of products.
        loss=jnp.sum(counts_N * loss_N),
        nll=jnp.sum(counts_N * nll_N),
        correct=jnp.sum(counts_N * correct_N),
        tokens=counts_N.sum(),
    )


def _cross_entropy_sums_and_gradient(logits_NV, targets, smoothing, padding):
    """Returns the sums and the gradient p − q, which is 0 for padding."""
    statistics = softmax_statistics(logits_NV)
    sums = _cross_entropy_sums(logits_NV, statistics, targets, smoothing, padding)
    labels_N = targets[0].reshape(-1)
    vocab_size = logits_NV.shape[1]
    is_label_NV = _is_label(labels_N, vocab_size)
    q_NV = jnp.where(is_label_NV, 1 - smoothing, 0.0) + smoothing / vocab_size
    counts_N = (labels_N != padding).astype(jnp.float32)
    exp_NV = jnp.exp(logits_NV - statistics.highest_N[:, None])
    p_NV = exp_NV / statistics.sum_exp_N[:, None]
    return sums, (p_NV - q_NV) * counts_N[:, None]
