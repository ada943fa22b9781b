"""Which fields of a model CTranslate2 computes as we do, and why not the others."""

from typing import Any

from experiments.errors import UserError
from flaxformer_lite.config import spec, variants
from flaxformer_lite.config.schema import ModelConfig
from flaxformer_lite.sizes import Sizes

# Kind → variant → the arguments that are written, or change nothing after training.
_VARIANTS: dict[str, dict[str, tuple[str, ...]]] = {
    'attention': {
        'softmax': ('dropout', 'scale', 'query_key_norm', 'query_key_offset')
    },
    'positions': {
        'none': (),
        'sinusoidal': ('interleaved', 'offset'),
        'sinusoidal_t2t': ('offset',),
        'learned': ('max_length', 'offset'),
        'rotary': ('max_wavelength', 'scale'),
        'shaw': ('max_distance',),
        't5': ('buckets', 'max_distance'),
        'alibi': (),
    },
    'norm': {'layer': ('epsilon',), 'rms': ('epsilon', 'offset')},
    'residual': {'post_norm': (), 'pre_norm': (), 'sandwich': ()},
    'feed_forward': {
        'relu': ('dropout', 'bias', 'd_ff'),
        'gelu': ('dropout', 'bias', 'd_ff', 'tanh'),
        'silu': ('dropout', 'bias', 'd_ff'),
        'geglu': ('dropout', 'bias', 'd_ff', 'tanh'),
        'swiglu': ('dropout', 'bias', 'd_ff'),
    },
}
# Field → the value that it must have, and why.
_FIXED: dict[str, tuple[Any, str]] = {
    'architecture': ('encoder_decoder', 'a translator there has both stacks'),
    'cross_positions': ('none', 'attention to the source has no positions there'),
    'continuous_positions': (False, "the decoder's positions begin at 0 there"),
    'merged_attention': (False, 'what is merged there gave other logits than ours'),
    'projections': (True, 'an attention has four matrices there'),
    'parallel': (False, 'blocks side by side do not attend to the source there'),
    'logit_cap': (None, 'the bias that keeps padding out would be capped, too'),
}
# It has one ε for all norms, and ours of queries and keys is always this one.
_HEAD_EPSILON = 1e-6


def check(config: ModelConfig) -> None:
    """Refuses a model that CTranslate2 does not compute.

    Raises:
      UserError: names the first field, its value and the reason.
    """
    for field, (wanted, why) in _FIXED.items():
        if getattr(config, field) != wanted:
            raise _refusal(config, field, why)
    for field in variants.fields():
        if spec.entries(getattr(config, field) or '') != [getattr(config, field) or '']:
            raise _refusal(config, field, 'the layers of a stack are alike there')
    for kind, roles in (
        ('attention', ('encoder', 'decoder', 'cross')),
        ('positions', ('encoder', 'decoder')),
        ('norm', ('encoder',)),
        ('residual', ('encoder', 'decoder')),
        ('feed_forward', ('encoder', 'decoder')),
    ):
        for role in roles:
            _check_variant(config, kind, role)
    _check_twice(config)
    for role, sizes in attentions(config).items():
        _check_head_norm(config, role, sizes)


def attentions(config: ModelConfig) -> dict[str, Sizes]:
    """The sizes of each kind of attention that a model has, by its role."""
    return {
        'encoder': config.sizes('encoder'),
        'decoder': config.sizes('decoder'),
        'cross': config.cross_sizes(),
    }


def _refusal(config: ModelConfig, field: str, why: str) -> UserError:
    value = getattr(config, field)
    return UserError(f'--to=ctranslate2 cannot have model.{field}={value}: {why}')


def _check_variant(config: ModelConfig, kind: str, role: str) -> None:
    field = config.deciding_field(kind, role)
    name, given = spec.parse(getattr(config, field))
    if kind == 'residual' and given.get('final') is False:
        given = {}
    known = _VARIANTS[kind]
    if name not in known:
        raise _refusal(config, field, f'there it is {", ".join(known)}')
    for argument in given:
        if argument not in known[name]:
            raise _refusal(config, field, f'{name} has no {argument} there')
    if name == 'alibi' and role == 'encoder':
        raise _refusal(config, field, 'only a decoder has it there')


def _check_twice(config: ModelConfig) -> None:
    """Refuses what CTranslate2 has once, and a config twice."""
    for field in ('decoder_norm', 'cross_num_heads'):
        role = 'decoder' if field.startswith('cross') else 'encoder'
        plain = field.partition('_')[2]
        value = config.value(plain, role)
        if getattr(config, field) not in (None, value):
            raise _refusal(config, field, f'there it is that of the rest, {value}')


def _check_head_norm(config: ModelConfig, role: str, sizes: Sizes) -> None:
    """Refuses norms of queries and keys that would be others there."""
    field = config.deciding_field('attention', role)
    if not spec.parse(getattr(config, field))[1].get('query_key_norm'):
        return
    if role == 'cross':
        why = 'the norms of attention to the source are of all heads together there'
        raise _refusal(config, field, why)
    if spec.parse(config.norm)[1].get('epsilon', _HEAD_EPSILON) != _HEAD_EPSILON:
        why = f'with model.norm={config.norm} these norms have another epsilon there'
        raise _refusal(config, field, why)
    if sizes.d_k < sizes.d_v:
        why = f'heads of d_k={sizes.d_k} are as wide as d_v={sizes.d_v} there'
        raise _refusal(config, field, f'{why}, and the norm is of both')
