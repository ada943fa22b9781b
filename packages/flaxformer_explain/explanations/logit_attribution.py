"""Direct logit attribution (Elhage et al. 2021, "A Mathematical Framework …")."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from flaxformer_explain.explanations.passes import activations, decoder_of, prepare
from flaxformer_lite.interventions.context import intervene
from flaxformer_lite.models.base import Model
from flaxformer_lite.norms.base import Norm
from flaxformer_lite.training.batch import Batch, source_and_inputs

_EMBED = 'decoder/layer_0/resid_pre'
_ATTENTIONS = {'self_attention': 'attn_out', 'cross_attention': 'cross_attn_out'}


class LogitAttribution(NamedTuple):
    """Terms of a logit per target position, float32.

    `logit_BT` = `embed_BT` + the sum of `sublayers` over names and layers + `rest_BT`.

    Attributes:
      logit_BT: The logit, before `logit_cap`; or the difference of two logits.
      embed_BT: Term of the embedding with its position.
      sublayers: Terms of the sublayers' outputs, LBT, by the names 'attn_out',
        'cross_attn_out' and 'mlp_out'.
      heads: Terms of the heads, LBTH, by the names 'self_attention' and
        'cross_attention'. They sum to the sublayer's term without its output bias.
      rest_BT: Term of the biases.
    """

    logit_BT: jax.Array
    embed_BT: jax.Array
    sublayers: dict[str, jax.Array]
    heads: dict[str, jax.Array]
    rest_BT: jax.Array


def logit_attribution(
    model: Model,
    variables: Any,
    batch: Batch,
    tokens_BT: jax.Array | None = None,
    others_BT: jax.Array | None = None,
) -> LogitAttribution:
    """Splits a logit into the direct terms of the decoder's heads and sublayers.

    A term is what an output adds to the logit through the residual stream, without its
    effect on later sublayers. Norms on the way are linear maps with the statistics of
    the actual stream.

    Args:
      tokens_BT: Token of each position whose logit is split. Defaults to the label.
      others_BT: If given, splits the logit of `tokens_BT` minus that of `others_BT`.

    Raises:
      ValueError: As `logit_lens`.
    """
    model, variables = prepare(model, variables)
    tokens_BT = batch['labels'] if tokens_BT is None else tokens_BT
    layers = [f'decoder/layer_{i}' for i in range(decoder_of(model).num_layers)]
    attentions = _attentions(model)
    outputs = [*attentions.values(), 'mlp_out']
    cut_names = [_EMBED, *(f'{layer}/{name}' for layer in layers for name in outputs)]
    results = [f'{layer}/{name}/result' for layer in layers for name in attentions]
    _, values = activations(model, variables, batch, [*cut_names, *results])

    def logit(shifts):
        given = {name: jax.tree_util.Partial(_cut, x) for name, x in shifts.items()}
        with nn.intercept_methods(_fix_statistics), intervene(given):
            factors: Any = model.apply(
                variables, *source_and_inputs(batch), method='logit_factors'
            )
        logit_BT = _logit(factors, tokens_BT)
        if others_BT is not None:
            logit_BT -= _logit(factors, others_BT)
        # Logits depend only on shifts of the same position.
        return logit_BT.sum(), logit_BT

    shifts = {name: jnp.zeros_like(values[name].value) for name in cut_names}
    slopes, logit_BT = jax.grad(logit, has_aux=True)(shifts)
    length = logit_BT.shape[1]

    def term(slope, name, equation):
        return jnp.einsum(equation, slopes[slope], values[name].value)[:, -length:]

    def of_layers(output, name, equation):
        terms = [term(f'{x}/{output}', f'{x}/{name}', equation) for x in layers]
        return jnp.stack(terms)

    embed_BT = term(_EMBED, _EMBED, 'btd,btd->bt')
    sublayers = {name: of_layers(name, name, 'btd,btd->bt') for name in outputs}
    heads = {
        name: of_layers(output, f'{name}/result', 'btd,bthd->bth')
        for name, output in attentions.items()
    }
    total_BT = embed_BT + sum(x_LBT.sum(0) for x_LBT in sublayers.values())
    return LogitAttribution(
        logit_BT, embed_BT, sublayers, heads, rest_BT=logit_BT - total_BT
    )


def _attentions(model):
    block = decoder_of(model).block
    return {
        name: output
        for name, output in _ATTENTIONS.items()
        if getattr(block, name) is not None
    }


def _cut(shift, value, where):
    """Returns the same output, with gradients of the shift instead of its inputs."""
    return jax.lax.stop_gradient(value) + shift


def _logit(factors, tokens_BT):
    hidden_BTD, table_VD, bias_V = factors
    logit_BT = jnp.einsum('btd,btd->bt', hidden_BTD, table_VD[tokens_BT])
    return logit_BT if bias_V is None else logit_BT + bias_V[tokens_BT]


def _fix_statistics(call, args, kwargs, context):
    """Interceptor after which gradients treat the statistics of norms as constants."""
    y_BTD = call(*args, **kwargs)
    norm = context.module
    if not isinstance(norm, Norm) or context.method_name != norm.divides_in:
        return y_BTD
    x_BTD = args[0].astype(jnp.float32)
    if norm.centers:
        x_BTD -= x_BTD.mean(-1, keepdims=True)
    square_BT1 = jnp.square(x_BTD).sum(-1, keepdims=True)
    scale_BT1 = (x_BTD * y_BTD).sum(-1, keepdims=True) / jnp.maximum(square_BT1, 1e-30)
    linear_BTD = x_BTD * jax.lax.stop_gradient(scale_BT1)
    return jax.lax.stop_gradient(y_BTD - linear_BTD) + linear_BTD
