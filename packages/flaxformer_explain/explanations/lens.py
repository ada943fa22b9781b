"""The logit lens (nostalgebraist 2020) and the tuned lens (Belrose et al. 2023)."""

from collections.abc import Iterable
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import optax

from flaxformer_explain.explanations.passes import activations, decoder_of, prepare
from flaxformer_lite.models.base import Model
from flaxformer_lite.training.batch import Batch


class Translators(NamedTuple):
    """An affine map of the stream before each decoder layer, float32.

    x_l becomes x_l + x_l W_l + b_l. The stream after the last layer has no map.

    Attributes:
      weights_LDD: W of each layer.
      bias_LD: b of each layer.
    """

    weights_LDD: jax.Array
    bias_LD: jax.Array

    @classmethod
    def identity(cls, model: Model) -> Self:
        """Returns zeros, with which the tuned lens is the logit lens."""
        decoder = decoder_of(model)
        size = decoder.d_model * decoder.block.residual.num_streams
        weights_LDD = jnp.zeros((decoder.num_layers, size, size))
        return cls(weights_LDD, jnp.zeros((decoder.num_layers, size)))

    def translate(self, stream_LBTD: jax.Array) -> jax.Array:
        """Maps the streams before the layers, and appends the last one unchanged."""
        x_LBTD = stream_LBTD[:-1].astype(jnp.float32)
        change_LBTD = jnp.einsum('lbtd,lde->lbte', x_LBTD, self.weights_LDD)
        y_LBTD = x_LBTD + change_LBTD + self.bias_LD[:, None, None]
        y_LBTD = y_LBTD.astype(stream_LBTD.dtype)
        return jnp.concatenate([y_LBTD, stream_LBTD[-1:]])


def logit_lens(
    model: Model,
    variables: Any,
    batch: Batch,
    translators: Translators | None = None,
) -> jax.Array:
    """Returns the logits that the decoder's stream would give after each layer.

    logits_l = W norm(x_l) + b, with the stream x_l after l layers and the stack's final
    norm, if there is one.

    Args:
      translators: Result of `fit_tuned_lens`, for a tuned lens.

    Returns:
      float32 LBTV. Entry 0 is the stream before the first layer, and the last entry the
      logits of the model.

    Raises:
      ValueError: The model has no layers, or `variables` lacks the 'params' level.
    """
    model, variables = prepare(model, variables)
    stream_LBTD = _streams(model, variables, batch)
    return _read(model, variables, stream_LBTD, translators)


def fit_tuned_lens(
    model: Model,
    variables: Any,
    batches: Iterable[Batch],
    optimizer: optax.GradientTransformation | None = None,
) -> Translators:
    """Trains the translators of a tuned lens, from the identity.

    It minimizes Σ_l KL(p ‖ p_l), where p is the distribution of the model and p_l that
    of the lens after l layers. It compiles a step for each shape of a batch.

    Args:
      batches: One batch per step.
      optimizer: Defaults to `optax.adam(1e-3)`.

    Raises:
      ValueError: As `logit_lens`.
    """
    model, variables = prepare(model, variables)
    optimizer = optimizer or optax.adam(1e-3)

    @jax.jit
    def step(variables, batch, translators, state):
        stream_LBTD = _streams(model, variables, batch)

        def loss(translators):
            lens_LBTV = _read(model, variables, stream_LBTD, translators)
            return lens_kl(lens_LBTV, batch).sum()

        gradients = jax.grad(loss)(translators)
        updates, state = optimizer.update(gradients, state, translators)
        return optax.apply_updates(translators, updates), state

    translators: Any = Translators.identity(model)
    state = optimizer.init(translators)
    for batch in batches:
        translators, state = step(variables, batch, translators, state)
    return translators


def lens_kl(lens_LBTV: jax.Array, batch: Batch) -> jax.Array:
    """Returns KL(p ‖ p_l) in nats, the mean over target tokens, float32 L.

    Args:
      lens_LBTV: Logits of `logit_lens`. The last entry gives p, and has no result.
      batch: The batch of the logits. Padding doesn't count.
    """
    log_p_LBTV = jax.nn.log_softmax(lens_LBTV)
    final_1BTV = log_p_LBTV[-1:]
    kl_LBT = (jnp.exp(final_1BTV) * (final_1BTV - log_p_LBTV[:-1])).sum(-1)
    valid_1BT = batch['target_segments'][None] > 0
    return jnp.where(valid_1BT, kl_LBT, 0).sum((1, 2)) / valid_1BT.sum()


def _streams(model, variables, batch):
    """Returns the stream before the first layer and after each, LBTD."""
    num_layers = decoder_of(model).num_layers
    names = [f'decoder/layer_{i}/resid_pre' for i in range(num_layers)]
    names.append(f'decoder/layer_{num_layers - 1}/resid_post')
    _, found = activations(model, variables, batch, names)
    # A decoder-only model also reads the source.
    length = batch['inputs'].shape[1]
    return jnp.stack([found[name].value[:, -length:] for name in names])


def _read(model, variables, stream_LBTD, translators):
    if translators is not None:
        stream_LBTD = translators.translate(stream_LBTD)
    stream_NTD = stream_LBTD.reshape(-1, *stream_LBTD.shape[2:])
    logits_NTV: Any = model.apply(variables, stream_NTD, method=_logits_of)
    return logits_NTV.reshape(*stream_LBTD.shape[:3], -1)


def _logits_of(model, stream_BTD):
    return model.unembed(model.decoder_stack.final.final_norm(stream_BTD))
