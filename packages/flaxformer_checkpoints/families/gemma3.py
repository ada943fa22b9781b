"""The text model of Gemma 3 (Gemma Team 2025)."""

from collections.abc import Mapping
from typing import Any

from flaxformer_checkpoints.families import t5gemma2
from flaxformer_checkpoints.families._entries import Choice, Copy, Spec
from flaxformer_checkpoints.families.base import Family, in_layers
from flaxformer_checkpoints.families.t5gemma import (
    MATRICES,
    NETWORKS,
    check_numbers,
    kinds_given,
    query_pre_attn_scalar,
)
from flaxformer_lite import validation

_PATTERN = 'sliding_window_pattern'  # period of layers; the last one attends globally


class Gemma3(Family):
    """Decoder-only: pre- and post-norms, QK-norm, GEGLU, local and global layers.

    The start token precedes the target. The maximum distance of a key in a local layer
    is `sliding_window` − 1.
    """

    model_types = ('gemma3_text',)
    architecture = 'Gemma3ForCausalLM'
    rotates_halves = True
    adapted = 't5gemma2'
    fields = {
        'architecture': 'decoder_only',
        'd_model': Copy('hidden_size'),
        'num_layers': Copy('num_hidden_layers'),
        'num_heads': Copy('num_attention_heads'),
        'num_kv_heads': Copy('num_key_value_heads'),
        'd_k': Copy('head_dim'),
        'd_v': Copy('head_dim'),
        'd_ff': Copy('intermediate_size'),
        'attention': t5gemma2.attention('', window='sliding_window'),
        'positions': t5gemma2.positions(''),
        'norm': Spec('rms(offset=1.0)', epsilon='rms_norm_eps'),
        'residual': 'sandwich',
        'feed_forward': Spec(Choice('hidden_activation', NETWORKS)),
        'dropout': 0.0,
        'logit_cap': Copy('final_logit_softcapping'),
    }
    defaults = {
        'num_hidden_layers': 26,
        'head_dim': 256,
        'hidden_activation': 'gelu_pytorch_tanh',
        'query_pre_attn_scalar': 256,
        'sliding_window': 4096,
        'rms_norm_eps': 1e-6,
        'attention_dropout': 0.0,
        'final_logit_softcapping': None,
        'pad_token_id': 0,
        'eos_token_id': 1,
        'bos_token_id': 2,
        **{f'{kind}.factor': None for kind in t5gemma2.THETA},
    }
    expected = {
        'tie_word_embeddings': True,
        'attention_bias': False,
        'attn_logit_softcapping': None,
        'use_bidirectional_attention': False,
        # The query and key norms have the same ε.
        'rms_norm_eps': 1e-6,
    }
    arrays = {
        'embedding': 'model.embed_tokens.weight',
        **in_layers(
            'model.layers.{layer}.',
            {
                **MATRICES,
                **t5gemma2.QUERY_KEY_NORMS,
                'residual_1/norm': 'input_layernorm',
                'residual_1/norm_after': 'post_attention_layernorm',
                'residual_2/norm': 'pre_feedforward_layernorm',
                'residual_2/norm_after': 'post_feedforward_layernorm',
            },
            'decoder',
        ),
        'decoder/final/norm': 'model.norm',
    }
    aliases = {'embedding': ('lm_head.weight',)}

    @classmethod
    def read(cls, theirs, names):
        if 'scale' not in theirs:  # configs that `write` checks already have it
            theirs = cls._with_derived({**cls.defaults, **theirs})
        return super().read(theirs, names)

    @classmethod
    def _with_derived(cls, theirs: Mapping[str, Any]) -> dict[str, Any]:
        check_numbers('', theirs)
        turns = t5gemma2.TURNS
        if theirs.get(_PATTERN) is not None:
            validation.check(_PATTERN, validation.Size, theirs[_PATTERN])
            turns = (*turns[:1] * (theirs[_PATTERN] - 1), turns[-1])
        return {
            **theirs,
            **t5gemma2.rotations('', theirs),
            'scale': theirs['query_pre_attn_scalar'] ** -0.5,
            'layer_types': kinds_given('', theirs, turns),
            'decoder_start_token_id': theirs['bos_token_id'],
        }

    @classmethod
    def write(cls, described, names):
        theirs = super().write(described, names)
        theirs['rope_parameters'] = t5gemma2.rope_parameters(theirs)
        theirs['query_pre_attn_scalar'] = query_pre_attn_scalar(theirs.pop('scale'))
        theirs['bos_token_id'] = theirs.pop('decoder_start_token_id')
        theirs['is_encoder_decoder'] = False
        return theirs
