"""mT5 (Xue et al. 2021)."""

from flaxformer_checkpoints.families.t5 import T5


class Mt5(T5):
    """T5 v1.1 with a multilingual vocabulary (101 languages)."""

    model_types = ('mt5',)
    architecture = 'MT5ForConditionalGeneration'
    defaults = {**T5.defaults, 'feed_forward_proj': 'gated-gelu'}

    @classmethod
    def read(cls, theirs, names):
        return super().read({**theirs, 'scale_decoder_outputs': False}, names)
