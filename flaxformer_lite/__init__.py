"""The Transformer of "Attention Is All You Need" and its variants, in JAX and Flax.

    import flaxformer_lite as fl
    model = fl.Transformer(vocab_size=8000, d_model=128, norm=fl.norms.RMSNorm())

Models are linen modules: `Transformer`, `DecoderOnly`, `PrefixLM`,
`MultiTokenTransformer` and `RecurrentEncoderDecoder`. `config.build` builds one from a
config.

- Training: `make_batch`, `init_state`, `make_train_step`
- Decoding: `generate`, with strategies and processors of `decoding`
- Scores of given targets: `log_probs`
- Activations: `record` returns them, and `intervene` changes them

Components are in `attention`, `positions`, `norms`, `residual`, `feed_forward`,
`blocks`, `init`, `dense`, `losses`, `schedules` and `decoding`: `help(fl.decoding)`
lists them.
"""

import re
from importlib import metadata
from typing import TYPE_CHECKING, Any

from flaxformer_lite.lazy_exports import lazy_exports

# The public names; docs/reference/api.md shows them in this order.
if TYPE_CHECKING:
    from flaxformer_lite import attention as attention
    from flaxformer_lite import config as config
    from flaxformer_lite import decoding as decoding
    from flaxformer_lite import feed_forward as feed_forward
    from flaxformer_lite import init as init
    from flaxformer_lite import interventions as interventions
    from flaxformer_lite import losses as losses
    from flaxformer_lite import norms as norms
    from flaxformer_lite import ops as ops
    from flaxformer_lite import positions as positions
    from flaxformer_lite import residual as residual
    from flaxformer_lite import sharding as sharding
    from flaxformer_lite import testing as testing
    from flaxformer_lite.ensembling import Ensemble as Ensemble
    from flaxformer_lite.generation import generate as generate
    from flaxformer_lite.interventions.context import intervene as intervene
    from flaxformer_lite.introspection import Record as Record
    from flaxformer_lite.introspection import attention_stats as attention_stats
    from flaxformer_lite.introspection import record as record
    from flaxformer_lite.layers import blocks as blocks
    from flaxformer_lite.layers import dense as dense
    from flaxformer_lite.models.base import Embeddings as Embeddings
    from flaxformer_lite.models.base import Model as Model
    from flaxformer_lite.models.decoder_only import DecoderOnly as DecoderOnly
    from flaxformer_lite.models.encoder_decoder import Transformer as Transformer
    from flaxformer_lite.models.multi_token import (
        MultiTokenTransformer as MultiTokenTransformer,
    )
    from flaxformer_lite.models.prefix_lm import PrefixLM as PrefixLM
    from flaxformer_lite.models.recurrent import (
        RecurrentEncoderDecoder as RecurrentEncoderDecoder,
    )
    from flaxformer_lite.networks import CrossOverrides as CrossOverrides
    from flaxformer_lite.networks import DecoderOverrides as DecoderOverrides
    from flaxformer_lite.networks import DropoutRates as DropoutRates
    from flaxformer_lite.networks import EntityEncoder as EntityEncoder
    from flaxformer_lite.networks import Projections as Projections
    from flaxformer_lite.scoring import TokenScores as TokenScores
    from flaxformer_lite.scoring import log_probs as log_probs
    from flaxformer_lite.sizes import Sizes as Sizes
    from flaxformer_lite.special_tokens import SpecialTokens as SpecialTokens
    from flaxformer_lite.training import schedules as schedules
    from flaxformer_lite.training.batch import make_batch as make_batch
    from flaxformer_lite.training.loss import loss_sums as loss_sums
    from flaxformer_lite.training.loss_scale import LossScale as LossScale
    from flaxformer_lite.training.train_step import Metrics as Metrics
    from flaxformer_lite.training.train_step import TrainState as TrainState
    from flaxformer_lite.training.train_step import init_state as init_state
    from flaxformer_lite.training.train_step import make_train_step as make_train_step
else:
    _import, __dir__, __all__ = lazy_exports(__name__)

__version__ = '0.3.0'

OLDEST_JAX = '0.7.2'

# Former names → their replacements.
_REPLACEMENTS = {
    'build': 'config.build',
    'ensemble': 'Ensemble([(model, variables), …])',
    'ensemble_variables': 'Ensemble([(model, variables), …]).variables',
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


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _REPLACEMENTS:
            raise AttributeError(f'{__name__}.{name} is now {_REPLACEMENTS[name]}')
        return _import(name)
