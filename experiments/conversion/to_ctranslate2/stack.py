"""An encoder or a decoder of ours as CTranslate2 describes it."""

# CTranslate2 is of an extra, which need not be installed.
# pyright: reportMissingImports=false

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from experiments.conversion.to_ctranslate2 import attention, fields, norms
from flaxformer_lite.config import spec, variants
from flaxformer_lite.config.schema import ModelConfig
from flaxformer_lite.sizes import Sizes

_GATED = ('swiglu', 'geglu')
# Positions whose vectors are added. Without a table it would add sinusoids.
_OF_TABLE = ('none', 'sinusoidal', 'sinusoidal_t2t', 'learned')


def described(
    role: Any, params: Mapping[str, Any], config: ModelConfig, longest: int
) -> Any:
    """A stack's description, with its arrays but for embeddings and logits.

    Args:
      role: 'encoder' or 'decoder'.
      params: the stack's.
      config: the model's.
      longest: rows of the table of positions that have no end here.
    """
    from ctranslate2.specs import transformer_spec

    options = _options(config, role)
    if role == 'encoder':
        stack = transformer_spec.TransformerEncoderSpec(**options)
    else:
        # Norms of attention to the source have names of their own.
        sandwich = options['pre_post_layer_norm']
        options |= dict(external_pre_post_encoder_layers=sandwich)
        stack = transformer_spec.TransformerDecoderSpec(**options)
    norms.fill(stack, params, config)
    name, _ = spec.parse(config.value('positions', role))
    if name in _OF_TABLE:
        table = _table(params, config, role, longest)
        stack.position_encodings.encodings = table
    if name == 't5':
        _fill_t5(stack, params, config, role)
    for i, layer in enumerate(stack.layer):
        _fill_layer(layer, params[f'layer_{i}'], config, role)
    return stack


def _options(config: ModelConfig, role: Any) -> dict[str, Any]:
    """The arguments that the descriptions of both stacks have."""
    network, _ = spec.parse(config.value('feed_forward', role))
    head_norm = _core(config, role).query_key_norm
    residual, _ = spec.parse(config.value('residual', role))
    sizes = config.sizes(role)
    return dict(
        num_layers=sizes.num_layers,
        num_heads=sizes.num_heads,
        num_heads_kv=sizes.num_kv_heads,
        head_dim=attention.width(sizes),
        pre_norm=residual != 'post_norm',
        pre_post_layer_norm=residual == 'sandwich',
        activation=_activation(config, role),
        layernorm_embedding=config.norm_embeddings,
        ffn_glu=network in _GATED,
        qk_norm=head_norm,
        rms_norm=spec.parse(config.norm)[0] == 'rms',
        **_of_positions(config, role, sizes),
    )


def _activation(config: ModelConfig, role: Any) -> Any:
    from ctranslate2.specs.common_spec import Activation

    network, given = spec.parse(config.value('feed_forward', role))
    gelu = Activation.GELUTanh if given.get('tanh') else Activation.GELU
    return {
        'relu': Activation.RELU,
        'gelu': gelu,
        'geglu': gelu,
        'silu': Activation.SWISH,
        'swiglu': Activation.SWISH,
    }[network]


def _of_positions(config: ModelConfig, role: Any, sizes: Sizes) -> dict[str, Any]:
    from ctranslate2.specs.attention_spec import RotaryScalingType

    name, _ = spec.parse(config.value('positions', role))
    positions = _positions(config, role)
    if name == 'rotary':
        return dict(
            rotary_dim=sizes.d_k,
            rotary_base=positions.max_wavelength,
            rotary_scaling_type=RotaryScalingType.Linear,
            rotary_scaling_factor=positions.scale,
        )
    options = {'shaw': 'relative_position', 't5': 'relative_attention_bias'}
    if role == 'decoder':
        options['alibi'] = 'alibi'
    return {options[name]: True} if name in options else {}


def _positions(config: ModelConfig, role: Any) -> Any:
    text = config.value('positions', role)
    return variants.make('positions', text, sizes=config.sizes(role))


def _fill_t5(
    stack: Any, params: Mapping[str, Any], config: ModelConfig, role: Any
) -> None:
    """One table for all layers."""
    distance = np.int32(_positions(config, role).max_distance)
    for layer in stack.layer:
        layer.self_attention.relative_attention_bias = params['positions']['table']
        layer.self_attention.relative_attention_max_distance = distance


def _table(
    params: Mapping[str, Any], config: ModelConfig, role: Any, longest: int
) -> np.ndarray:
    """The vector of each position, as our own positions add it."""
    positions = _positions(config, role)
    length = getattr(positions, 'max_length', longest)
    variables = {'params': params['positions']} if 'positions' in params else {}
    x_1TD = jnp.zeros((1, length, config.value('d_model', role)))
    positions_1T = jnp.arange(length)[None]
    return np.asarray(
        positions.apply(variables, x_1TD, positions_1T, method='embed')[0]
    )


def _fill_layer(
    layer: Any, ours: Mapping[str, Any], config: ModelConfig, role: Any
) -> None:
    attentions = [(role, layer.self_attention, ours['self_attention'])]
    if 'cross_attention' in ours:
        attentions.append(('cross', layer.attention, ours['cross_attention']))
        for norm in ('q_norm', 'k_norm'):
            # A description has them in all attentions or in none.
            vars(layer.attention).pop(norm, None)
    for where, theirs, own in attentions:
        sizes = fields.attentions(config)[where]
        attention.fill(theirs, own, sizes, _core(config, where))
    network = ours['feed_forward']
    attention.fill_linear(layer.ffn.linear_0, network.get('gate', network['up']))
    if 'gate' in network:
        attention.fill_linear(layer.ffn.linear_0_noact, network['up'])
    attention.fill_linear(layer.ffn.linear_1, network['down'])


def _core(config: ModelConfig, role: str) -> Any:
    """The attention between heads."""
    field = config.deciding_field('attention', role)
    return variants.make(field, getattr(config, field))
