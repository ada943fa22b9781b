"""Linear layers of attention and feed-forward networks.

A model takes one as `dense`. Derive your own from `Dense`.

- `Dense`: x W + b
- `LoRA`: x W + b with a low-rank update, for fine-tuning
"""

from typing import TYPE_CHECKING

from flaxformer_lite.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from flaxformer_lite.layers.dense.base import Dense as Dense
    from flaxformer_lite.layers.dense.lora import LoRA as LoRA
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
