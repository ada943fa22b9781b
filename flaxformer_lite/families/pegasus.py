"""Pegasus (Zhang et al. 2020)."""

from flaxformer_lite.families.bart import Bart


class Pegasus(Bart):
    """Pre-norm, sinusoids with the sines first, and a bias of the logits."""

    model_types = ('pegasus',)
    architecture = 'PegasusForConditionalGeneration'
    fields = {
        **Bart.fields,
        'positions': 'sinusoidal(interleaved=False)',
        'norm_embeddings': False,
        'residual': 'pre_norm',
    }
    defaults = {
        **Bart.defaults,
        'max_position_embeddings': 1024,
        'pad_token_id': 0,
        'eos_token_id': 1,
        'decoder_start_token_id': 0,
    }
    expected = {
        'tie_word_embeddings': True,
        'normalize_before': True,
        'normalize_embedding': False,
        'add_final_layer_norm': True,
        'static_position_embeddings': True,
    }
    computed = (r'model\.(encoder|decoder)\.embed_positions\.weight',)
