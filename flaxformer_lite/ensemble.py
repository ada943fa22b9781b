"""Several models of one vocabulary as one, for decoding: the mean of their probabilities."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from flaxformer_lite.architectures.base import Memory, Model
from flaxformer_lite.shapes import Path, Remembered


class Ensemble(nn.Module):
    """p(y_t | y_<t, x) = 1/M Σ_m p_m(y_t | y_<t, x): logits are the logarithm of that mean.

    `start` and `step` are those of `Model`, and `grow` makes room in its memory.

    Attributes:
      models: any models with `start` and `step`, each an object of its own.
    """

    models: Sequence[Model]

    @property
    def max_length(self) -> int | None:
        """The least of the models' own."""
        lengths = [model.max_length for model in self.models]
        return min((x for x in lengths if x is not None), default=None)

    def start(self, source_BS: jax.Array) -> Memory:
        """Each model reads the source once."""
        memories = [model.start(source_BS) for model in self.models]
        contexts = tuple(context for context, _ in memories)
        return contexts, tuple(_Caches(caches) for _, caches in memories)

    def step(
        self, token_BN: jax.Array, memory: Memory, path: Path
    ) -> tuple[jax.Array, Memory]:
        """The next token of each hypothesis → log of the mean probability, new memory."""
        logs = []
        memories = []
        for model, context, caches in zip(self.models, *memory, strict=True):
            logits_BNV, own = model.step(token_BN, (context, caches.caches), path)
            logs.append(jax.nn.log_softmax(logits_BNV))
            memories.append(own)
        sum_BNV = jax.nn.logsumexp(jnp.stack(logs), axis=0)
        contexts = tuple(context for context, _ in memories)
        caches = tuple(_Caches(caches) for _, caches in memories)
        return sum_BNV - jnp.log(len(logs)), (contexts, caches)


class _Caches(struct.PyTreeNode):
    """The layers' caches of one model."""

    caches: tuple[Remembered, ...]

    def grow(self, hypotheses: int, tokens: int) -> '_Caches':
        return _Caches(tuple(x.grow(hypotheses, tokens) for x in self.caches))


def ensemble(models: Sequence[Model]) -> Ensemble:
    """The models as one; one model may be there several times, with other variables."""
    return Ensemble(tuple(model.copy(parent=None, name=None) for model in models))


def variables(of_models: Sequence[Any]) -> Any:
    """The ensemble's variables from those of its models, in order."""
    collections: dict[str, Any] = {}
    for number, own in enumerate(of_models):
        for name, tree in own.items():
            collections.setdefault(name, {})[f'models_{number}'] = tree
    return collections
