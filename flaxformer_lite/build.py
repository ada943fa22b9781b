"""A model's config → its modules: strings become parts here, once, and nowhere else."""

from typing import Any

from flaxformer_lite import fields, spec
from flaxformer_lite.architectures.base import Model
from flaxformer_lite.checks import DROPOUTS, DTYPES, check
from flaxformer_lite.dense import Dense
from flaxformer_lite.dropout import Dropout, Skip
from flaxformer_lite.entity_encoder import EntityEncoder
from flaxformer_lite.init.base import Init
from flaxformer_lite.multi_head import MultiHead
from flaxformer_lite.stack import Block, Stack


def model(config: Any, vocab_size: int) -> Model:
    """The model that a `model` config describes, source and target with one vocabulary.

    Args:
      config: fields as attributes; `configs/wmt_base.py` says what each is. d_k and d_v may be
        None (d_model / num_heads), as may num_kv_heads (num_heads), decoder_attention and
        cross_attention (as attention), decoder_positions (as positions), and init (xavier, or what
        the residual asks for).
      vocab_size: number of tokens.

    Raises:
      ValueError: a value that cannot be built; the message names the field.
    """
    check(config)
    encoder = _Parts(config, 'encoder')
    # Only what the architecture takes is made: the fields of what it does not may not even fit.
    parts = {
        'encoder': encoder.stack,
        'decoder': lambda: _Parts(config, 'decoder').stack(cross=True),
        'stack': lambda: _Parts(config, 'decoder', alone=True).stack(),
        'attend': lambda: fields.make('attention', 'additive'),
    }
    takes = spec.parameters(fields.find('architecture', config))
    return fields.make(
        'architecture',
        config.architecture,
        dropout=encoder.dropout,
        num_layers=config.num_layers,
        d_model=config.d_model,
        vocab_size=vocab_size,
        tie=config.tie,
        scale_embeddings=config.scale_embeddings,
        dtype=encoder.dtype,
        initial=encoder.initial,
        **{name: make() for name, make in parts.items() if name in takes},
    )


def initial(config: Any) -> Init:
    """What the parameters of a `model` config are at first, and at which rate each learns.

    Raises:
      ValueError: as `model`.
    """
    check(config)
    return _Parts(config, 'encoder').initial


def entity_encoder(config: Any) -> EntityEncoder:
    """The encoder that a `model` config describes, over a set: without positions.

    Raises:
      ValueError: as `model`.
    """
    check(config)
    parts = _Parts(config, 'encoder', alone=True)
    embedding = Dense((config.d_model,), dtype=parts.dtype, initial=parts.initial)
    return EntityEncoder(embedding, parts.stack(positions=('positions', 'none')))


# A field and its spec.
_Named = tuple[str, str]


class _Parts:
    """The parts of one stack, the other beside it or `alone`."""

    def __init__(self, config: Any, stack: str, alone: bool = False):
        self.config, self.dtype = config, DTYPES[config.dtype]
        width = config.d_model // config.num_heads
        self.d_k, self.d_v = config.d_k or width, config.d_v or width
        # What a variant of any kind may ask for, by name.
        self.facts = dict(
            d_model=config.d_model,
            num_heads=config.num_heads,
            d_k=self.d_k,
            d_k_given=config.d_k is not None,
            d_v=self.d_v,
            d_ff=config.d_ff,
            dtype=self.dtype,
            stack=stack,
            causal=stack == 'decoder',
            encoder_layers=0 if alone and stack == 'decoder' else config.num_layers,
            decoder_layers=0 if alone and stack == 'encoder' else config.num_layers,
        )
        self.dropout = Dropout(config.dropout, DROPOUTS[config.dropout_kind])
        norm = self.make('norm')
        self.residual = self.make('residual', norm=norm, dropout=self.dropout)
        # A stack alone has a residual, whatever architecture the config names.
        without = 'residual' in fields.idle(config) and not alone
        init = config.init or ('xavier' if without else self.residual.initial)
        self.initial: Init = fields.make('init', init, **self.facts)
        self.feed_forward = self.make('feed_forward', initial=self.initial)

    def make(self, field: str, **others: Any) -> Any:
        return fields.make(field, self.config[field], **self.facts, **others)

    def given(self, *names: str) -> _Named:
        """The first of these fields that is not empty."""
        field = next((name for name in names if self.config[name]), names[-1])
        return field, self.config[field]

    def attention(self, attention: _Named, positions: _Named, project: bool) -> MultiHead:
        config = self.config
        return MultiHead(
            d_model=config.d_model,
            num_heads=config.num_heads,
            project=project,
            num_kv_heads=config.num_kv_heads,
            d_k=self.d_k,
            d_v=self.d_v,
            attend=fields.make(*attention, **self.facts),
            # One for each place: a module in two places would share its weights between them.
            positions=fields.make(*positions, **self.facts),
            head_dropout=Dropout(config.head_dropout, (1, 3)),
            dtype=self.dtype,
            initial=self.initial,
        )

    def cross_attention(self) -> MultiHead:
        # A source position is not at a distance from a target position: by default
        # cross-attention sees none.
        positions = self.config.cross_positions
        named = self.given('cross_attention', 'attention'), ('cross_positions', positions)
        cross = self.attention(*named, project=True)
        if not cross.positions.within and spec.parse(positions)[0] != 'none':
            raise ValueError(
                f'model.cross_positions={positions!r} does nothing in cross-attention: it acts on '
                'embeddings or on a whole stack; choose positions that act on queries and keys, '
                'such as rotary or shaw, or none'
            )
        return cross

    def stack(self, cross: bool = False, positions: _Named | None = None) -> Stack:
        """All layers.

        Args:
          cross: those of a decoder beside an encoder, with attention over the source.
          positions: in place of the config's.
        """
        places = ('decoder_', '') if cross else ('',)
        attention = self.given(*(f'{place}attention' for place in places))
        positions = positions or self.given(*(f'{place}positions' for place in places))
        block = Block(
            attention=self.attention(attention, positions, self.config.projections),
            feed_forward=self.feed_forward,
            residual=self.residual,
            cross_attention=self.cross_attention() if cross else None,
            parallel=self.config.parallel,
        )
        # Those that act within each attention leave nothing for the stack to do.
        relative = block.attention.positions.relative
        of_stack = fields.make(positions[0], 'none' if relative else positions[1], **self.facts)
        dropout, skip = self.dropout, Skip(self.config.layer_drop)
        return Stack(block, self.config.num_layers, of_stack, dropout, skip)
