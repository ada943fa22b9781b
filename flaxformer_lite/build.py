"""A model's config → its modules: strings become parts here, once, and nowhere else."""

from typing import Any

import jax.numpy as jnp

from flaxformer_lite import decoder, encoder, spec
from flaxformer_lite.dropout import Dropout, Skip
from flaxformer_lite.init.base import Init
from flaxformer_lite.multi_head import MultiHead
from flaxformer_lite.transformer import TIES, Transformer

DTYPES = {'float32': jnp.float32, 'bfloat16': jnp.bfloat16}
# What lives and dies together in dropout: axes of x_BTD.
DROPOUTS = {'elements': (), 'tokens': (-1,)}


def transformer(config: Any, vocab_size: int) -> Transformer:
    """The Transformer that a `model` config describes, source and target with one vocabulary.

    Args:
      config: fields as attributes; `configs/wmt_base.py` says what each is. d_k and d_v may be
        None (d_model / num_heads), as may num_kv_heads (num_heads), cross_attention (as attention),
        and init (xavier, or what the residual asks for).
      vocab_size: number of tokens.

    Raises:
      ValueError: a value that cannot be built; the message names the field.
    """
    check(config)
    parts = {stack: _Parts(config, stack) for stack in ('encoder', 'decoder')}
    return Transformer(
        encoder=parts['encoder'].encoder(),
        decoder=parts['decoder'].decoder(),
        d_model=config.d_model,
        source_vocab=vocab_size,
        target_vocab=vocab_size,
        tie=config.tie,
        scale_embeddings=config.scale_embeddings,
        dtype=DTYPES[config.dtype],
        initial=parts['encoder'].initial,
    )


class _Parts:
    """The parts of one stack."""

    def __init__(self, config: Any, stack: str):
        self.config, self.dtype = config, DTYPES[config.dtype]
        width = config.d_model // config.num_heads
        self.d_k, self.d_v = config.d_k or width, config.d_v or width
        # What a variant of any kind may ask for, by name.
        self.facts = dict(
            d_model=config.d_model,
            num_heads=config.num_heads,
            d_k=self.d_k,
            d_v=self.d_v,
            d_ff=config.d_ff,
            dtype=self.dtype,
            stack=stack,
            causal=stack == 'decoder',
            encoder_layers=config.num_layers,
            decoder_layers=config.num_layers,
        )
        self.dropout = Dropout(config.dropout, DROPOUTS[config.dropout_kind])
        norm = self.make('norm', 'norms')
        self.residual = self.make('residual', norm=norm, dropout=self.dropout)
        init = config.init or self.residual.initial
        self.initial: Init = _make('init', 'init', init, **self.facts)
        self.feed_forward = self.make('feed_forward', initial=self.initial)

    def make(self, field: str, kind: str = '', **others: Any) -> Any:
        return _make(field, kind or field, self.config[field], **self.facts, **others)

    def attention(self, attention: str, positions: str) -> MultiHead:
        """The multi-head attention of two of the config's fields."""
        config = self.config
        if attention == 'cross_attention' and not config.cross_attention:
            attention = 'attention'
        # One for each place: a module in two places would share its weights between them.
        placed = self.make(positions, 'positions')
        return MultiHead(
            d_model=config.d_model,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            d_k=self.d_k,
            d_v=self.d_v,
            attend=_make(attention, 'attention', config[attention]),
            positions=placed,
            head_dropout=Dropout(config.head_dropout, (1, 3)),
            dtype=self.dtype,
            initial=self.initial,
        )

    def shared(self) -> dict[str, Any]:
        """What the blocks of both stacks have."""
        return dict(
            attention=self.attention('attention', 'positions'),
            feed_forward=self.feed_forward,
            residual=self.residual,
            parallel=self.config.parallel,
        )

    def stack(self) -> dict[str, Any]:
        """What both stacks have around their blocks."""
        positions = self.make('positions')
        if positions.relative:  # they act within each attention, and the stack has none
            positions = _make('positions', 'positions', 'none')
        return dict(
            num_layers=self.config.num_layers,
            positions=positions,
            dropout=self.dropout,
            skip=Skip(self.config.layer_drop),
        )

    def encoder(self) -> encoder.Encoder:
        return encoder.Encoder(encoder.Block(**self.shared()), **self.stack())

    def decoder(self) -> decoder.Decoder:
        # A source position is not at a distance from a target position: by default
        # cross-attention sees none.
        cross = self.attention('cross_attention', 'cross_positions')
        if not cross.positions.within and spec.parse(self.config.cross_positions)[0] != 'none':
            raise ValueError(
                f'model.cross_positions={self.config.cross_positions!r} does nothing in '
                'cross-attention: it acts on embeddings or on a whole stack; choose positions that '
                'act on queries and keys, such as rotary or shaw, or none'
            )
        block = decoder.Block(**self.shared(), cross_attention=cross)
        return decoder.Decoder(block, **self.stack())


def check(config: Any) -> None:
    """Refuses numbers that cannot be built, by name and before anything is made.

    Raises:
      ValueError: names the field, the value and what it may be.
    """
    for field in ('d_model', 'num_layers', 'num_heads', 'num_kv_heads', 'd_k', 'd_v', 'd_ff'):
        value = config[field]
        if value is not None and value < 1:
            raise ValueError(f'model.{field} must be at least 1, not {value}')
    for field in ('dropout', 'head_dropout', 'layer_drop'):
        if not 0 <= config[field] < 1:
            raise ValueError(f'model.{field} must be at least 0 and below 1, not {config[field]}')
    derived = config.d_k is None or config.d_v is None
    if derived and config.d_model % config.num_heads:
        raise ValueError(
            f'model.d_model={config.d_model} cannot be divided among '
            f'model.num_heads={config.num_heads}: change one, or set model.d_k and model.d_v'
        )
    if config.num_kv_heads and config.num_heads % config.num_kv_heads:
        raise ValueError(
            f'model.num_kv_heads={config.num_kv_heads} does not divide '
            f'model.num_heads={config.num_heads}'
        )
    if config.positions.split('(')[0].strip() == 'sinusoidal' and config.d_model % 2:
        raise ValueError(
            f'model.d_model={config.d_model} must be even for model.positions=sinusoidal'
        )
    for field, names in (('tie', TIES), ('dtype', DTYPES), ('dropout_kind', DROPOUTS)):
        if config[field] not in names:
            raise ValueError(
                f'model.{field} must be one of {", ".join(names)}, not {config[field]!r}'
            )


def _make(field: str, kind: str, text: str, **defaults: Any) -> Any:
    try:
        return spec.make(f'flaxformer_lite.{kind}', text, **defaults)
    except ValueError as error:
        raise ValueError(f'model.{field}: {error}') from None
