"""Options for rematerialization (gradient checkpointing; Chen et al. 2016)."""

from typing import Annotated

from flaxformer_lite.validation import Choices

NONE = 'none'  # no rematerialization: saves everything that the backward pass reads
BLOCKS = 'blocks'  # saves only the inputs of each layer
# Policies of `jax.checkpoint_policies`, which save more than the layers' inputs. In
# ascending order of memory.
POLICIES = (
    'nothing_saveable',
    'dots_with_no_batch_dims_saveable',
    'dots_saveable',
    'everything_saveable',
)
Remat = Annotated[str, Choices(NONE, BLOCKS, *POLICIES)]
