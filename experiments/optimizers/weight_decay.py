"""Which parameters weight decay draws to 0."""

from typing import Any

import jax

# The matrices of linear maps, and the tables of embeddings and of logits.
DECAYING = ('kernel', 'embedding', 'source_embedding', 'output')


def decays(params: Any) -> Any:
    """True for what decays: matrices of linear maps, tables of embeddings and logits.

    Their entries are many, can overfit, and mean least at 0. All else stays: an entry
    of a bias or of a norm's scale sets the level of one feature; a table of positions
    says where tokens stand; and what an attention has of its own may start as the
    identity, as `bilinear`'s and `talking_heads`' matrices do, where 0 would mean that
    nothing is attended to.
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, w: path[-1].key in DECAYING, params
    )
