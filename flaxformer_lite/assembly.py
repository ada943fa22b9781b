"""Builds a stack of layers from the fields of a network.

A field holds a component, such as `norm=RMSNorm()`. The layers have copies of it, with
what the network sets: sizes, dropout, the template of matrices.
"""

import math
from typing import Any

from flaxformer_lite.attention.base import Attention
from flaxformer_lite.attention.softmax import Softmax
from flaxformer_lite.feed_forward.base import FeedForward
from flaxformer_lite.layers.blocks.base import Block
from flaxformer_lite.layers.dense.base import Dense
from flaxformer_lite.layers.multi_head_attention import MultiHeadAttention
from flaxformer_lite.layers.scanned_stack import ScannedStack
from flaxformer_lite.layers.stack import Stack
from flaxformer_lite.norms.base import Norm
from flaxformer_lite.norms.identity import Identity
from flaxformer_lite.positions.base import Positions
from flaxformer_lite.positions.none import NoPositions
from flaxformer_lite.residual.base import Residual
from flaxformer_lite.sizes import (
    Role,
    Sizes,
    cross_sizes_of,
    deciding_field,
    sizes_of,
    value_of,
)
from flaxformer_lite.validation import naming, quote

# Fields whose components may differ between layers, and their base classes. A tuple is
# a pattern: layer i uses entry i mod n.
PATTERNS = {
    'attention': Attention,
    'positions': Positions,
    'norm': Norm,
    'residual': Residual,
    'feed_forward': FeedForward,
    'block': Block,
}


class Layers:
    """The layers of one stack of a network, from the network's fields."""

    def __init__(self, network: Any, role: Role):
        self.network = network
        self.role: Role = role
        self.sizes = sizes_of(network, role)

    def stack(self) -> Stack:
        network = self.network
        num_layers = self.sizes.num_layers
        blocks = self._blocks()
        distinct = value_of(network, 'share_layers', self.role) or num_layers
        shared = distinct != num_layers
        if shared:
            self._check_shared(distinct, len(blocks))
            # The shared layers form the period.
            blocks *= distinct // len(blocks)
        kind = Stack
        if network.scan_layers:
            kind = ScannedStack
            self._check_period(len(blocks))
        return kind(
            blocks=blocks,
            num_layers=num_layers,
            positions=self._stack_positions(),
            embedding_norm=self._embedding_norm(),
            dropout=network.dropout_rates.of_sublayers(parent=None),
            layer_drop_rate=network.dropout_rates.layers,
            remat=network.remat,
            shared=shared,
            parent=None,
        )

    def dense(self, layer: int = 0, sizes: Sizes | None = None) -> Dense:
        """Returns the template of a layer's matrices, with their initializer."""
        default = self._entry('residual', layer).default_init
        return self.network.dense_of(sizes or self.sizes, default)

    def _blocks(self) -> tuple[Block, ...]:
        period = math.lcm(*map(len, _patterns(self.network)))
        layers = range(min(period, self.sizes.num_layers))
        blocks = tuple(map(self._block, layers))
        self._check_streams(blocks)
        return shortest_period(blocks)

    def _block(self, layer: int) -> Block:
        merged = self.role == 'decoder' and self.network.decoder.merged_attention
        if merged:
            self._check_merged(layer)
        has_cross = self.role == 'decoder' and not merged
        block: Block = self._make(
            'block',
            layer,
            self_attention=self._self_attention(layer),
            feed_forward=self._make(
                'feed_forward', layer, sizes=self.sizes, dense=self.dense(layer)
            ),
            residual=self._residual(layer),
            cross_attention=self._cross_attention(layer) if has_cross else None,
            merged=merged,
        )
        if merged and type(block).attend_to_self is not Block.attend_to_self:
            raise ValueError(
                f'{self._field("block")}: {_name(block)} has no self-attention to '
                'merge with cross-attention. Leave decoder.merged_attention=True out.'
            )
        return block

    def _residual(self, layer: int) -> Residual:
        residual = self._entry('residual', layer)
        norm = residual.norm
        dropout = residual.dropout
        of_network = self.network.dropout_rates.of_sublayers(parent=None)
        return self._make(
            'residual',
            layer,
            norm=self._make('norm', layer) if norm is None else norm,
            dropout=of_network if dropout is None else dropout,
            sizes=self.sizes,
        )

    def _self_attention(self, layer: int) -> MultiHeadAttention:
        projections = self.network.projections
        core_attention = self._make('attention', layer)
        if core_attention.causal_only:
            self._check_causal(core_attention)
        if core_attention.queries_per_head > 1 and not projections.self_attention:
            raise ValueError(
                'projections.self_attention=False: this attention combines query '
                'heads, so its output is narrower than d_model. Leave it out.'
            )
        return MultiHeadAttention(
            sizes=self.sizes,
            core_attention=core_attention,
            # A separate module, because sharing the stack's would share its weights.
            positions=self._make('positions', layer, sizes=self.sizes),
            dense=self.dense(layer),
            head_dropout=self.network.dropout_rates.of_heads(),
            projections=projections.self_attention,
            bias=projections.bias,
            parent=None,
        )

    def _cross_attention(self, layer: int) -> MultiHeadAttention:
        sizes = cross_sizes_of(self.network)
        positions = self._make('positions', layer, role='cross', sizes=sizes)
        has_effect = positions.in_attention and not positions.acts_on_stack
        if not has_effect and type(positions) is not NoPositions:
            raise ValueError(
                f'cross.positions: {_name(positions)} has no effect in '
                'cross-attention, or its bias or embedding has none. Choose positions '
                'that act on queries and keys, such as rotary or shaw, or none.'
            )
        return MultiHeadAttention(
            sizes=sizes,
            core_attention=self._cross_core(layer),
            positions=positions,
            dense=self.dense(layer, sizes),
            head_dropout=self.network.dropout_rates.of_heads(),
            bias=self.network.projections.bias,
            parent=None,
        )

    def _cross_core(self, layer: int) -> Attention:
        """Returns the attention of cross-attention.

        Defaults to the encoder's, or to softmax if that is `by_distance`.
        """
        core = self._make('attention', layer, role='cross')
        if core.causal_only:
            self._check_causal(core, 'cross')
        if self.network.cross.attention is None and core.by_distance:
            return Softmax(parent=None)
        return core

    def _embedding_norm(self) -> Norm:
        if self.network.norm_embeddings:
            return self._make('norm', 0)
        return Identity(parent=None)

    def _stack_positions(self) -> Positions:
        period = len(_as_tuple(value_of(self.network, 'positions', self.role)))
        layers = range(min(period, self.sizes.num_layers))
        each = [self._make('positions', i, sizes=self.sizes) for i in layers]
        first = each[0]
        in_all_layers = all(positions == first for positions in each)
        if in_all_layers and not first.adds_scores:
            return first
        for positions in each:
            if positions.acts_on_stack and not in_all_layers:
                raise ValueError(
                    f'{self._field("positions")}: {_name(positions)} acts once for the '
                    'whole stack, so it cannot vary by layer. Use rotary, shaw, '
                    'transformer_xl or none in a pattern.'
                )
        # These positions act inside each attention, so the stack doesn't add any.
        return NoPositions(sizes=self.sizes, parent=None)

    def _field(self, kind: str, role: str = '') -> str:
        return deciding_field(self.network, kind, role or self.role)

    def _entry(self, kind: str, layer: int, role: str = '') -> Any:
        pattern = _as_tuple(value_of(self.network, kind, role or self.role))
        return pattern[layer % len(pattern)]

    def _make(self, kind: str, layer: int, *, role: str = '', **updates: Any) -> Any:
        """Returns a copy of a layer's component, with what the model sets."""
        with naming(self._field(kind, role)):
            return copy(self._entry(kind, layer, role), **updates)

    def _check_streams(self, blocks: tuple[Block, ...]) -> None:
        numbers = {block.residual.num_streams for block in blocks}
        if len(numbers) > 1:
            raise ValueError(
                f'{self._field("residual")}: layers have {sorted(numbers)} residual '
                'streams. Give all layers of a stack equally many.'
            )

    def _check_causal(self, attention: Attention, role: str = '') -> None:
        """Raises ValueError unless a role's attention is to earlier tokens only."""
        role = role or self.role
        merged = role == 'decoder' and self.network.decoder.merged_attention
        if role in ('decoder', 'decoder_only') and not merged:
            return
        fix = 'Set it as decoder.attention, or choose a decoder-only model.'
        if merged:
            fix = 'Leave decoder.merged_attention=True out.'
        raise ValueError(
            f'{self._field("attention", role)}: {_name(attention)} supports only '
            f'attention to earlier tokens of the same text. {fix}'
        )

    def _check_merged(self, layer: int) -> None:
        d_model = self.network.d_model
        if self.sizes.d_model != d_model:
            raise ValueError(
                'decoder.merged_attention=True shares matrices between source and '
                f'target, but d_model={d_model} differs from '
                f'decoder.d_model={self.sizes.d_model}. Make them equal.'
            )
        positions = self._make('positions', layer, sizes=self.sizes)
        if positions.adds_scores:
            raise ValueError(
                f'{self._field("positions")}: {_name(positions)} adds scores by '
                'distance, which source keys do not have with '
                'decoder.merged_attention=True. Choose rotary, t5, alibi or positions '
                'that act on embeddings.'
            )

    def _check_shared(self, distinct: int, period: int) -> None:
        field = self._field('share_layers')
        stack, _, _ = self.role.partition('_')
        if distinct > self.sizes.num_layers:
            raise ValueError(
                f'{field}={distinct} exceeds the number of layers of the {stack}, '
                f'{self.sizes.num_layers}. Lower it.'
            )
        if distinct % period:
            raise ValueError(
                f'{field}={distinct} must be a multiple of the period of the '
                f"{stack}'s layer pattern, {period}, because only equal layers can "
                'share parameters. Change it, or change the pattern.'
            )

    def _check_period(self, period: int) -> None:
        if self.sizes.num_layers % period:
            stack, _, _ = self.role.partition('_')
            raise ValueError(
                'scan_layers=True needs a number of layers that is a multiple of the '
                f"pattern's length, {period}, but the {stack} has "
                f'{self.sizes.num_layers} layers. Change the depth or the pattern, or '
                'leave scan_layers out.'
            )


def copy(module: Any, **updates: Any) -> Any:
    """Returns a template like another, in which nothing is shared with the other."""
    return module.copy(parent=None, name=None, **updates)


def shortest_period(entries: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the shortest pattern that gives `entries` if it is repeated.

    Examples:
      >>> shortest_period(('local', 'softmax', 'local', 'softmax'))
      ('local', 'softmax')
      >>> shortest_period(('local', 'softmax', 'local'))
      ('local', 'softmax', 'local')
    """
    length = len(entries)
    return next(
        entries[:n]
        for n in range(1, length + 1)
        if length % n == 0 and entries[:n] * (length // n) == entries
    )


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def complete_patterns(fields: Any) -> None:
    """Checks the components of a network or of overrides, and gives patterns one form.

    Raises:
      ValueError: A field has no component of its kind.
    """
    for kind, base in PATTERNS.items():
        value = getattr(fields, kind, None)
        if value is None:
            continue
        entries = tuple(value) if isinstance(value, list | tuple) else (value,)
        if not entries:
            raise ValueError(f'{kind} must have a component. Give one.')
        for entry in entries:
            _check_object(kind, base, entry)
        entries = shortest_period(entries)
        set_field(fields, kind, entries[0] if len(entries) == 1 else entries)


def _check_object(field: str, base: type, value: Any) -> None:
    if not isinstance(value, base):
        raise ValueError(
            f'{field}: {quote(value)} is not a component. Give an object of a subclass '
            f'of {base.__name__}; strings are for config.build.'
        )


def set_field(fields: Any, name: str, value: Any) -> None:
    """Sets an attribute of a frozen object that is being initialized."""
    object.__setattr__(fields, name, value)


def _patterns(network: Any) -> list[tuple[Any, ...]]:
    """Returns the patterns of all fields; layers combine their entries."""
    sections = [network, getattr(network, 'decoder', None)]
    sections.append(getattr(network, 'cross', None))
    return [
        _as_tuple(getattr(section, kind, None))
        for section in sections
        for kind in PATTERNS
    ]


def _name(component: Any) -> str:
    return type(component).__name__


def _roles(network: Any) -> list[str]:
    """Returns the roles whose sizes a network reads."""
    roles: list[str] = list(network.roles.values())
    if 'decoder' in roles and not network.decoder.merged_attention:
        roles.append('cross')
    return roles


def check_sizes(network: Any) -> None:
    """Raises ValueError if the sizes of a layer don't fit each other."""
    roles = _roles(network)
    for role in roles:
        _check_heads(network, role)
    if network.projections.self_attention:
        return
    for role in roles:
        if role != 'cross':
            _check_no_projections(network, role)
    if network.projections.bias and 'cross' not in roles:
        raise ValueError(
            'projections.self_attention=False removes the matrices that '
            'projections.bias=True adds biases to. Leave one out.'
        )


def _check_heads(network: Any, role: str) -> None:
    heads_field = deciding_field(network, 'num_heads', role)
    heads = value_of(network, 'num_heads', role)
    kv_heads = value_of(network, 'num_kv_heads', role)
    widths = value_of(network, 'd_k', role), value_of(network, 'd_v', role)
    width = value_of(network, 'd_model', role)
    if None in widths and width % heads:
        raise ValueError(
            f'{deciding_field(network, "d_model", role)}={width} cannot be divided '
            f'among {heads_field}={heads}: change one, or set d_k and d_v'
        )
    if kv_heads is not None and heads % kv_heads:
        raise ValueError(
            f'{deciding_field(network, "num_kv_heads", role)}={kv_heads} does not '
            f'divide {heads_field}={heads}'
        )


def _check_no_projections(network: Any, role: str) -> None:
    for name in ('d_k', 'd_v', 'num_kv_heads'):
        if value_of(network, name, role) is not None:
            raise ValueError(
                'projections.self_attention=False makes heads slices of d_model, so '
                f'{deciding_field(network, name, role)} has no effect. Leave it empty.'
            )
