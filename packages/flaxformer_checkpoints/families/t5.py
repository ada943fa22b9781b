"""T5 (Raffel et al. 2020): the original, and v1.1 with gated feed-forward networks."""

from flaxformer_checkpoints.families._entries import Choice, Copy, Spec
from flaxformer_checkpoints.families.base import Family, in_layers

_NETWORKS = {
    'relu': 'relu(bias=False)',
    'gated-gelu': 'geglu(tanh=True)',
    'gated-silu': 'swiglu',
}
_LAYER = '{stack}.block.{layer}.layer.'
# Index of the feed-forward sublayer in each stack.
_PLACES = {'encoder': 1, 'decoder': 2}


class T5(Family):
    """Pre-norm with RMSNorm, relative position biases only, and unscaled scores.

    Unlike in Transformers, the output of a stack has no dropout.
    """

    model_types = ('t5',)
    architecture = 'T5ForConditionalGeneration'
    fields = {
        'd_model': Copy('d_model'),
        'num_layers': Copy('num_layers'),
        'decoder.num_layers': Copy('num_decoder_layers'),
        'num_heads': Copy('num_heads'),
        'd_k': Copy('d_kv'),
        'd_v': Copy('d_kv'),
        'd_ff': Copy('d_ff'),
        'attention': Spec('softmax(scale=False)', dropout='dropout_rate'),
        'positions': Spec(
            't5',
            buckets='relative_attention_num_buckets',
            max_distance='relative_attention_max_distance',
        ),
        'norm': Spec('rms', epsilon='layer_norm_epsilon'),
        'residual': 'pre_norm',
        'feed_forward': Spec(
            Choice('feed_forward_proj', _NETWORKS), dropout='dropout_rate'
        ),
        'dropout': Copy('dropout_rate'),
        'tie': Choice('tie_word_embeddings', {True: 'all', False: 'source_target'}),
        'scale_embeddings': False,
        'scale_logits': Copy('scale_decoder_outputs'),
    }
    defaults = {
        'dropout_rate': 0.1,
        'layer_norm_epsilon': 1e-6,
        'relative_attention_num_buckets': 32,
        'relative_attention_max_distance': 128,
        'feed_forward_proj': 'relu',
        'pad_token_id': 0,
        'eos_token_id': 1,
        'decoder_start_token_id': 0,
    }
    arrays = {
        'embedding': 'shared.weight',
        'output': 'lm_head.weight',
        '{stack}/positions/table': (
            '{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight'
        ),
        **in_layers(
            _LAYER,
            {
                'self_attention/query': '0.SelfAttention.q',
                'self_attention/key': '0.SelfAttention.k',
                'self_attention/value': '0.SelfAttention.v',
                'self_attention/out_proj': '0.SelfAttention.o',
                'cross_attention/query': '1.EncDecAttention.q',
                'cross_attention/key': '1.EncDecAttention.k',
                'cross_attention/value': '1.EncDecAttention.v',
                'cross_attention/out_proj': '1.EncDecAttention.o',
                'residual_1/norm': '0.layer_norm',
                'residual_2/norm': '1.layer_norm',
                'residual_3/norm': '2.layer_norm',
            },
        ),
        '{stack}/final/norm': '{stack}.final_layer_norm',
    }
    aliases = {
        'embedding': (
            'encoder.embed_tokens.weight',
            'decoder.embed_tokens.weight',
            'lm_head.weight',
        )
    }
    # Files of the original version contain this array, but models don't use it.
    computed = (
        r'decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight',
    )

    @classmethod
    def arrays_of(cls, config):
        name = config.feed_forward.name
        names = {'up': 'wi', 'down': 'wo'}
        if name != 'relu':
            names = {'gate': 'wi_0', 'up': 'wi_1', 'down': 'wo'}
        table = dict(cls.arrays)
        for stack, place in _PLACES.items():
            network = {
                f'feed_forward/{ours}': f'{place}.DenseReluDense.{theirs}'
                for ours, theirs in names.items()
            }
            table |= in_layers(_LAYER, network, stack)
        return table

    @classmethod
    def read(cls, theirs, names):
        # Models with unscaled logits have their own output matrix, if the file has one.
        # Configs state either property, or only one of them.
        is_tied = theirs.get('tie_word_embeddings', True)
        is_scaled = theirs.get('scale_decoder_outputs', is_tied)
        theirs = {
            'num_decoder_layers': theirs.get('num_layers'),
            **theirs,
            'scale_decoder_outputs': is_scaled,
            'tie_word_embeddings': is_scaled or 'lm_head.weight' not in names,
        }
        return super().read(theirs, names)
