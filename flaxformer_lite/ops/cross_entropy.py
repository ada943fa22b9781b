"""Label-smoothed cross-entropy (paper §5.4; Szegedy et al. 2016), in float32."""

import functools
from typing import NamedTuple

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
      loss: −Σ_v q(v) log p(v), in nats, with q = (1 − ε) · label + ε / V over the whole
        vocabulary.
      nll: −log p(label), in nats; the exponential of its mean is the perplexity.
      correct: 1 where no token is likelier than the label.
      tokens: 1.
    """

    loss: jax.Array
    nll: jax.Array
    correct: jax.Array
    tokens: jax.Array


class Settings(NamedTuple):
    """What of the loss is no array; as `label_smoothed_cross_entropy` has it."""

    smoothing: float = 0.0
    dtype: DTypeLike = jnp.float32
    cap: float | None = None
    padding: int = 0


def label_smoothed_cross_entropy(
    hidden_BTD: jax.Array,
    table_VD: jax.Array,
    labels_BT: jax.Array,
    smoothing: float = 0.0,
    dtype: DTypeLike = jnp.float32,
    *,
    bias_V: jax.Array | None = None,
    cap: float | None = None,
    padding: int = 0,
) -> LossSums:
    """The loss of logits = hidden tableᵀ + bias, summed over labels but padding.

    Only `loss` has a gradient; the other sums are metrics.

    Args:
      hidden_BTD: the decoder's output, float32.
      table_VD: the output matrix, float32.
      labels_BT: int32.
      smoothing: ε, in [0, 1).
      dtype: of the operands of the products; logits and all that follows are float32.
      bias_V: float32; None for none.
      cap: logits z become cap · tanh(z / cap); None leaves them.
      padding: the label that does not count.
    """
    settings = Settings(smoothing, dtype, cap, padding)
    chosen = choose(
        functools.partial(reference, settings=settings),
        # What is not to be differentiated by has to be given in its place.
        lambda *arrays: tuned(*arrays, settings),
    )
    return chosen(hidden_BTD, (table_VD, bias_V), labels_BT)


def reference(hidden_BTD, output, labels_BT, settings: Settings) -> LossSums:
    """The formula, with all logits in memory at once."""
    table_VD, bias_V = output
    hidden_ND = hidden_BTD.reshape(-1, hidden_BTD.shape[-1])
    logits_NV = _products(
        hidden_ND.astype(settings.dtype), table_VD.astype(settings.dtype)
    )
    logits_NV = finish_logits(logits_NV, bias_V, settings.cap)
    return _sums(logits_NV, labels_BT.reshape(-1), settings)


def _products(hidden_ND, table_VD):
    return jnp.einsum(
        'nd,vd->nv', hidden_ND, table_VD, preferred_element_type=jnp.float32
    )


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


def _is_label(labels_N, vocab_size):
    return jnp.arange(vocab_size, dtype=jnp.int32)[None] == labels_N[:, None]


def _exponentials(logits_NV):
    """→ exp(logits − their maximum), its sum over V, and the maximum, of each row."""
    highest_N = logits_NV.max(-1)
    exp_NV = jnp.exp(logits_NV - jax.lax.stop_gradient(highest_N)[:, None])
    return exp_NV, exp_NV.sum(-1), highest_N


def _sums(logits_NV, labels_N, settings: Settings) -> LossSums:
    """−(1 − ε) log p(label) − ε / V Σ_v log p(v), and what else is counted."""
    _, sum_N, highest_N = _exponentials(logits_NV)
    log_z_N = jax.lax.stop_gradient(highest_N) + jnp.log(sum_N)
    is_label_NV = _is_label(labels_N, logits_NV.shape[1])
    label_logit_N = jnp.sum(jnp.where(is_label_NV, logits_NV, 0.0), -1)
    mean_logit_N = logits_NV.mean(-1)
    smoothing = settings.smoothing
    loss_N = log_z_N - (1 - smoothing) * label_logit_N - smoothing * mean_logit_N
    correct_N = (label_logit_N >= highest_N).astype(jnp.float32)
    counts_N = (labels_N != settings.padding).astype(jnp.float32)
    return LossSums(
        # Not `counts_N @ loss_N`: of a product an accelerator rounds the operands.
        loss=jnp.sum(counts_N * loss_N),
        nll=jax.lax.stop_gradient(jnp.sum(counts_N * (log_z_N - label_logit_N))),
        correct=jnp.sum(counts_N * correct_N),
        tokens=counts_N.sum(),
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def tuned(hidden_BTD, output, labels_BT, settings: Settings) -> LossSums:
    """The same, with logits made a chunk of rows at a time and never stored.

    The gradient of a chunk is computed along with its loss, while its logits are there:
    the backward pass only scales it. Where no gradient is asked for, nothing reads it,
    and the compiler leaves it out.

    Devices that divide the rows go through chunks of their own rows, and sum once.
    """
    return _forward(hidden_BTD, output, labels_BT, settings)[0]


def _forward(hidden_BTD, output, labels_BT, settings):
    """→ sums, and the gradients of the loss by `hidden_BTD` and by `output`."""

    def in_chunks(size):
        return functools.partial(_in_chunks, size, settings)

    forward = choose(in_chunks(CHUNK_ELSEWHERE), in_chunks(CHUNK_ON_CPU), only_on='cpu')
    table_VD, bias_V = output
    output = table_VD.astype(settings.dtype), bias_V  # before devices gather it
    if is_divided(len(hidden_BTD)):
        forward = _summed_over_devices(forward)
    return forward(hidden_BTD, output, labels_BT)


def _summed_over_devices(forward):
    """The same function; each device runs it for its own rows.

    Without this XLA would sum the gradient by the table over devices in each turn of
    the loop that carries it.
    """
    axes = row_axes()

    def of_device(hidden_BTD, output, labels_BT):
        sums, (hidden_gradient_BTD, output_gradient) = forward(
            hidden_BTD, output, labels_BT
        )
        sums, output_gradient = jax.lax.psum((sums, output_gradient), axes)
        return sums, (hidden_gradient_BTD, output_gradient)

    rows = rows_spec()
    return by_device(of_device, (rows, WHOLE, rows), (WHOLE, (rows, WHOLE)))


def _in_chunks(chunk_size, settings, hidden_BTD, output, labels_BT):
    """What `_forward` returns, of so many rows of logits at a time."""
    batch, length, _ = hidden_BTD.shape

    def add_chunk(carry, chunk):
        new_sums, hidden_gradient_BCD, new_gradient = _of_chunk(
            settings, output, *chunk
        )
        carry = jax.tree.map(jnp.add, carry, (new_sums, new_gradient))
        return carry, hidden_gradient_BCD

    # Along T, so that a batch that is divided among devices stays so.
    size = max(chunk_size // batch, 1)
    chunks = (
        split_into_blocks(hidden_BTD, 1, size),
        split_into_blocks(labels_BT, 1, size, settings.padding),
    )
    zero_gradient = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), output)
    zero = LossSums(*jnp.zeros(4)), zero_gradient
    (sums, output_gradient), gradients_CBTD = jax.lax.scan(add_chunk, zero, chunks)
    gradients_BCTD = jnp.moveaxis(gradients_CBTD, 0, 1)
    hidden_gradient_BTD = gradients_BCTD.reshape(batch, -1, hidden_BTD.shape[2])
    return sums, (hidden_gradient_BTD[:, :length], output_gradient)


def _of_chunk(settings, output, hidden_BCD, labels_BC):
    """→ sums, and the gradients by the hidden states and by `output`."""
    table_VD, bias_V = output
    dtype = settings.dtype
    hidden_ND = hidden_BCD.reshape(-1, hidden_BCD.shape[-1]).astype(dtype)
    labels_N = labels_BC.reshape(-1)
    logits_NV = _products(hidden_ND, table_VD)
    logits_NV = finish_logits(logits_NV, bias_V, settings.cap)
    sums = _sums(logits_NV, labels_N, settings)
    gradient_NV = _logits_gradient(logits_NV, labels_N, settings)
    if settings.cap is not None:  # m tanh(z / m) grows as 1 − tanh²(z / m)
        gradient_NV *= 1 - jnp.square(logits_NV / settings.cap)
    bias_gradient_V = None if bias_V is None else sum_rows(gradient_NV)
    gradient_NV = gradient_NV.astype(dtype)
    hidden_gradient_ND = matmul(gradient_NV, table_VD)
    table_gradient_VD = weight_gradient(gradient_NV, hidden_ND)
    hidden_gradient_BCD = hidden_gradient_ND.reshape(hidden_BCD.shape)
    return sums, hidden_gradient_BCD, (table_gradient_VD, bias_gradient_V)


def _logits_gradient(logits_NV, labels_N, settings):
    """p − q: the gradient of each row's loss by its logits; 0 for padding."""
    # `_sums` has these as well; the compiler computes them once.
    exp_NV, sum_N, _ = _exponentials(logits_NV)
    vocab_size = logits_NV.shape[1]
    smoothing = settings.smoothing
    is_label_NV = _is_label(labels_N, vocab_size)
    target_NV = jnp.where(is_label_NV, 1 - smoothing, 0.0) + smoothing / vocab_size
    counts_N1 = (labels_N != settings.padding).astype(jnp.float32)[:, None]
    return (exp_NV / sum_N[:, None] - target_NV) * counts_N1


def _backward(settings, gradients, cotangent):
    hidden_gradient_BTD, output_gradient = jax.tree.map(
        lambda gradient: gradient * cotangent.loss, gradients
    )
    return hidden_gradient_BTD, output_gradient, None


tuned.defvjp(_forward, _backward)
