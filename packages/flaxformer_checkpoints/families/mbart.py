"""mBART (Liu et al. 2020) and mBART-50 (Tang et al. 2020)."""

from flaxformer_checkpoints.families.bart import Bart, switches


class Mbart(Bart):
    """BART with pre-norm."""

    model_types = ('mbart',)
    architecture = 'MBartForConditionalGeneration'
    fields = {**Bart.fields, 'residual': 'pre_norm'}
    expected = switches(fields)
