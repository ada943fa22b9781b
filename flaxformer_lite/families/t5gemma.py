"""T5Gemma (Zhang et al. 2025, "Encoder-Decoder Gemma")."""

from collections.abc import Mapping
from typing import Any

from flaxformer_lite.families._entries import Choice, Copy, Pattern, Spec
from flaxformer_lite.families.base import Family

_NETWORKS = {'gelu_pytorch_tanh': 'geglu(tanh=True)', 'silu': 'swiglu'}
_STACKS = ('encoder', 'decoder')


# What a stack's config means where it lacks a field.
_MODULE = {
    'num_hidden_layers': 26,
    'query_pre_attn_scalar': 256,
    'sliding_window': 4096,
    'attn_logit_softcapping': 50.0,
    'final_logit_softcapping': 30.0,
    'rms_norm_eps': 1e-6,
    'rope_theta': 10000.0,
    'rope_type': 'default',
}


def _attention(stack: str, kind: str = 'softmax', **arguments: str) -> Spec:
    return Spec(
        kind,
        scale=f'{stack}.scale',
        cap=f'{stack}.attn_logit_softcapping',
        dropout='attention_dropout',
        **arguments,
    )


def _by_layer(stack: str) -> Pattern:
    """Attention to all tokens, or to those near the query."""
    near = _attention(stack, 'local', window=f'{stack}.window')
    kinds = {'full_attention': _attention(stack), 'sliding_attention': near}
    return Pattern(f'{stack}.layer_types', kinds)


def _network(stack: str) -> Spec:
    return Spec(Choice(f'{stack}.hidden_activation', _NETWORKS), dropout='dropout_rate')


class T5Gemma(Family):
    """Two stacks of Gemma 2: norms before and after, rotation, caps, GEGLU, windows.

    A stack's fields are written `encoder.hidden_size` in the tables. `sliding_window`
    is how far away the encoder's keys may be, and in the decoder one more than that.
    Transformers drops of the output of each stack, too, which is not done here.
    """

    model_types = ('t5gemma',)
    architecture = 'T5GemmaForConditionalGeneration'
    rotates_halves = True
    fields = {
        'd_model': Copy('encoder.hidden_size'),
        'num_layers': Copy('encoder.num_hidden_layers'),
        'num_heads': Copy('encoder.num_attention_heads'),
        'num_kv_heads': Copy('encoder.num_key_value_heads'),
        'd_k': Copy('encoder.head_dim'),
        'd_v': Copy('encoder.head_dim'),
        'd_ff': Copy('encoder.intermediate_size'),
        'decoder_d_model': Copy('decoder.hidden_size'),
        'decoder_num_layers': Copy('decoder.num_hidden_layers'),
        'decoder_num_heads': Copy('decoder.num_attention_heads'),
        'decoder_num_kv_heads': Copy('decoder.num_key_value_heads'),
        'decoder_d_k': Copy('decoder.head_dim'),
        'decoder_d_v': Copy('decoder.head_dim'),
        'decoder_d_ff': Copy('decoder.intermediate_size'),
        'attention': _by_layer('encoder'),
        'decoder_attention': _by_layer('decoder'),
        'cross_attention': _attention('decoder'),
        'positions': Spec('rotary', max_wavelength='encoder.rope_theta'),
        'decoder_positions': Spec('rotary', max_wavelength='decoder.rope_theta'),
        'norm': Spec('rms(offset=1.0)', epsilon='encoder.rms_norm_eps'),
        'decoder_norm': Spec('rms(offset=1.0)', epsilon='decoder.rms_norm_eps'),
        'residual': 'sandwich',
        'feed_forward': _network('encoder'),
        'decoder_feed_forward': _network('decoder'),
        'dropout': Copy('dropout_rate'),
        'tie': 'decoder',
        'logit_cap': Copy('decoder.final_logit_softcapping'),
    }
    defaults = {
        'dropout_rate': 0.0,
        'attention_dropout': 0.0,
        **{f'{stack}.attn_logit_softcapping': None for stack in _STACKS},
        **{f'{stack}.rope_theta': 10000.0 for stack in _STACKS},
        **{f'{stack}.rms_norm_eps': 1e-6 for stack in _STACKS},
        'decoder.final_logit_softcapping': None,
        'pad_token_id': 0,
        'eos_token_id': 1,
        'decoder_start_token_id': 2,
    }
    expected = {
        'tie_word_embeddings': True,
        **{f'{stack}.attention_bias': False for stack in _STACKS},
        **{f'{stack}.rope_type': 'default' for stack in _STACKS},
    }
    arrays = {
        'embedding': 'model.decoder.embed_tokens.weight',
        'source_embedding': 'model.encoder.embed_tokens.weight',
        '{stack}/final/norm': 'model.{stack}.norm',
    }
    aliases = {'embedding': ('lm_head.out_proj.weight',)}

    @classmethod
    def arrays_of(cls, config):
        table = dict(cls.arrays)
        ours = '{stack}/layer_{layer}'
        theirs = 'model.{stack}.layers.{layer}'
        for attention, name in (('self', 'self_attn'), ('cross', 'cross_attn')):
            for part, letter in dict(query='q', key='k', value='v').items():
                table[f'{ours}/{attention}_attention/{part}'] = (
                    f'{theirs}.{name}.{letter}_proj'
                )
            table[f'{ours}/{attention}_attention/out_proj'] = f'{theirs}.{name}.o_proj'
        for part in ('gate', 'up', 'down'):
            table[f'{ours}/feed_forward/{part}'] = f'{theirs}.mlp.{part}_proj'
        sublayers = {
            'encoder': ('self_attn', 'feedforward'),
            'decoder': ('self_attn', 'cross_attn', 'feedforward'),
        }
        for stack, names in sublayers.items():
            for i, name in enumerate(names, 1):
                residual = f'{stack}/layer_{{layer}}/residual_{i}'
                layer = f'model.{stack}.layers.{{layer}}'
                table[f'{residual}/norm'] = f'{layer}.pre_{name}_layernorm'
                table[f'{residual}/norm_after'] = f'{layer}.post_{name}_layernorm'
        return table

    @classmethod
    def read(cls, theirs, names):
        flat = {k: v for k, v in theirs.items() if k not in _STACKS}
        for stack in [x for x in _STACKS if x in theirs]:
            fields = _MODULE | theirs[stack]
            fields |= fields.get('rope_parameters') or {}
            fields['scale'] = fields['query_pre_attn_scalar'] ** -0.5
            fields['window'] = fields['sliding_window'] + (stack == 'encoder')
            fields['layer_types'] = fields.get('layer_types') or _by_turns(fields)
            flat |= {f'{stack}.{name}': value for name, value in fields.items()}
        return super().read(flat, names)

    @classmethod
    def write(cls, described, names):
        flat = super().write(described, names)
        theirs = {k: v for k, v in flat.items() if '.' not in k}
        for stack in _STACKS:
            fields = _of_stack(flat, stack)
            fields['query_pre_attn_scalar'] = _scalar_of(fields.pop('scale'))
            theta = fields.pop('rope_theta')
            fields['rope_parameters'] = {'rope_type': 'default', 'rope_theta': theta}
            window = fields.pop('window', None)
            if window is not None:
                fields['sliding_window'] = window - (stack == 'encoder')
            kinds, depth = fields['layer_types'], fields['num_hidden_layers']
            fields['layer_types'] = [kinds[i % len(kinds)] for i in range(depth)]
            theirs[stack] = fields
        return theirs


def _by_turns(fields: Mapping[str, Any]) -> list[str]:
    kinds = ['sliding_attention', 'full_attention']
    return [kinds[i % 2] for i in range(fields['num_hidden_layers'])]


def _scalar_of(scale: float) -> float:
    """What was whole is whole again."""
    scalar = scale**-2
    whole = round(scalar)
    return whole if whole**-0.5 == scale else scalar


def _of_stack(flat: Mapping[str, Any], stack: str) -> dict[str, Any]:
    """The fields of one stack, without its name before theirs."""
    prefix = f'{stack}.'
    return {
        name.removeprefix(prefix): value
        for name, value in flat.items()
        if name.startswith(prefix)
    }
