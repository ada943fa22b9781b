"""BART (Lewis et al. 2020), whose layout M2M100, Marian, mBART and Pegasus share."""

from flaxformer_lite.families._entries import Choice, Copy, Spec
from flaxformer_lite.families.base import Family

_ACTIVATIONS = {
    'relu': 'relu',
    'gelu': 'gelu',
    'gelu_new': 'gelu(tanh=True)',
    'gelu_pytorch_tanh': 'gelu(tanh=True)',
    'silu': 'silu',
    'swish': 'silu',
}


class Bart(Family):
    """Post-norm, a norm of the embeddings, positions learned from row 2, biases."""

    model_types = ('bart',)
    architecture = 'BartForConditionalGeneration'
    fields = {
        'd_model': Copy('d_model'),
        'num_layers': Copy('encoder_layers'),
        'num_heads': Copy('encoder_attention_heads'),
        'd_ff': Copy('encoder_ffn_dim'),
        'decoder_num_layers': Copy('decoder_layers'),
        'decoder_num_heads': Copy('decoder_attention_heads'),
        'decoder_d_ff': Copy('decoder_ffn_dim'),
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
    # Switches of the time when all of them were one class.
    expected = {
        'tie_word_embeddings': True,
        'normalize_before': False,
        'normalize_embedding': True,
        'add_final_layer_norm': False,
        'static_position_embeddings': False,
    }
    arrays = {
        'embedding': 'model.shared.weight',
        'output_bias': 'final_logits_bias',
        '{stack}/positions/table': 'model.{stack}.embed_positions.weight',
        '{stack}/embedding_norm': 'model.{stack}.layernorm_embedding',
        '{stack}/layer_{layer}/self_attention/query': (
            'model.{stack}.layers.{layer}.self_attn.q_proj'
        ),
        '{stack}/layer_{layer}/self_attention/key': (
            'model.{stack}.layers.{layer}.self_attn.k_proj'
        ),
        '{stack}/layer_{layer}/self_attention/value': (
            'model.{stack}.layers.{layer}.self_attn.v_proj'
        ),
        '{stack}/layer_{layer}/self_attention/out_proj': (
            'model.{stack}.layers.{layer}.self_attn.out_proj'
        ),
        '{stack}/layer_{layer}/cross_attention/query': (
            'model.{stack}.layers.{layer}.encoder_attn.q_proj'
        ),
        '{stack}/layer_{layer}/cross_attention/key': (
            'model.{stack}.layers.{layer}.encoder_attn.k_proj'
        ),
        '{stack}/layer_{layer}/cross_attention/value': (
            'model.{stack}.layers.{layer}.encoder_attn.v_proj'
        ),
        '{stack}/layer_{layer}/cross_attention/out_proj': (
            'model.{stack}.layers.{layer}.encoder_attn.out_proj'
        ),
        '{stack}/layer_{layer}/feed_forward/up': 'model.{stack}.layers.{layer}.fc1',
        '{stack}/layer_{layer}/feed_forward/down': 'model.{stack}.layers.{layer}.fc2',
        '{stack}/layer_{layer}/residual_1/norm': (
            'model.{stack}.layers.{layer}.self_attn_layer_norm'
        ),
        'encoder/layer_{layer}/residual_2/norm': (
            'model.encoder.layers.{layer}.final_layer_norm'
        ),
        'decoder/layer_{layer}/residual_2/norm': (
            'model.decoder.layers.{layer}.encoder_attn_layer_norm'
        ),
        'decoder/layer_{layer}/residual_3/norm': (
            'model.decoder.layers.{layer}.final_layer_norm'
        ),
        '{stack}/final/norm': 'model.{stack}.layer_norm',
    }
    # The model without its head has none.
    zeros = ('output_bias',)
    aliases = {
        'embedding': (
            'model.encoder.embed_tokens.weight',
            'model.decoder.embed_tokens.weight',
            'lm_head.weight',
        )
    }
