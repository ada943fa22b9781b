"""Diverse beam search (Vijayakumar et al. 2018)."""

from typing import Annotated

import jax
import jax.numpy as jnp

from flaxformer_lite.decoding.strategies.base import flat
from flaxformer_lite.decoding.strategies.beam import BeamSearch
from flaxformer_lite.ops.top_k import top_k_indices
from flaxformer_lite.validation import Range, Size


class DiverseBeamSearch(BeamSearch):
    """Groups of beams that avoid the tokens chosen by earlier groups.

    At each step the groups choose in turn (algorithm 1, with the Hamming diversity of
    §4). A continuation loses λ for each of an earlier group's `beams / groups` best
    that has its token. The penalty doesn't affect scores, which rank the results of all
    groups.

    Source: Vijayakumar et al. 2018. Use it if you need several different results.

    Attributes:
      beams: Live hypotheses and results of all groups together.
      diversity: λ; 0 makes all groups equal.

    Raises:
      ValueError: `groups` doesn't divide `beams`.

    Examples:
      >>> import flaxformer_lite as fl
      >>> strategy = fl.decoding.DiverseBeamSearch(beams=8, groups=4)
    """

    groups: Size = 4
    # A larger λ swamps the log-probabilities in float32.
    diversity: Annotated[float, Range(at_least=0, at_most=1_000)] = 0.5

    def __post_init__(self):
        super().__post_init__()
        if self.beams % self.groups:
            raise ValueError(
                f'DiverseBeamSearch.beams={self.beams} cannot be divided among '
                f'groups={self.groups}. Give a multiple of it.'
            )

    @property
    def hypothesis_groups(self):
        return self.groups

    def choose(self, state, logits_BNV, total_BNV):
        batch, _, vocab_size = total_BNV.shape
        width = self.beams // self.groups
        rows_B1 = jnp.arange(batch)[:, None]

        def choose_of_group(chosen_BV, group):
            of_group_BNV = jax.lax.dynamic_slice_in_dim(
                total_BNV, group * width, width, 1
            )
            penalty_BV = self.diversity * chosen_BV
            penalised_BC = flat(of_group_BNV - penalty_BV[:, None])
            index_BM = top_k_indices(penalised_BC, 2 * width)
            best_BN = index_BM[:, :width]
            scores_BN = jnp.take_along_axis(penalised_BC, best_BN, 1)
            exists_BN = jnp.isfinite(scores_BN)
            chosen_BV = chosen_BV.at[rows_B1, best_BN % vocab_size].add(exists_BN)
            return chosen_BV, index_BM + group * width * vocab_size

        nothing_BV = jnp.zeros((batch, vocab_size))
        _, index_GBM = jax.lax.scan(
            choose_of_group, nothing_BV, jnp.arange(self.groups)
        )
        return jnp.moveaxis(index_GBM, 0, 1).reshape(batch, -1)
