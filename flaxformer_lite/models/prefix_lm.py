"""A decoder alone that sees all of its source (Liu et al. 2018; Raffel et al. 2020)."""

from flaxformer_lite.models.decoder_only import DecoderOnly


class PrefixLm(DecoderOnly):
    """As `decoder_only`, but tokens of the source see each other in both directions.

    Raffel et al. (2020, §3.2.1): a fully visible mask over the prefix, a causal one
    over the target.
    """

    role = 'prefix_only'

    def mask(self, tokens, source_length):
        return tokens.prefix_mask(source_length)
