"""The fields of a `model` config: what those that name files name, and what the others may be."""

import contextlib
from typing import Annotated, Any

import jax.numpy as jnp

from flaxformer_lite import ranges, spec
from flaxformer_lite.architectures.base import TIES
from flaxformer_lite.ranges import Choices, Range, Rate

# The folder whose files a field names. Of the first five a decoder may have its own.
FOLDERS = {
    kind: kind for kind in ('attention', 'positions', 'residual', 'feed_forward')
}
FOLDERS |= {'norm': 'norms'}
FOLDERS |= {f'decoder_{kind}': folder for kind, folder in FOLDERS.items()}
FOLDERS |= {f'cross_{kind}': kind for kind in ('attention', 'positions')}
FOLDERS |= {'architecture': 'architectures', 'init': 'init'}
DTYPES = {'float32': jnp.float32, 'bfloat16': jnp.bfloat16}
# What lives and dies together in dropout: axes of x_BTD.
DROPOUTS = {'elements': (), 'tokens': (-1,)}
# More is mistyped; and each layer takes a tenth of a second to trace.
Width = Annotated[int, Range(at_least=1, at_most=2**24)]
WidthOrEmpty = Annotated[int | None, Range(at_least=1, at_most=2**24)]
HEADS = Range(at_least=1, at_most=2**16)
# What each field may be.
FIELDS: dict[str, Any] = {
    'd_model': Width,
    'num_layers': Annotated[int, Range(at_least=1, at_most=1000)],
    'num_heads': Annotated[int, HEADS],
    'num_kv_heads': Annotated[int | None, HEADS],
    'd_k': WidthOrEmpty,
    'd_v': WidthOrEmpty,
    'd_ff': Width,
    'dropout': Rate,
    'head_dropout': Rate,
    'layer_drop': Rate,
    'dropout_kind': Annotated[str, Choices(*DROPOUTS)],
    'tie': Annotated[str, Choices(*TIES)],
    'dtype': Annotated[str, Choices(*DTYPES)],
    'projections': bool,
    'parallel': bool,
    'scale_embeddings': bool,
}
_EMPTY = ('init', 'cross_attention', *(x for x in FOLDERS if x.startswith('decoder_')))
FIELDS |= {field: str | None if field in _EMPTY else str for field in FOLDERS}
# What parts are told of the model, and a spec cannot give: it is one for them all. d_ff is not.
TOLD = ('d_model', 'num_heads', 'num_kv_heads', 'd_k', 'd_k_given', 'd_v', 'vocab_size')
TOLD += ('stack', 'causal', 'encoder_layers', 'decoder_layers', 'num_layers')
TOLD += ('tie', 'scale_embeddings')


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
      ValueError: as `spec.make`, and where the spec gives what is the model's, such as `d_k`; the
        message names the field.
    """
    with _naming(field):
        for argument in spec.parse(text)[1]:
            if argument in TOLD:
                raise ValueError(
                    f'{argument} is that of the whole model: leave it out here'
                )
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
    for field, annotation in FIELDS.items():
        ranges.check(f'model.{field}', annotation, config[field])
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
