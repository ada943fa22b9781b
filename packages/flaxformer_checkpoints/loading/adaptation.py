"""Encoder-decoders from decoder-only models (Zhang et al. 2025, "T5Gemma").

Both stacks start as its copies. Without a source, the logits are unchanged.
"""

from typing import Any

from flaxformer_checkpoints.families import _entries
from flaxformer_lite.config.schema import ModelConfig
from flaxformer_lite.config.spec import Component

# How the new decoder attends to the source.
CROSS_ATTENTION = ('merged', 'separate')


def to_encoder_decoder(config: ModelConfig, cross_attention: str) -> ModelConfig:
    """Returns the config of an encoder-decoder with the layers of a decoder-only model.

    The encoder's windows are those of `families.t5gemma2`.

    Args:
      cross_attention: 'merged' with self-attention (T5Gemma 2), or 'separate' and
        initialized from it (T5Gemma).

    Raises:
      ValueError: The model isn't decoder-only.

    Examples:
      >>> base = ModelConfig(architecture='decoder_only', attention='local(window=5)')
      >>> str(to_encoder_decoder(base, 'merged').attention)
      'local(window=3, window_after=3)'
    """
    if config.architecture.name != 'decoder_only':
        raise ValueError(
            f'to_encoder_decoder: needs a decoder-only checkpoint, not '
            f'{config.architecture}. Leave it out.'
        )
    layers = config.attention.entries
    values: dict[str, Any] = {
        'architecture': 'encoder_decoder',
        'attention': _entries.pattern([_widen_window(layer) for layer in layers]),
        'decoder.attention': config.attention,
    }
    if cross_attention == 'merged':
        values['merged_attention'] = True
    else:
        values['cross.attention'] = _without_window(layers[-1])
    return config.with_values(values)


def _widen_window(attention: Component) -> str:
    given = dict(attention.arguments)
    if attention.name == 'local':
        window = given['window']
        given |= {'window': (window + 1) // 2, 'window_after': window // 2 + 1}
    return _entries.written(attention.name, given)


def _without_window(attention: Component) -> str:
    name, given = attention.name, dict(attention.arguments)
    if name == 'local':
        name = 'softmax'
        given.pop('window')
    return _entries.written(name, given)


def adapt_variables(config: ModelConfig, variables: Any) -> Any:
    """Returns variables of the encoder-decoder; both stacks share the arrays.

    Args:
      config: The result of `to_encoder_decoder`.
      variables: Of the decoder-only model, with separate layers.
    """
    params = dict(variables['params'])
    params['encoder'] = params['decoder']
    if not config.merged_attention:
        params['decoder'] = {
            name: _with_cross_attention(x) if name.startswith('layer_') else x
            for name, x in params['decoder'].items()
        }
    return {**variables, 'params': params}


def _with_cross_attention(layer: dict[str, Any]) -> dict[str, Any]:
    return {
        **layer,
        'cross_attention': layer['self_attention'],
        'residual_2': layer['residual_1'],
        'residual_3': layer['residual_2'],
    }
