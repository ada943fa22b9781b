"""Attention rollout (Abnar and Zuidema 2020)."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from flaxformer_explain.explanations.passes import decoder_of, prepare
from flaxformer_lite.introspection import record
from flaxformer_lite.models.base import Model
from flaxformer_lite.training.batch import Batch


def attention_rollout(
    model: Model, variables: Any, batch: Batch
) -> dict[str, jax.Array]:
    """Returns how much of each token reaches each position through attention.

    With the mean weights A_l of the heads of layer l, the rollout is R_l = (½ A_l + ½
    I) R_{l−1}, and R_0 = I (§3). In a decoder, cross-attention C_l adds the source, Q ←
    ½ Q + ½ C_l R_encoder, and halves the shares of the target tokens. Over both, shares
    sum to 1.

    Returns:
      Shares after each layer, float32 LBTS, of token s in position t, by the names of
      `Record.weights`. A decoder-only model has 'decoder', over source and target.
      Positions of padding have no meaning.

    Raises:
      ValueError: As `record`, or the model has no layers.
    """
    model, variables = prepare(model, variables)
    weights = record(model, variables, batch, names=()).weights
    means = {name: [x.mean(1) for x in layers] for name, layers in weights.items()}
    found = {}
    if 'encoder' in means:
        found['encoder'] = _self_attention_rollout(means['encoder'])
    if 'decoder cross' not in means:
        return {**found, 'decoder': _self_attention_rollout(means['decoder'])}
    decoder, cross = _decoder_rollout(
        means['decoder'],
        means['decoder cross'],
        found['encoder'][-1],
        decoder_of(model).block.merged,
    )
    return {**found, 'decoder': decoder, 'decoder cross': cross}


def _self_attention_rollout(layers: Sequence[jax.Array]) -> jax.Array:
    share_BTS = _identity(layers[0])
    shares = []
    for mean_BTS in layers:
        share_BTS = 0.5 * (share_BTS + mean_BTS @ share_BTS)
        shares.append(share_BTS)
    return jnp.stack(shares)


def _decoder_rollout(self_attention, cross_attention, encoded_BSS, merged):
    own_BTT = _identity(self_attention[0])
    source_BTS = jnp.zeros_like(cross_attention[0])
    shares = []
    for self_BTT, cross_BTS in zip(self_attention, cross_attention, strict=True):
        read_BTS = cross_BTS @ encoded_BSS
        own_BTT = 0.5 * (own_BTT + self_BTT @ own_BTT)
        source_BTS = 0.5 * (source_BTS + self_BTT @ source_BTS)
        if merged:  # one attention reads both source and target
            source_BTS += 0.5 * read_BTS
        else:
            own_BTT *= 0.5
            source_BTS = 0.5 * (source_BTS + read_BTS)
        shares.append((own_BTT, source_BTS))
    return tuple(jnp.stack(x) for x in zip(*shares, strict=True))


def _identity(mean_BTS):
    return jnp.broadcast_to(jnp.eye(mean_BTS.shape[-1])[None], mean_BTS.shape)
