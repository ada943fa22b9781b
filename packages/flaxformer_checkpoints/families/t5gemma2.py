"""The text model of T5Gemma 2 (Zhang et al. 2025)."""

from collections.abc import Mapping
from typing import Any

from flaxformer_checkpoints.families._entries import Copy, Pattern, Spec
from flaxformer_checkpoints.families.base import in_layers
from flaxformer_checkpoints.families.t5gemma import (
    LAYER,
    T5Gemma,
    check_numbers,
    kinds_given,
    norms,
    rope_type,
    section,
)
from flaxformer_lite.validation import quote

_STACKS = ('encoder', 'decoder')
# The kinds of layers, and defaults of fields that a config omits.
THETA = {'full_attention': 1_000_000.0, 'sliding_attention': 10_000.0}
TURNS = (*['sliding_attention'] * 5, 'full_attention')
QUERY_KEY_NORMS = {
    'self_attention/core_attention/query_norm': 'self_attn.q_norm',
    'self_attention/core_attention/key_norm': 'self_attn.k_norm',
}
_MODULE = {
    'num_hidden_layers': 26,
    'query_pre_attn_scalar': 256,
    'sliding_window': 4096,
    'final_logit_softcapping': None,
    'rms_norm_eps': 1e-6,
}


def attention(prefix: str, **windows: str) -> Pattern:
    norm = '(query_key_norm=True, query_key_offset=1.0)'
    others = dict(scale=f'{prefix}scale', dropout='attention_dropout')
    kinds = {
        'full_attention': Spec(f'softmax{norm}', **others),
        'sliding_attention': Spec(f'local{norm}', **others, **windows),
    }
    return Pattern(f'{prefix}layer_types', kinds, f'{prefix}num_hidden_layers')


def positions(prefix: str) -> Pattern:
    kinds = {
        kind: Spec(
            'rotary',
            max_wavelength=f'{prefix}{kind}.rope_theta',
            scale=f'{prefix}{kind}.factor',
        )
        for kind in THETA
    }
    return Pattern(f'{prefix}layer_types', kinds, f'{prefix}num_hidden_layers')


class T5Gemma2(T5Gemma):
    """Two Gemma 3 stacks; the decoder merges self- and cross-attention.

    The encoder's window of w tokens has ⌈w / 2⌉ − 1 tokens before the query and ⌊w / 2⌋
    after it. The vision tower and the end-of-image embedding in the files are ignored.
    """

    model_types = ('t5gemma2',)
    architecture = 'T5Gemma2ForConditionalGeneration'
    fields = {
        **{k: v for k, v in T5Gemma.fields.items() if k != 'cross.attention'},
        'd_model': Copy('encoder.hidden_size', 'decoder.hidden_size'),
        'decoder.d_model': Copy('decoder.hidden_size'),
        'merged_attention': True,
        'attention': attention(
            'encoder.', window='encoder.window', window_after='encoder.window_after'
        ),
        'decoder.attention': attention('decoder.', window='decoder.window'),
        'positions': positions('encoder.'),
        'decoder.positions': positions('decoder.'),
        'tie': 'all',
    }
    defaults = {
        **{k: v for k, v in T5Gemma.defaults.items() if 'rope_theta' not in k},
        **{f'{stack}.{kind}.factor': None for stack in _STACKS for kind in THETA},
    }
    expected = {
        'tie_word_embeddings': True,
        **{f'{stack}.attention_bias': False for stack in _STACKS},
        **{f'{stack}.attn_logit_softcapping': None for stack in _STACKS},
        # The query and key norms have the same ε.
        **{f'{stack}.rms_norm_eps': 1e-6 for stack in _STACKS},
    }
    arrays = {
        **T5Gemma.arrays,
        'embedding': 'model.encoder.embed_tokens.weight',
        **in_layers(LAYER, QUERY_KEY_NORMS),
        **norms('decoder', 'self_attn', 'feedforward'),
    }
    aliases = {
        'embedding': ('model.decoder.embed_tokens.weight', 'lm_head.out_proj.weight')
    }
    computed = (
        r'model\.(encoder|decoder)\.embed_tokens\.eoi_embedding',
        r'model\.encoder\.(vision_tower|multi_modal_projector)\..*',
    )

    @classmethod
    def read_stack(cls, stack, fields):
        text = fields.get('text_config', fields)
        fields = {**_MODULE, **section(f'{stack}.text_config', text)}
        check_numbers(f'{stack}.', fields)
        fields |= rotations(f'{stack}.', fields)
        window = fields['sliding_window']
        if window is not None:
            fields['window'] = window if stack == 'decoder' else (window + 1) // 2
            fields['window_after'] = window // 2 + 1
        return fields | {'layer_types': kinds_given(f'{stack}.', fields, TURNS)}

    @classmethod
    def write_stack(cls, stack, fields):
        window = fields.pop('window', None)
        after = fields.pop('window_after', 1)
        if window is not None:
            fields['sliding_window'] = window + after - 1
        fields['rope_parameters'] = rope_parameters(fields)
        if stack == 'encoder':
            return {'text_config': fields}
        return fields


def rotations(prefix: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the rotations of each kind of layer.

    Older configs have them outside of `rope_parameters`.
    """
    name = f'{prefix}rope_parameters'
    given = section(name, fields.get('rope_parameters'))
    scaling = section(f'{prefix}rope_scaling', fields.get('rope_scaling'))
    older = {
        'full_attention': fields.get('rope_theta'),
        'sliding_attention': fields.get('rope_local_base_freq'),
    }
    found = {}
    for kind, default in THETA.items():
        theta = default if older[kind] is None else older[kind]
        rope = {'rope_theta': theta, **section(f'{name}.{kind}', given.get(kind))}
        if kind == 'full_attention':
            rope |= scaling
        if rope_type(rope) not in ('default', 'linear'):
            raise ValueError(
                f'{name} has rope_type={quote(rope_type(rope))}: '
                "only 'default' and 'linear' are supported"
            )
        is_scaled = rope_type(rope) == 'linear'
        if is_scaled and rope.get('factor') is None:
            raise ValueError(f'{name}.{kind}.factor is missing')
        found[f'{kind}.rope_theta'] = rope['rope_theta']
        found[f'{kind}.factor'] = rope['factor'] if is_scaled else None
    return found


def rope_parameters(fields: dict[str, Any]) -> dict[str, Any]:
    """Inverts `rotations`; removes its fields."""
    return {kind: _rope_fields(fields, kind) for kind in THETA}


def _rope_fields(fields: dict[str, Any], kind: str) -> dict[str, Any]:
    theta = fields.pop(f'{kind}.rope_theta', THETA[kind])
    factor = fields.pop(f'{kind}.factor', None)
    if factor is None:
        return {'rope_type': 'default', 'rope_theta': theta}
    return {'rope_type': 'linear', 'rope_theta': theta, 'factor': factor}
