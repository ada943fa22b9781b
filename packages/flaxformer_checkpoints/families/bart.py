"""BART (Lewis et al. 2020). M2M100, Marian, mBART and Pegasus share its layout."""

from collections.abc import Mapping
from typing import Any

from flaxformer_checkpoints.families._entries import Choice, Copy, Spec
from flaxformer_checkpoints.families.base import Family, in_layers

_LAYER = 'model.{stack}.layers.{layer}.'
_ACTIVATIONS = {
    'relu': 'relu',
    'gelu': 'gelu',
    'gelu_new': 'gelu(tanh=True)',
    'gelu_pytorch_tanh': 'gelu(tanh=True)',
    'silu': 'silu',
    'swish': 'silu',
}


def switches(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns table entries of legacy fields, each with its only supported value."""
    is_pre_norm = fields['residual'] == 'pre_norm'
    return {
        'tie_word_embeddings': True,
        'normalize_before': is_pre_norm,
        'normalize_embedding': fields['norm_embeddings'],
        'add_final_layer_norm': is_pre_norm,
        # Tables write sinusoids as plain text, and learned positions as an entry.
        'static_position_embeddings': not isinstance(fields['positions'], Spec),
    }


class Bart(Family):
    """Post-norm with embedding norms, biases and learned positions with offset 2."""

    model_types = ('bart',)
    architecture = 'BartForConditionalGeneration'
    fields = {
        'd_model': Copy('d_model'),
        'num_layers': Copy('encoder_layers'),
        'num_heads': Copy('encoder_attention_heads'),
        'd_ff': Copy('encoder_ffn_dim'),
        'decoder.num_layers': Copy('decoder_layers'),
        'decoder.num_heads': Copy('decoder_attention_heads'),
        'decoder.d_ff': Copy('decoder_ffn_dim'),
        'attention': Spec('softmax', dropout='attention_dropout'),
        'attention_bias': True,
        'positions': Spec('learned(offset=2)', max_length='max_position_embeddings'),
        'norm': 'layer(epsilon=1e-05)',
        'norm_embeddings': True,
        'residual': 'post_norm',
        'feed_forward': Spec(
            Choice('activation_function', _ACTIVATIONS), dropout='activation_dropout'
        ),
        'dropout': Copy('dropout'),
        'layer_drop': Copy('encoder_layerdrop', 'decoder_layerdrop'),
        'tie': 'all',
        'scale_embeddings': Copy('scale_embedding'),
        'output_bias': True,
    }
    defaults = {
        'activation_function': 'gelu',
        'attention_dropout': 0.0,
        'activation_dropout': 0.0,
        'encoder_layerdrop': 0.0,
        'decoder_layerdrop': 0.0,
        'scale_embedding': False,
        'pad_token_id': 1,
        'eos_token_id': 2,
        'decoder_start_token_id': 2,
    }
    expected = switches(fields)
    arrays = {
        'embedding': 'model.shared.weight',
        'output_bias': 'final_logits_bias',
        '{stack}/positions/table': 'model.{stack}.embed_positions.weight',
        '{stack}/embedding_norm': 'model.{stack}.layernorm_embedding',
        **in_layers(
            _LAYER,
            {
                'self_attention/query': 'self_attn.q_proj',
                'self_attention/key': 'self_attn.k_proj',
                'self_attention/value': 'self_attn.v_proj',
                'self_attention/out_proj': 'self_attn.out_proj',
                'cross_attention/query': 'encoder_attn.q_proj',
                'cross_attention/key': 'encoder_attn.k_proj',
                'cross_attention/value': 'encoder_attn.v_proj',
                'cross_attention/out_proj': 'encoder_attn.out_proj',
                'feed_forward/up': 'fc1',
                'feed_forward/down': 'fc2',
                'residual_1/norm': 'self_attn_layer_norm',
            },
        ),
        **in_layers(_LAYER, {'residual_2/norm': 'final_layer_norm'}, 'encoder'),
        **in_layers(
            _LAYER,
            {
                'residual_2/norm': 'encoder_attn_layer_norm',
                'residual_3/norm': 'final_layer_norm',
            },
            'decoder',
        ),
        '{stack}/final/norm': 'model.{stack}.layer_norm',
    }
    # fairseq's version numbers, which converted files may still contain.
    computed = (r'model\.(encoder|decoder)\.version',)
    # Missing in files without the language modeling head.
    zeros = ('output_bias',)
    aliases = {
        'embedding': (
            'model.encoder.embed_tokens.weight',
            'model.decoder.embed_tokens.weight',
            'lm_head.weight',
        )
    }
