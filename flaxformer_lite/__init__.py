"""The Transformer of "Attention Is All You Need" and its variants, in JAX and Flax.

`build.model` builds a model from a config and `make_batch` makes training batches.
`init_state` and `make_train_step` train the model; `generate` decodes.
"""
# ruff: noqa: F403, F405 (type checkers follow the star)

import re
from importlib import metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flaxformer_lite.public import *

__version__ = '0.3.0'

OLDEST_JAX = '0.7.2'

__all__ = [
    'LossScale',
    'Record',
    'TokenScores',
    'TrainState',
    'attention_stats',
    'build',
    'decoding',
    'ensemble',
    'ensemble_variables',
    'generate',
    'init_state',
    'intervene',
    'interventions',
    'log_probs',
    'loss_sums',
    'make_batch',
    'make_train_step',
    'ops',
    'record',
    'schedules',
    'sharding',
]

# Former names → their replacements.
_REPLACEMENTS = {
    'ablation_masks': 'intervene({name: interventions.scale(0.0, heads=[…])})',
    'describe_pretrained': 'flaxformer_checkpoints.describe_pretrained',
    'explanations': 'flaxformer_explain.explanations',
    'from_pretrained': 'flaxformer_checkpoints.from_pretrained',
    'patch': 'intervene({name: interventions.set_to(value)})',
    'to_pretrained': 'flaxformer_checkpoints.to_pretrained',
}


def _check_jax_version() -> None:
    """Reads the package metadata, because importing JAX is slow."""
    try:
        found = metadata.version('jax')
    except metadata.PackageNotFoundError:
        return  # JAX is missing, or built from source
    if _release(found) < _release(OLDEST_JAX):
        raise ImportError(
            f'jax: version {found} is too old. '
            f"Install a newer one: pip install -U 'jax>={OLDEST_JAX}' flax.",
            name='jax',
        )


def _release(version: str) -> list[int]:
    return [int(number) for number in re.findall('[0-9]+', version)[:3]]


_check_jax_version()


def __getattr__(name: str) -> Any:
    """Imports the public names on first use, so configs can be read without JAX."""
    if name in _REPLACEMENTS:
        raise AttributeError(f'{__name__}.{name} is now {_REPLACEMENTS[name]}')
    if name not in __all__:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    from flaxformer_lite import public

    return getattr(public, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
