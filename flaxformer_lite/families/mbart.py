"""mBART (Liu et al. 2020) and mBART-50 (Tang et al. 2020)."""

from flaxformer_lite.families.bart import Bart


class Mbart(Bart):
    """BART with pre-norm."""

    model_types = ('mbart',)
    architecture = 'MBartForConditionalGeneration'
    fields = {**Bart.fields, 'residual': 'pre_norm'}
    expected = {
        'tie_word_embeddings': True,
        'normalize_before': True,
        'normalize_embedding': True,
        'add_final_layer_norm': True,
        'static_position_embeddings': False,
    }
