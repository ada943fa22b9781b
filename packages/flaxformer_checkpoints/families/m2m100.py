"""M2M100 (Fan et al. 2021) and NLLB-200 (NLLB Team 2022)."""

from flaxformer_checkpoints.families.bart import Bart, switches


class M2m100(Bart):
    """Pre-norm, sinusoids of tensor2tensor from position 2, no output bias."""

    model_types = ('m2m_100',)
    architecture = 'M2M100ForConditionalGeneration'
    fields = {
        **Bart.fields,
        'positions': 'sinusoidal_t2t(offset=2)',
        'norm_embeddings': False,
        'residual': 'pre_norm',
        'output_bias': False,
    }
    defaults = {
        **Bart.defaults,
        'activation_function': 'relu',
        'scale_embedding': True,
        'max_position_embeddings': 1024,
    }
    # The first position is the padding id + 1.
    expected = {**switches(fields), 'pad_token_id': 1}
    computed = (r'model\.(encoder|decoder)\.embed_positions\.weights?',)
