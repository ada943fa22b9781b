"""The `model` config: its fields, spec strings, and the modules built from them.

    model = fl.config.build({'attention': 'local(window=64)'}, vocab_size=8_000)

A config is a `ModelConfig` or a dictionary of its fields. A spec string names a
component and its arguments; it is parsed to a `Component`. `build` returns a model, and
`entity_encoder` a stack for a set of vectors.
"""

from typing import TYPE_CHECKING

from flaxformer_lite.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from flaxformer_lite.config.builder import build as build
    from flaxformer_lite.config.builder import entity_encoder as entity_encoder
    from flaxformer_lite.config.schema import ModelConfig as ModelConfig
    from flaxformer_lite.config.spec import Component as Component
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
