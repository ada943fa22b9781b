"""The fields of a `model` config: what those that name files name, and what the others may be."""

import contextlib
import math
from typing import Any

import jax.numpy as jnp

from flaxformer_lite import spec
from flaxformer_lite.architectures.base import TIES

# The folder whose files a field names. Of the first five a decoder may have its own.
FOLDERS = {
    kind: kind for kind in ('attention', 'positions', 'residual', 'feed_forward')
}
FOLDERS |= {'norm': 'norms'}
FOLDERS |= {f'decoder_{kind}': folder for kind, folder in FOLDERS.items()}
FOLDERS |= {f'cross_{kind}': kind for kind in ('attention', 'positions')}
FOLDERS |= {'architecture': 'architectures', 'init': 'init'}
SIZES = ('d_model', 'num_layers', 'num_heads', 'num_kv_heads', 'd_k', 'd_v', 'd_ff')
RATES = ('dropout', 'head_dropout', 'layer_drop')
DTYPES = {'float32': jnp.float32, 'bfloat16': jnp.bfloat16}
# What lives and dies together in dropout: axes of x_BTD.
DROPOUTS = {'elements': (), 'tokens': (-1,)}
CHOICES = {'tie': TIES, 'dtype': DTYPES, 'dropout_kind': DROPOUTS}


def variants(field: str) -> list[str]:
    """The names that a field of `FOLDERS` may have."""
    return spec.available(f'flaxformer_lite.{FOLDERS[field]}')


def find(field: str, config: Any) -> Any:
    """The class that a field of a config names.

    Raises:
      ValueError: there is no such file; the message names the field.
    """
    with _naming(field):
        return spec.find(
            f'flaxformer_lite.{FOLDERS[field]}', spec.parse(config[field])[0]
        )


def make(field: str, text: str, **defaults: Any) -> Any:
    """The object that a spec in a field names, as `spec.make`.

    Raises:
      ValueError: as `spec.make`; the message names the field.
    """
    with _naming(field):
        return spec.make(f'flaxformer_lite.{FOLDERS[field]}', text, **defaults)


@contextlib.contextmanager
def _naming(field):
    try:
        yield
    except ValueError as error:
        raise ValueError(f'model.{field}: {error}') from None


def idle(config: Any) -> set[str]:
    """The fields that are not used by what others name.

    Raises:
      ValueError: there is no such architecture or residual.
    """
    architecture = find('architecture', config)
    names = set(architecture.idle)
    encoder = set() if 'residual' in names else set(find('residual', config).idle)
    if 'decoder' not in spec.parameters(architecture):
        return (
            names
            | encoder
            | {x for x in FOLDERS if x.startswith(('decoder_', 'cross_'))}
        )
    decoder = find(
        'decoder_residual' if config['decoder_residual'] else 'residual', config
    ).idle
    # What an encoder leaves alone its decoder may use.
    both = {x for x in encoder if x in decoder or config[f'decoder_{x}']}
    return names | both | {f'decoder_{x}' for x in decoder}


def check(config: Any) -> None:
    """Refuses what cannot be built, by name and before anything is made.

    Raises:
      ValueError: names the field, the value and what it may be.
    """
    for field in (*SIZES, *RATES):
        least, below = (1, math.inf) if field in SIZES else (0, 1)
        if config[field] is not None and not least <= config[field] < below:
            upper = '' if field in SIZES else ' and below 1'
            raise ValueError(
                f'model.{field} must be at least {least}{upper}, not {config[field]}'
            )
    for field, names in CHOICES.items():
        if config[field] not in names:
            names = ', '.join(names)
            raise ValueError(
                f'model.{field} must be one of {names}, not {config[field]!r}'
            )
    heads, kv_heads = config['num_heads'], config['num_kv_heads']
    derived = config['d_k'] is None or config['d_v'] is None
    if derived and config['d_model'] % heads and 'num_heads' not in idle(config):
        raise ValueError(
            f'model.d_model={config["d_model"]} cannot be divided among model.num_heads={heads}: '
            'change one, or set model.d_k and model.d_v'
        )
    if kv_heads and heads % kv_heads:
        raise ValueError(
            f'model.num_kv_heads={kv_heads} does not divide model.num_heads={heads}'
        )
    if not config['projections'] and any(
        config[x] for x in ('d_k', 'd_v', 'num_kv_heads')
    ):
        raise ValueError(
            'model.projections=False makes heads slices of d_model: leave model.d_k, model.d_v and '
            'model.num_kv_heads empty'
        )
