"""A model's config → its modules: strings become parts here, once, and nowhere else."""

from typing import Any

from flaxformer_lite import defaults, fields, spec
from flaxformer_lite.architectures.base import Model
from flaxformer_lite.dense import Dense
from flaxformer_lite.dropout import Dropout, Skip
from flaxformer_lite.entity_encoder import EntityEncoder
from flaxformer_lite.multi_head import MultiHead
from flaxformer_lite.stack import Block, Stack


def model(config: Any, vocab_size: int) -> Model:
    """The model that a `model` config describes, source and target with one vocabulary.

    Args:
      config: a mapping, such as `dict(d_model=256, attention='local(window=64)')`; what it leaves
        out is the paper's base model's. `configs/wmt_base.py` says what each field is, and what it
        means that one is None.
      vocab_size: tokens are 0, padding, to vocab_size − 1.

    Raises:
      ValueError: a field or a value that there is not; the message names the field.
    """
    config = defaults.complete(config)
    fields.check(config)
    encoder = _Parts(config, 'encoder')
    # Only what the architecture takes is made: the fields of what it does not may not even fit.
    parts = {
        'encoder': encoder.stack,
        'decoder': lambda: _Parts(config, 'decoder').stack(),
        'stack': lambda: _Parts(config, 'decoder', alone=True).stack(),
        'attend': lambda: fields.make('attention', 'additive'),
    }
    takes = spec.parameters(fields.find('architecture', config))
    made = {name: make() for name, make in parts.items() if name in takes}
    own = {name: config[name] for name in ('num_layers', 'tie', 'scale_embeddings')}
    own |= dict(dropout=encoder.dropout, vocab_size=vocab_size)
    return encoder.make('architecture', **own, **made)


def entity_encoder(config: Any) -> EntityEncoder:
    """The encoder that a `model` config describes, over a set: without positions.

    What the config leaves out is as for `model`.

    Raises:
      ValueError: as `model`.
    """
    config = defaults.complete(config)
    fields.check(config)
    parts = _Parts({**config, 'positions': 'none'}, 'encoder', alone=True)
    embedding = parts.facts['dense'].copy(features=(config['d_model'],))
    return EntityEncoder(embedding, parts.stack())


class _Parts:
    """The parts of one stack, the other beside it or `alone`; `facts` are what any may ask for."""

    def __init__(self, config: Any, stack: str, alone: bool = False):
        self.config = config
        # Beside an encoder, a decoder's own fields come first.
        self.places = ('decoder_', '') if stack == 'decoder' and not alone else ('',)
        width = config['d_model'] // config['num_heads']
        self.dropout = Dropout(
            config['dropout'], fields.DROPOUTS[config['dropout_kind']]
        )
        self.facts: dict[str, Any] = dict(
            {
                name: config[name]
                for name in ('d_model', 'num_heads', 'num_kv_heads', 'd_ff')
            },
            d_k=config['d_k'] or width,
            d_k_given=config['d_k'] is not None,
            d_v=config['d_v'] or width,
            stack=stack,
            causal=stack == 'decoder',
            encoder_layers=0 if alone and stack == 'decoder' else config['num_layers'],
            decoder_layers=0 if alone and stack == 'encoder' else config['num_layers'],
        )
        self.residual = self.make(
            'residual', norm=self.make('norm'), dropout=self.dropout
        )
        # A stack alone has a residual, whatever architecture the config names.
        without = 'residual' in fields.idle(config) and not alone
        init = config['init'] or ('xavier' if without else self.residual.initial)
        initial = fields.make('init', init, **self.facts)
        self.facts['dense'] = Dense(
            (), dtype=fields.DTYPES[config['dtype']], initial=initial
        )

    def make(self, kind: str, *places: str, **others: Any) -> Any:
        """What the first field of a kind names that is not empty, of this stack or those places."""
        names = [f'{place}{kind}' for place in places or self.places]
        field = next((name for name in names if self.config[name]), names[-1])
        return fields.make(field, self.config[field], **self.facts | others)

    def attention(self, **own: Any) -> MultiHead:
        head_dropout = Dropout(self.config['head_dropout'], (1, 3))
        return spec.fill(MultiHead, head_dropout=head_dropout, **self.facts, **own)

    def cross_attention(self) -> MultiHead:
        attend, positions = (
            self.make('attention', 'cross_', ''),
            self.make('positions', 'cross_'),
        )
        named = self.config['cross_positions']
        if not positions.within and spec.parse(named)[0] != 'none':
            raise ValueError(
                f'model.cross_positions={named!r} does nothing in cross-attention: choose what '
                'acts on queries and keys, such as rotary or shaw, or none'
            )
        return self.attention(attend=attend, positions=positions)

    def stack(self) -> Stack:
        """All layers, which attend to a source where there is an encoder beside them."""
        config = self.config
        # One for each place: a module in two places would share its weights between them.
        positions, attend = self.make('positions'), self.make('attention')
        own = self.attention(
            attend=attend, positions=positions, project=config['projections']
        )
        other = self.cross_attention() if 'decoder_' in self.places else None
        block = Block(
            own, self.make('feed_forward'), self.residual, other, config['parallel']
        )
        # Those that act within each attention leave nothing for the stack to do.
        of_stack = (
            fields.make('positions', 'none')
            if positions.relative
            else self.make('positions')
        )
        return Stack(
            block,
            config['num_layers'],
            of_stack,
            self.dropout,
            Skip(config['layer_drop']),
        )
