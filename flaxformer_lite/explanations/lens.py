"""The logit lens (nostalgebraist 2020, "interpreting GPT: the logit lens")."""

from typing import Any

import jax
import jax.numpy as jnp

from flaxformer_lite.explanations.passes import activations, decoder_of, prepare
from flaxformer_lite.models.base import Model
from flaxformer_lite.training.batch import Batch


def logit_lens(model: Model, variables: Any, batch: Batch) -> jax.Array:
    """Returns the logits that the decoder's stream would give after each layer.

    The stream x_l after l layers passes through the stack's final norm, if there is
    one, and the output embedding: logits_l = W norm(x_l) + b.

    Args:
      model: the model.
      variables: variables for `model.apply`: {'params': …}.
      batch: the arrays of `training.batch.BATCH_ARRAYS`.

    Returns:
      float32 LBTV, with one entry more than the decoder has layers. Entry 0 is the
      stream before the first layer. The last entry is the logits of the model.

    Raises:
      ValueError: the model has no layers, or `variables` lacks the 'params' level.
    """
    model, variables = prepare(model, variables)
    layers = range(decoder_of(model).num_layers)
    names = ['decoder/layer_0/resid_pre']
    names += [f'decoder/layer_{i}/resid_post' for i in layers]
    _, found = activations(model, variables, batch, names)
    # A decoder-only model also reads the source.
    length = batch['inputs'].shape[1]
    stream_LBTD = jnp.stack([found[name].value[:, -length:] for name in names])
    stream_NTD = stream_LBTD.reshape(-1, *stream_LBTD.shape[2:])
    logits_NTV: Any = model.apply(variables, stream_NTD, method=_logits_of)
    return logits_NTV.reshape(*stream_LBTD.shape[:3], -1)


def _logits_of(model, stream_BTD):
    return model.unembed(model.decoder.final.final_norm(stream_BTD))
