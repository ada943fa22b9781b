"""Label-smoothed cross-entropy (paper §5.4; Szegedy et al. 2016), in float32."""

import functools

import jax
import jax.numpy as jnp
from flax import struct
from jax.typing import DTypeLike

from flaxformer_lite.ops.choose import choose
from flaxformer_lite.ops.matmul import matmul, weight_gradient
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


def label_smoothed_cross_entropy(
    hidden_BTD: jax.Array,
    table_VD: jax.Array,
    labels_BT: jax.Array,
    smoothing: float = 0.0,
    dtype: DTypeLike = jnp.float32,
) -> LossSums:
    """The loss of logits = hidden tableᵀ, summed over the labels that are not padding.

    Only `loss` has a gradient; the other sums are metrics.

    Args:
      hidden_BTD: the decoder's output, float32.
      table_VD: the output matrix, float32.
      labels_BT: int32; 0 is padding and does not count.
      smoothing: ε, in [0, 1).
      dtype: of the operands of the products; logits and all that follows are float32.
    """
    chosen = choose(
        lambda *arrays: reference(*arrays, smoothing=smoothing, dtype=dtype),
        lambda *arrays: tuned(*arrays, smoothing=smoothing, dtype=dtype),
    )
    return chosen(hidden_BTD, table_VD, labels_BT)


def reference(hidden_BTD, table_VD, labels_BT, smoothing, dtype) -> LossSums:
    """The formula, with all logits in memory at once."""
    hidden_ND = hidden_BTD.reshape(-1, hidden_BTD.shape[-1])
    logits_NV = _logits(hidden_ND.astype(dtype), table_VD.astype(dtype))
    return _sums(logits_NV, labels_BT.reshape(-1), smoothing)


def _logits(hidden_ND, table_VD):
    return jnp.einsum(
        'nd,vd->nv', hidden_ND, table_VD, preferred_element_type=jnp.float32
    )


def _is_label(labels_N, vocab_size):
    return jnp.arange(vocab_size, dtype=jnp.int32)[None] == labels_N[:, None]


def _exponentials(logits_NV):
    """→ exp(logits − their maximum), its sum over V, and the maximum, of each row."""
    highest_N = logits_NV.max(-1)
    exp_NV = jnp.exp(logits_NV - jax.lax.stop_gradient(highest_N)[:, None])
    return exp_NV, exp_NV.sum(-1), highest_N


def _sums(logits_NV, labels_N, smoothing) -> LossSums:
    """−(1 − ε) log p(label) − ε / V Σ_v log p(v), and what else is counted."""
    _, sum_N, highest_N = _exponentials(logits_NV)
    log_z_N = jax.lax.stop_gradient(highest_N) + jnp.log(sum_N)
    is_label_NV = _is_label(labels_N, logits_NV.shape[1])
    label_logit_N = jnp.sum(jnp.where(is_label_NV, logits_NV, 0.0), -1)
    mean_logit_N = logits_NV.mean(-1)
    loss_N = log_z_N - (1 - smoothing) * label_logit_N - smoothing * mean_logit_N
    correct_N = (label_logit_N >= highest_N).astype(jnp.float32)
    counts_N = (labels_N != 0).astype(jnp.float32)
    return LossSums(
        # Not `counts_N @ loss_N`: of a product an accelerator rounds the operands.
        loss=jnp.sum(counts_N * loss_N),
        nll=jax.lax.stop_gradient(jnp.sum(counts_N * (log_z_N - label_logit_N))),
        correct=jnp.sum(counts_N * correct_N),
        tokens=counts_N.sum(),
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def tuned(hidden_BTD, table_VD, labels_BT, smoothing, dtype) -> LossSums:
    """The same, with logits made a chunk of rows at a time and never stored.

    The gradient of a chunk is computed along with its loss, while its logits are there:
    the backward pass only scales it. Where no gradient is asked for, nothing reads it,
    and the compiler leaves it out.

    Devices that divide the rows go through chunks of their own rows, and sum once.
    """
    return _forward(hidden_BTD, table_VD, labels_BT, smoothing, dtype)[0]


def _forward(hidden_BTD, table_VD, labels_BT, smoothing, dtype):
    """→ sums, and the gradients of the loss by `hidden_BTD` and by `table_VD`."""

    def in_chunks(size):
        return functools.partial(_in_chunks, size, smoothing, dtype)

    forward = choose(in_chunks(CHUNK_ELSEWHERE), in_chunks(CHUNK_ON_CPU), only_on='cpu')
    table_VD = table_VD.astype(dtype)  # before devices gather it
    if is_divided(len(hidden_BTD)):
        forward = _summed_over_devices(forward)
    return forward(hidden_BTD, table_VD, labels_BT)


def _summed_over_devices(forward):
    """The same function; each device runs it for its own rows.

    Without this XLA would sum the gradient by the table over devices in each turn of
    the loop that carries it.
    """
    axes = row_axes()

    def of_device(hidden_BTD, table_VD, labels_BT):
        sums, gradients = forward(hidden_BTD, table_VD, labels_BT)
        hidden_gradient_BTD, table_gradient_VD = gradients
        sums, table_gradient_VD = jax.lax.psum((sums, table_gradient_VD), axes)
        return sums, (hidden_gradient_BTD, table_gradient_VD)

    rows = rows_spec()
    return by_device(of_device, (rows, WHOLE, rows), (WHOLE, (rows, WHOLE)))


def _in_chunks(chunk_size, smoothing, dtype, hidden_BTD, table_VD, labels_BT):
    """What `_forward` returns, of so many rows of logits at a time."""
    batch, length, d_model = hidden_BTD.shape

    def add_chunk(carry, chunk):
        sums, table_gradient_VD = carry
        hidden_BCD, labels_BC = chunk
        hidden_ND = hidden_BCD.reshape(-1, d_model).astype(dtype)
        labels_N = labels_BC.reshape(-1)
        logits_NV = _logits(hidden_ND, table_VD)
        new_sums = _sums(logits_NV, labels_N, smoothing)
        gradient_NV = _logits_gradient(logits_NV, labels_N, smoothing).astype(dtype)
        hidden_gradient_ND = matmul(gradient_NV, table_VD)
        table_gradient_VD += weight_gradient(gradient_NV, hidden_ND)
        sums = jax.tree.map(jnp.add, sums, new_sums)
        return (sums, table_gradient_VD), hidden_gradient_ND.reshape(hidden_BCD.shape)

    # Along T, so that a batch that is divided among devices stays so.
    size = max(chunk_size // batch, 1)
    chunks = (
        split_into_blocks(hidden_BTD, 1, size),
        split_into_blocks(labels_BT, 1, size),
    )
    zero = LossSums(*jnp.zeros(4)), jnp.zeros(table_VD.shape, jnp.float32)
    (sums, table_gradient_VD), gradients_CBTD = jax.lax.scan(add_chunk, zero, chunks)
    hidden_gradient_BTD = jnp.moveaxis(gradients_CBTD, 0, 1).reshape(batch, -1, d_model)
    return sums, (hidden_gradient_BTD[:, :length], table_gradient_VD)


def _logits_gradient(logits_NV, labels_N, smoothing):
    """p − q: the gradient of each row's loss by its logits; 0 for padding."""
    # `_sums` has these as well; the compiler computes them once.
    exp_NV, sum_N, _ = _exponentials(logits_NV)
    vocab_size = logits_NV.shape[1]
    is_label_NV = _is_label(labels_N, vocab_size)
    target_NV = jnp.where(is_label_NV, 1 - smoothing, 0.0) + smoothing / vocab_size
    counts_N1 = (labels_N != 0).astype(jnp.float32)[:, None]
    return (exp_NV / sum_N[:, None] - target_NV) * counts_N1


def _backward(smoothing, dtype, gradients, cotangent):
    hidden_gradient_BTD, table_gradient_VD = gradients
    scale = cotangent.loss
    return hidden_gradient_BTD * scale, table_gradient_VD * scale, None


tuned.defvjp(_forward, _backward)
