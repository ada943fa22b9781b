"""The model that is exported."""

from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.config.schema import ExperimentConfig
from experiments.data.tokenizers.base import UNK, Tokenizer
from flaxformer_lite.models.base import Model


class Trained(NamedTuple):
    """A run's model with the variables that the run is scored with."""

    config: ExperimentConfig
    tokenizer: Tokenizer
    model: Model
    variables: Any

    @property
    def longest(self) -> int:
        """The longest target that the run writes for a source of its training."""
        return self.config.batch.max_length + self.config.evaluation.extra_length


def draw_tokens(model: Model, length: int) -> np.ndarray:
    """Draws four rows of tokens, within the model's positions."""
    length = min(length, (model.max_length or length + 1) - 1)
    draw = np.random.default_rng(length).integers
    return draw(UNK + 1, model.vocab_size, (4, length), np.int32)


def logits(model: Model, variables: Any, source_BS: Any, inputs_BT: Any) -> np.ndarray:
    """Returns logits BTV with teacher forcing, in full float32 on any device."""
    with jax.default_matmul_precision('highest'):
        return np.array(jax.jit(model.apply)(variables, source_BS, inputs_BT))
