"""What the backward pass keeps of a layer, and what it computes again.

Rematerialisation, or gradient checkpointing (Chen et al. 2016, "Training Deep Nets with
Sublinear Memory Cost"), takes time for memory and changes no result. This file only
names the choices: a config is read without JAX.
"""

from typing import Annotated

from flaxformer_lite.ranges import Choices

NONE = 'none'  # everything is kept that the backward pass reads
BLOCKS = 'blocks'  # the inputs of each layer are kept
# What policies of this name in `jax.checkpoint_policies` save is kept too. From the
# least to the most.
POLICIES = (
    'nothing_saveable',
    'dots_with_no_batch_dims_saveable',
    'dots_saveable',
    'everything_saveable',
)
Remat = Annotated[str, Choices(NONE, BLOCKS, *POLICIES)]
