"""Softmax attention in one cuDNN kernel on NVIDIA GPUs (Dao et al. 2022)."""

import functools

import jax
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from flaxformer_lite.ops.choose import choose


def reference(
    q_BTHK: jax.Array,
    key_BSHK: jax.Array,
    value_BSHK: jax.Array,
    bias_BHTS: jax.Array | None,
    mask_BHTS: jax.Array,
    scale: float,
) -> jax.Array:
    """Returns softmax(Q Kᵀ scale + bias) V over the keys that the mask shows, BTHK."""
    return jax.nn.dot_product_attention(
        q_BTHK, key_BSHK, value_BSHK, bias_BHTS, mask_BHTS, scale=scale
    )


def tuned(q_BTHK, key_BSHK, value_BSHK, bias_BHTS, mask_BHTS, scale):
    """Calls cuDNN. Lowering it for other platforms is an error."""
    arrays = q_BTHK, key_BSHK, value_BSHK, bias_BHTS, mask_BHTS
    return jax.lax.platform_dependent(
        *arrays,
        cuda=functools.partial(_cudnn, scale=scale),
        default=functools.partial(_reference_without_lowering, scale=scale),
    )


def _cudnn(*arrays, scale):
    try:
        return jax.nn.dot_product_attention(
            *arrays, scale=scale, implementation='cudnn'
        )
    except RuntimeError as error:
        # JAX looks for cuDNN and a GPU while tracing, but plans are made without them.
        # Shapes and FLOPs are the same.
        return _reference_without_lowering(*arrays, scale=scale, reason=str(error))


def _reference_without_lowering(
    q_BTHK, key_BSHK, value_BSHK, bias_BHTS, mask_BHTS, scale, reason=''
):
    """Applies the reference, which can be traced, but not lowered."""
    attend = jax.checkpoint(functools.partial(reference, scale=scale))
    mask_BHTS = _gpu_only.bind(mask_BHTS, reason=reason)
    return attend(q_BTHK, key_BSHK, value_BSHK, bias_BHTS, mask_BHTS)


def _refuse(*_, reason):
    problem = 'runs on NVIDIA GPUs with cuDNN only.'
    if reason:
        problem = f'does not run on this GPU: {reason}'
    raise ValueError(f'attention: Flash {problem} Choose Blockwise.')


# Identity of a mask, which needs no derivative.
_gpu_only = Primitive('gpu_only')
_gpu_only.def_abstract_eval(lambda mask, reason: mask)
_gpu_only.def_impl(_refuse)
batching.defvectorized(_gpu_only)
mlir.register_lowering(_gpu_only, _refuse)


def fused_attention(
    q_BTHK: jax.Array,
    key_BSHK: jax.Array,
    value_BSHK: jax.Array,
    bias_BHTS: jax.Array | None,
    mask_BHTS: jax.Array,
    scale: float,
) -> jax.Array:
    """Computes `reference` with cuDNN.

    Raises:
      ValueError: This GPU's cuDNN does not support the shapes, or the program is
        lowered for another platform.
    """
    attend = choose(
        functools.partial(reference, scale=scale), functools.partial(tuned, scale=scale)
    )
    return attend(q_BTHK, key_BSHK, value_BSHK, bias_BHTS, mask_BHTS)
