"""Published checkpoints, read and written: eleven families of Transformers.

Uses `flaxformer_lite`; the conversion of runs also needs `experiments`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flaxformer_checkpoints.loading.load import (
        describe_pretrained as describe_pretrained,
    )
    from flaxformer_checkpoints.loading.load import from_pretrained as from_pretrained
    from flaxformer_checkpoints.loading.load import to_pretrained as to_pretrained

__all__ = ['describe_pretrained', 'from_pretrained', 'to_pretrained']


def __getattr__(name: str) -> Any:
    """Imports the public names on first use, because they import JAX."""
    if name not in __all__:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    from flaxformer_checkpoints.loading import load

    return getattr(load, name)


def __dir__() -> list[str]:
    return __all__
