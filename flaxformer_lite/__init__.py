"""The Transformer of "Attention Is All You Need" and its variants, as pure-function Flax modules.

`build.model` makes one of a config; `training`, `decode` and what stands here ask it.
"""

from flaxformer_lite.introspection import Record, record, statistics, switches

__all__ = ['Record', 'record', 'statistics', 'switches']
