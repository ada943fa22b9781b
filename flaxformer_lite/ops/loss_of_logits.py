"""A loss of logits and its gradient, in float32, without ever holding all logits.

The cross-entropy's is here in closed form (paper §5.4; Szegedy et al. 2016).
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax.typing import DTypeLike

from flaxformer_lite.ops.choose import choose
from flaxformer_lite.ops.matmul import matmul, weight_gradient
from flaxformer_lite.ops.rows import sum_rows
from flaxformer_lite.shapes import split_into_blocks
from flaxformer_lite.sharding import (
    WHOLE,
    by_device,
    is_divided,
    row_axes,
    rows_spec,
)

# Rows of logits that a device holds at a time. On CPU: enough to keep the matrix units
# busy, few enough for the caches.
CHUNK_ON_CPU = 512
# Elsewhere a chunk's products, 6 N V D operations, have to hide that the float32 V × D
# gradient is read and written, 8 V D bytes. Accelerators make 200 to 300 bfloat16
# operations in the time of a byte, so that N = 512 rows would wait for memory almost as
# long as they compute; N = 4096 wait a tenth of it. Their logits take 0.6 GB at 37,000
# words.
CHUNK_ELSEWHERE = 4096


class LossSums(struct.PyTreeNode):
    """Sums over the labels that count, float32 scalars.

    Attributes:
      loss: what is trained by, in nats.
      nll: −log p(label), in nats; the exponential of its mean is the perplexity.
      correct: 1 where no token is likelier than the label.
      tokens: 1.
      others: what else a loss reports, by name.
    """

    loss: jax.Array
    nll: jax.Array
    correct: jax.Array
    tokens: jax.Array
    others: dict[str, jax.Array] = struct.field(default_factory=dict)


class Formula(NamedTuple):
    """A loss as a function of logits, float32 NV, and of targets.

    Targets are a tuple of arrays that begin with the axes BT, of which the first has
    the labels. There are N = B T rows of logits; or N = B T P, if the hidden states
    have one more axis P.

    Attributes:
      sums: (logits, targets) → sums over the labels that count.
      gradient: (logits, targets) → the gradient of the sum of the loss by the logits.
    """

    sums: Callable[[jax.Array, Any], LossSums]
    gradient: Callable[[jax.Array, Any], jax.Array]


class Settings(NamedTuple):
    """What of the loss is no array; as `loss_of_logits` has it."""

    formula: Formula
    dtype: DTypeLike = jnp.float32
    cap: float | None = None
    padding: int = 0


def loss_of_logits(
    hidden_BTD: jax.Array,
    output: tuple[jax.Array, jax.Array | None],
    targets: tuple[jax.Array, ...],
    settings: Settings,
) -> LossSums:
    """The sums of a formula over logits = hidden tableᵀ + bias.

    Only `loss` has a gradient; the other sums are metrics.

    Args:
      hidden_BTD: the decoder's output, float32; or BTPD.
      output: the output matrix, VD, and the bias, V or None for none. Their gradients
        have their dtypes.
      targets: as `Formula`; they have no gradient.
      settings: of these, `formula` says what the loss is, and `dtype` of what the
        operands of the products are: logits and all that follows are float32. Logits z
        become `cap` · tanh(z / `cap`); None leaves them. `padding` is the label that
        does not count.
    """
    chosen = choose(
        functools.partial(reference, settings=settings),
        # What is not to be differentiated by has to be given in its place.
        lambda *arrays: tuned(*arrays, settings),
    )
    return chosen(hidden_BTD, output, targets)


def reference(hidden_BTD, output, targets, settings: Settings) -> LossSums:
    """The formula, with all logits in memory at once."""
    hidden_ND = hidden_BTD.reshape(-1, hidden_BTD.shape[-1])
    logits_NV = logits_of(hidden_ND, output, settings.dtype, settings.cap)
    return settings.formula.sums(logits_NV, targets)


def logits_of(
    hidden_ND: jax.Array,
    output: tuple[jax.Array, jax.Array | None],
    dtype: DTypeLike,
    cap: float | None,
) -> jax.Array:
    """The logits of these rows, float32 NV; arguments as `loss_of_logits` has them."""
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
    """m tanh((z + b) / m), of z = hidden tableᵀ; z + b without a cap m.

    Source: the cap is of the Gemma Team (2024).

    Args:
      logits_NV: z, float32.
      bias_V: b, float32; None for none.
      cap: m, above 0; None for none.
    """
    if bias_V is not None:
        logits_NV += bias_V[None]
    if cap is not None:
        logits_NV = cap * jnp.tanh(logits_NV / cap)
    return logits_NV


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def tuned(hidden_BTD, output, targets, settings: Settings) -> LossSums:
    """The same, with logits made a chunk of rows at a time and never stored.

    The gradient of a chunk is computed along with its loss, while its logits are there:
    the backward pass only scales it. Where no gradient is asked for, nothing reads it,
    and the compiler leaves it out.

    Devices that divide the rows go through chunks of their own rows, and sum once.
    """
    return _forward(hidden_BTD, output, targets, settings)[0]


def _forward(hidden_BTD, output, targets, settings):
    """→ sums, and the gradients of the loss by `hidden_BTD` and by `output`."""

    def in_chunks(size):
        return functools.partial(_in_chunks, size, settings)

    forward = choose(in_chunks(CHUNK_ELSEWHERE), in_chunks(CHUNK_ON_CPU), only_on='cpu')
    table_VD, bias_V = output
    output = table_VD.astype(settings.dtype), bias_V  # before devices gather it
    if is_divided(len(hidden_BTD)):
        forward = _summed_over_devices(forward)
    sums, gradients = forward(hidden_BTD, output, targets)
    return sums, _as_dtypes_of((hidden_BTD, (table_VD, bias_V)), gradients)


def _as_dtypes_of(primals, gradients):
    return jax.tree.map(lambda x, g: g.astype(x.dtype), primals, gradients)


def _summed_over_devices(forward):
    """The same function; each device runs it for its own rows.

    Without this XLA would sum the gradient by the table over devices in each turn of
    the loop that carries it.
    """
    axes = row_axes()

    def of_device(hidden_BTD, output, targets):
        sums, (hidden_gradient_BTD, output_gradient) = forward(
            hidden_BTD, output, targets
        )
        sums, output_gradient = jax.lax.psum((sums, output_gradient), axes)
        return sums, (hidden_gradient_BTD, output_gradient)

    rows = rows_spec()
    return by_device(of_device, (rows, WHOLE, rows), (WHOLE, (rows, WHOLE)))


def _in_chunks(chunk_size, settings, hidden_BTD, output, targets):
    """What `_forward` returns, of so many rows of logits at a time."""
    batch, length, *features = hidden_BTD.shape

    def add_chunk(carry, chunk):
        new_sums, hidden_gradient_BCD, new_gradient = _of_chunk(
            settings, output, *chunk
        )
        carry = jax.tree.map(jnp.add, carry, (new_sums, new_gradient))
        return carry, hidden_gradient_BCD

    # Along T, so that a batch that is divided among devices stays so.
    size = max(chunk_size // batch, 1)
    labels_BT, *others = targets
    chunks = (
        split_into_blocks(hidden_BTD, 1, size),
        (
            split_into_blocks(labels_BT, 1, size, settings.padding),
            # Zero times a gradient that is not finite is NaN, even where the label is
            # padding. Copies of real targets are as safe as the targets themselves.
            *(split_into_blocks(x, 1, size, None) for x in others),
        ),
    )
    shapes = jax.eval_shape(
        lambda chunks: _of_chunk(
            settings, output, *jax.tree.map(lambda x: x[0], chunks)
        ),
        chunks,
    )
    zero = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), shapes[::2])
    (sums, output_gradient), gradients_CBTD = jax.lax.scan(add_chunk, zero, chunks)
    gradients_BCTD = jnp.moveaxis(gradients_CBTD, 0, 1)
    hidden_gradient_BTD = gradients_BCTD.reshape(batch, -1, *features)
    return sums, (hidden_gradient_BTD[:, :length], output_gradient)


def _of_chunk(settings, output, hidden_BCD, targets):
    """→ sums, and the gradients by the hidden states and by `output`."""
    table_VD, bias_V = output
    dtype = settings.dtype
    hidden_ND = hidden_BCD.reshape(-1, hidden_BCD.shape[-1]).astype(dtype)
    logits_NV = logits_of(hidden_ND, output, dtype, settings.cap)
    sums = settings.formula.sums(logits_NV, targets)
    gradient_NV = settings.formula.gradient(logits_NV, targets)
    if settings.cap is not None:  # m tanh(z / m) grows as 1 − tanh²(z / m)
        gradient_NV *= 1 - jnp.square(logits_NV / settings.cap)
    bias_gradient_V = None if bias_V is None else sum_rows(gradient_NV)
    gradient_NV = gradient_NV.astype(dtype)
    hidden_gradient_ND = matmul(gradient_NV, table_VD)
    table_gradient_VD = weight_gradient(gradient_NV, hidden_ND)
    hidden_gradient_BCD = hidden_gradient_ND.reshape(hidden_BCD.shape)
    return sums, hidden_gradient_BCD, (table_gradient_VD, bias_gradient_V)


def _backward(settings, gradients, cotangent):
    scaled = jax.tree.map(lambda gradient: gradient * cotangent.loss, gradients)
    hidden_gradient_BTD, output_gradient = _as_dtypes_of(gradients, scaled)
    return hidden_gradient_BTD, output_gradient, None


tuned.defvjp(_forward, _backward)


def cross_entropy(smoothing: float, padding: int) -> Formula:
    """−Σ_v q(v) log p(v), with q = (1 − ε) · label + ε / V over the whole vocabulary.

    Args:
      smoothing: ε, in [0, 1).
      padding: the label that does not count.
    """
    return Formula(
        functools.partial(cross_entropy_sums, smoothing=smoothing, padding=padding),
        functools.partial(_logits_gradient, smoothing=smoothing, padding=padding),
    )


def _is_label(labels_N, vocab_size):
    return jnp.arange(vocab_size, dtype=jnp.int32)[None] == labels_N[:, None]


def _exponentials(logits_NV):
    """→ exp(logits − their maximum), its sum over V, and the maximum, of each row."""
    highest_N = logits_NV.max(-1)
    exp_NV = jnp.exp(logits_NV - jax.lax.stop_gradient(highest_N)[:, None])
    return exp_NV, exp_NV.sum(-1), highest_N


def cross_entropy_sums(
    logits_NV: jax.Array,
    targets: tuple[jax.Array, ...],
    smoothing: float,
    padding: int,
) -> LossSums:
    """−(1 − ε) log p(label) − ε / V Σ_v log p(v), and what else is counted.

    Args:
      logits_NV: float32.
      targets: the labels, of which there are N; what follows them is not read.
      smoothing, padding: as `cross_entropy`.
    """
    labels_N = targets[0].reshape(-1)
    _, sum_N, highest_N = _exponentials(logits_NV)
    log_z_N = jax.lax.stop_gradient(highest_N) + jnp.log(sum_N)
    label_logit_N = jnp.take_along_axis(logits_NV, labels_N[:, None], 1)[:, 0]
    mean_logit_N = logits_NV.mean(-1)
    loss_N = log_z_N - (1 - smoothing) * label_logit_N - smoothing * mean_logit_N
    nll_N = log_z_N - label_logit_N
    correct_N = (label_logit_N >= highest_N).astype(jnp.float32)
    counts_N = (labels_N != padding).astype(jnp.float32)
    return LossSums(
        # Not `counts_N @ loss_N`: of a product an accelerator rounds the operands.
        loss=jnp.sum(counts_N * loss_N),
        nll=jax.lax.stop_gradient(jnp.sum(counts_N * nll_N)),
        correct=jnp.sum(counts_N * correct_N),
        tokens=counts_N.sum(),
    )


def _logits_gradient(logits_NV, targets, smoothing, padding):
    """p − q: the gradient of each row's loss by its logits; 0 for padding."""
    labels_N = targets[0].reshape(-1)
    # `cross_entropy_sums` has these as well; the compiler computes them once.
    exp_NV, sum_N, _ = _exponentials(logits_NV)
    vocab_size = logits_NV.shape[1]
    is_label_NV = _is_label(labels_N, vocab_size)
    q_NV = jnp.where(is_label_NV, 1 - smoothing, 0.0) + smoothing / vocab_size
    counts_N = (labels_N != padding).astype(jnp.float32)
    p_NV = exp_NV / sum_N[:, None]
    return (p_NV - q_NV) * counts_N[:, None]
