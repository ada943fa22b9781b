"""Which norm of CTranslate2's layers each of ours is."""

from collections.abc import Iterator, Mapping
from typing import Any

from flaxformer_lite.config import spec
from flaxformer_lite.config.schema import ModelConfig

# Of each sublayer: theirs of what goes in or of the sum, and of what comes out.
_BESIDE = {
    'self_attention': ('self_attention.layer_norm',),
    'cross_attention': ('attention.layer_norm',),
    'feed_forward': ('ffn.layer_norm',),
}
_SANDWICH = {
    'self_attention': ('input_layer_norm', 'post_attention_layer_norm'),
    'cross_attention': (
        'external_pre_encoder_attention_layer_norm',
        'external_post_encoder_attention_layer_norm',
    ),
    'feed_forward': ('pre_feedforward_layer_norm', 'post_feedforward_layer_norm'),
}


def fill(stack: Any, params: Mapping[str, Any], config: ModelConfig) -> None:
    """All norms of a stack but those of queries and keys."""
    offset = spec.parse(config.norm)[1].get('offset', 0.0)
    for theirs, ours in _pairs(stack, params):
        theirs.gamma = offset + ours['scale']
        if 'bias' in ours:
            theirs.beta = ours['bias']


def _pairs(stack: Any, params: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Each of their norms, and the parameters of ours."""
    if 'embedding_norm' in params:
        yield stack.layernorm_embedding, params['embedding_norm']
    if 'final' in params:
        yield stack.layer_norm, params['final']['norm']
    for i, layer in enumerate(stack.layer):
        ours = params[f'layer_{i}']
        names = _SANDWICH if 'norm_after' in ours['residual_1'] else _BESIDE
        sublayers = [name for name in names if name in ours]
        for number, sublayer in enumerate(sublayers, 1):
            residual = ours[f'residual_{number}']
            for path, own in zip(names[sublayer], ('norm', 'norm_after'), strict=False):
                yield _at(layer, path), residual[own]


def _at(layer: Any, path: str) -> Any:
    for name in path.split('.'):
        layer = getattr(layer, name)
    return layer
