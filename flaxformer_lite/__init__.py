"""The Transformer of "Attention Is All You Need" and its variants, as pure-function Flax modules.

`build.model` makes one of a config; `training`, `decode` and what stands here ask it.
"""

from flaxformer_lite import build, decode, learning, schedules, training
from flaxformer_lite.generation import generate
from flaxformer_lite.introspection import Record, record, statistics, switches
from flaxformer_lite.learning import batch

__version__ = '0.1.0'

__all__ = [
    'Record',
    'batch',
    'build',
    'decode',
    'generate',
    'learning',
    'record',
    'schedules',
    'statistics',
    'switches',
    'training',
]
