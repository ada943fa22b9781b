"""What the numbers and words of a `model` config may be."""

from typing import Any

import jax.numpy as jnp

from flaxformer_lite import fields
from flaxformer_lite.architectures.base import TIES

DTYPES = {'float32': jnp.float32, 'bfloat16': jnp.bfloat16}
# What lives and dies together in dropout: axes of x_BTD.
DROPOUTS = {'elements': (), 'tokens': (-1,)}


def check(config: Any) -> None:
    """Refuses numbers that cannot be built, by name and before anything is made.

    Raises:
      ValueError: names the field, the value and what it may be.
    """
    for field in ('d_model', 'num_layers', 'num_heads', 'num_kv_heads', 'd_k', 'd_v', 'd_ff'):
        value = config[field]
        if value is not None and value < 1:
            raise ValueError(f'model.{field} must be at least 1, not {value}')
    for field in ('dropout', 'head_dropout', 'layer_drop'):
        if not 0 <= config[field] < 1:
            raise ValueError(f'model.{field} must be at least 0 and below 1, not {config[field]}')
    derived = config.d_k is None or config.d_v is None
    if derived and config.d_model % config.num_heads and 'num_heads' not in fields.idle(config):
        raise ValueError(
            f'model.d_model={config.d_model} cannot be divided among '
            f'model.num_heads={config.num_heads}: change one, or set model.d_k and model.d_v'
        )
    if config.num_kv_heads and config.num_heads % config.num_kv_heads:
        raise ValueError(
            f'model.num_kv_heads={config.num_kv_heads} does not divide '
            f'model.num_heads={config.num_heads}'
        )
    sliced = (config.d_k, config.d_v, config.num_kv_heads) == (None,) * 3
    if not config.projections and not sliced:
        raise ValueError(
            'model.projections=False makes heads slices of d_model: leave model.d_k, model.d_v and '
            'model.num_kv_heads empty'
        )
    for field, names in (('tie', TIES), ('dtype', DTYPES), ('dropout_kind', DROPOUTS)):
        if config[field] not in names:
            raise ValueError(
                f'model.{field} must be one of {", ".join(names)}, not {config[field]!r}'
            )
