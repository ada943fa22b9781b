"""Prefix language model (Liu et al. 2018; Raffel et al. 2020)."""

from flaxformer_lite.models.decoder_only import DecoderOnly


class PrefixLM(DecoderOnly):
    """Decoder-only model with bidirectional attention within the source.

    The mask is causal over the target (Raffel et al. 2020, §3.2.1). Use it to ask what
    a separate encoder adds.

    Examples:
      >>> import flaxformer_lite as fl
      >>> list(fl.PrefixLM(vocab_size=100, num_layers=2).stacks())
      ['decoder']
    """

    roles = {'decoder': 'prefix_only'}

    def mask(self, tokens, source_length):
        return tokens.prefix_mask(source_length)
