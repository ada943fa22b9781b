"""Pegasus (Zhang et al. 2020)."""

from flaxformer_checkpoints.families.bart import switches
from flaxformer_checkpoints.families.marian import Marian


class Pegasus(Marian):
    """Marian with pre-norm."""

    model_types = ('pegasus',)
    architecture = 'PegasusForConditionalGeneration'
    fields = {**Marian.fields, 'residual': 'pre_norm'}
    defaults = {
        **Marian.defaults,
        'pad_token_id': 0,
        'eos_token_id': 1,
        'decoder_start_token_id': 0,
    }
    expected = switches(fields)
