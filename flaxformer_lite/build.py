"""A model's config → its modules: strings become parts here, once, and nowhere else."""

from typing import Any

import jax.numpy as jnp
from flax import linen as nn

from flaxformer_lite import decoder, encoder, spec
from flaxformer_lite.dropout import Dropout
from flaxformer_lite.multi_head import MultiHead
from flaxformer_lite.transformer import TIES, Transformer

DTYPES = {'float32': jnp.float32, 'bfloat16': jnp.bfloat16}


def transformer(config: Any, vocab_size: int) -> Transformer:
    """The Transformer that a `model` config describes, source and target with one vocabulary.

    Args:
      config: fields as attributes: d_model, num_layers, num_heads, d_k and d_v (None: d_model /
        num_heads), d_ff, dropout, tie, dtype, and the spec strings attention, cross_attention
        (None: as attention), positions, norm, residual, feed_forward.
      vocab_size: number of tokens.

    Raises:
      ValueError: a value that cannot be built; the message names the field.
    """
    check(config)
    dtype = DTYPES[config.dtype]
    dropout = Dropout(config.dropout)
    norm = _make('norm', 'norms', config.norm)
    residual = _make('residual', 'residual', config.residual, norm=norm, dropout=dropout)
    none = spec.make('flaxformer_lite.positions', 'none')
    feed_forward = _make(
        'feed_forward', 'feed_forward', config.feed_forward, d_ff=config.d_ff, dtype=dtype
    )

    def attention(field: str, text: str, positions: nn.Module) -> MultiHead:
        width = config.d_model // config.num_heads
        return MultiHead(
            d_model=config.d_model,
            num_heads=config.num_heads,
            d_k=config.d_k or width,
            d_v=config.d_v or width,
            attend=_make(field, 'attention', text),
            positions=positions,
            dtype=dtype,
        )

    def positions() -> nn.Module:
        # One for each place: a module that stands in two places shares its weights between them.
        return _make('positions', 'positions', config.positions)

    own = attention('attention', config.attention, positions())
    # A source position is not at a distance from a target position: cross-attention sees none.
    cross = attention('cross_attention', config.cross_attention or config.attention, none)
    stack = dict(num_layers=config.num_layers, dropout=dropout)
    parts = dict(attention=own, feed_forward=feed_forward, residual=residual)
    return Transformer(
        encoder=encoder.Encoder(encoder.Block(**parts), positions=positions(), **stack),
        decoder=decoder.Decoder(
            decoder.Block(**parts, cross_attention=cross), positions=positions(), **stack
        ),
        d_model=config.d_model,
        source_vocab=vocab_size,
        target_vocab=vocab_size,
        tie=config.tie,
        dtype=dtype,
    )


def check(config: Any) -> None:
    """Refuses numbers that cannot be built, by name and before anything is made.

    Raises:
      ValueError: names the field, the value and what it may be.
    """
    for field in ('d_model', 'num_layers', 'num_heads', 'd_k', 'd_v', 'd_ff'):
        value = getattr(config, field)
        if value is not None and value < 1:
            raise ValueError(f'model.{field} must be at least 1, not {value}')
    if not 0 <= config.dropout < 1:
        raise ValueError(f'model.dropout must be at least 0 and below 1, not {config.dropout}')
    derived = config.d_k is None or config.d_v is None
    if derived and config.d_model % config.num_heads:
        raise ValueError(
            f'model.d_model={config.d_model} cannot be divided among '
            f'model.num_heads={config.num_heads}: change one, or set model.d_k and model.d_v'
        )
    if config.positions.split('(')[0].strip() == 'sinusoidal' and config.d_model % 2:
        raise ValueError(
            f'model.d_model={config.d_model} must be even for model.positions=sinusoidal'
        )
    for field, names in (('tie', TIES), ('dtype', DTYPES)):
        if getattr(config, field) not in names:
            value = getattr(config, field)
            raise ValueError(f'model.{field} must be one of {", ".join(names)}, not {value!r}')


def _make(field: str, kind: str, text: str, **defaults: Any) -> nn.Module:
    try:
        return spec.make(f'flaxformer_lite.{kind}', text, **defaults)
    except ValueError as error:
        raise ValueError(f'model.{field}: {error}') from None
