"""Marian (Junczys-Dowmunt et al. 2018), the models of OPUS-MT."""

from flaxformer_lite.families.bart import Bart


class Marian(Bart):
    """Post-norm, sinusoids with the sines first, and a bias of the logits."""

    model_types = ('marian',)
    architecture = 'MarianMTModel'
    fields = {
        **Bart.fields,
        'positions': 'sinusoidal(interleaved=False)',
        'norm_embeddings': False,
    }
    defaults = {
        **Bart.defaults,
        'max_position_embeddings': 1024,
        'pad_token_id': 58100,
        'eos_token_id': 0,
        'decoder_start_token_id': 58100,
    }
    expected = {
        'tie_word_embeddings': True,
        'share_encoder_decoder_embeddings': True,
        'normalize_before': False,
        'normalize_embedding': False,
        'add_final_layer_norm': False,
        'static_position_embeddings': True,
    }
    computed = (r'model\.(encoder|decoder)\.embed_positions\.weight',)
