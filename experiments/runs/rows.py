"""Parameters that go by ids, taken over for the ids of another tokenizer.

A row is kept where both have its piece; the others are those of a new model.
"""

from typing import NamedTuple

import jax
import numpy as np

from experiments.data.tokenizers.base import Tokenizer
from experiments.runtime import mesh
from experiments.runtime.mesh import DeviceMesh
from flaxformer_lite.models.base import Model
from flaxformer_lite.training import freezing

_OF_SOURCE = 'source_embedding'


class Kept(NamedTuple):
    """The rows of a parameter that have their pieces in both tokenizers.

    Attributes:
      here, there: the ids of these pieces, int [n] each.
      rows: how many the parameter has here.
    """

    here: np.ndarray
    there: np.ndarray
    rows: int

    @classmethod
    def of(cls, path: str, here: Tokenizer, there: Tokenizer) -> 'Kept':
        side = 0 if path.endswith(_OF_SOURCE) else 1
        new, old = (_pieces(tokenizer.sides[side]) for tokenizer in (here, there))
        known = {piece: i for i, piece in enumerate(old)}
        ids = [(i, known[piece]) for i, piece in enumerate(new) if piece in known]
        here_ids, there_ids = np.array(ids, int).reshape(-1, 2).T
        return cls(here_ids, there_ids, len(new))


def _pieces(tokenizer: Tokenizer) -> list[str]:
    return tokenizer.pieces(list(range(tokenizer.vocab_size)))


def resized(model: Model, other: Model, more: int = 0) -> Model:
    """A model with the vocabularies of another, or with so many ids more.

    Raises:
      ValueError: it shares embeddings that the other cannot share.
    """
    source = other.source_vocab_size
    return model.clone(
        vocab_size=other.vocab_size + more,
        source_vocab_size=None if source is None else source + more,
    )


def taken_over(
    model: Model,
    devices: DeviceMesh,
    seed: int,
    old: dict[str, jax.Array],
    kept: dict[str, Kept],
) -> dict[str, jax.Array]:
    """Parameters, by path, with the rows that are kept.

    Args:
      model: that gets them.
      seed: of its new rows.
      old: of the source.
      kept: which of their rows go where.
    """
    abstract = freezing.paths(mesh.abstract_variables(model, devices))

    def take(key: jax.Array, old: dict[str, jax.Array]) -> dict[str, jax.Array]:
        new = freezing.paths(mesh.first_variables(model)(key, {}))
        found = {}
        for path, (here, there, _) in kept.items():
            found[path] = new[path].at[here].set(old[path][there])
        return found

    shardings = {path: abstract[path].sharding for path in kept}
    return jax.jit(take, out_shardings=shardings)(devices.key(seed), old)
