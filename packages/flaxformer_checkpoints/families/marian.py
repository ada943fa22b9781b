"""Marian (Junczys-Dowmunt et al. 2018), the architecture of OPUS-MT."""

from flaxformer_checkpoints.families.bart import Bart, switches


class Marian(Bart):
    """Post-norm, sinusoids with the sines first, and a logit bias."""

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
    expected = {**switches(fields), 'share_encoder_decoder_embeddings': True}
    computed = (r'model\.(encoder|decoder)\.embed_positions\.weight',)
