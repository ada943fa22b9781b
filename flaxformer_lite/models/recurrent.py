"""Recurrent encoder-decoder with additive attention (Bahdanau et al. 2015)."""

import functools
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct
from flax.typing import Out

from flaxformer_lite.attention.additive import Additive
from flaxformer_lite.init.xavier import Xavier
from flaxformer_lite.kv_cache import KeyValues, gather_beams, tile_beams
from flaxformer_lite.layers.recurrent_cells import CELLS, Cell
from flaxformer_lite.masks import TokenBatch
from flaxformer_lite.models.base import DecodeState, Model
from flaxformer_lite.networks import DecoderOverrides
from flaxformer_lite.sizes import Sizes
from flaxformer_lite.taps import unobserved
from flaxformer_lite.validation import Choices


class _Encoded(NamedTuple):
    """Source data for decoding, keys and values with one head."""

    kv: KeyValues
    mask_B1S: jax.Array


class _CellStates(struct.PyTreeNode):
    states: list

    def allocate(self, hypotheses: int, tokens: int) -> '_CellStates':
        return tile_beams(hypotheses, self)


class RecurrentEncoderDecoder(Model, kw_only=True):
    """Recurrent encoder-decoder. Layers of the encoder are bidirectional.

    Use it as a baseline of a Transformer. `Model` and `Network` document other fields.

    Attributes:
      cell: 'gru' (Cho et al. 2014) or 'lstm' (Hochreiter and Schmidhuber 1997).
      decoder: `DecoderOverrides(num_layers=…)` sets the decoder's number of layers.

    Raises:
      ValueError: `decoder` has another field.

    Examples:
      >>> import flaxformer_lite as fl
      >>> model = fl.RecurrentEncoderDecoder(vocab_size=100, d_model=32, cell='lstm')
      >>> model.stacks()
      {}
    """

    own_arguments = ('cell',)
    unused_fields = (
        'decoder.d_model',
        'continuous_positions',
        'merged_attention',
        'head_dropout',
        'layer_drop',
    )
    cell: Annotated[str, Choices(*CELLS)] = 'gru'
    decoder: DecoderOverrides = DecoderOverrides()

    def __post_init__(self):
        super().__post_init__()
        num_layers = self.decoder.num_layers
        if self.decoder != DecoderOverrides(num_layers=num_layers):
            raise ValueError(
                'decoder: a recurrent decoder has only num_layers. Leave the other '
                'fields out.'
            )
        if self.dropout_rates.heads or self.dropout_rates.layers:
            raise ValueError(
                'dropout: a recurrent model has no heads and drops no layers. Leave '
                '`heads` and `layers` out.'
            )

    @nn.nowrap
    def _template(self):
        # The other sizes belong to components that this model lacks.
        sizes = Sizes(
            d_model=self.d_model,
            encoder_layers=self.num_layers,
            decoder_layers=self.decoder_layers,
        )
        return self.dense_of(sizes, Xavier)

    @property
    def decoder_layers(self) -> int:
        return self.decoder.num_layers or self.num_layers

    def setup(self):
        super().setup()
        self.encoder = [
            _BothDirections(self._cell(), self._cell()) for _ in range(self.num_layers)
        ]
        cells = [self._cell() for _ in range(self.decoder_layers)]
        attention = Additive(parent=None)
        dropout = self.dropout_rates.of_sublayers(name='dropout')
        self.sublayer_dropout = dropout
        self.decoder_cells = _Decoder(cells, attention, dropout, name='decoder')
        first = (self.decoder_layers, self.d_model)
        self.first_state = self.dense.copy(features=first, name=None)
        self.merge = self.dense.copy(features=(self.d_model,), name=None)

    @nn.nowrap
    def _cell(self) -> Cell:
        return CELLS[self.cell](self.d_model, self.dense.copy(parent=None), parent=None)

    def _encode(self, source: TokenBatch) -> KeyValues:
        """Returns h_j, the bidirectional states at each source token (equation 7)."""
        h_BSU = self.embed(self.source_VD, source.tokens_BT)
        h_BSU = self.sublayer_dropout(h_BSU)
        for layer in self.encoder:
            h_BSU = layer(h_BSU, source.segments_BT)
            h_BSU = self.sublayer_dropout(h_BSU)
        h_BSU = h_BSU.astype(self.dense.dtype)
        h_BGUS = jnp.moveaxis(h_BSU, 1, -1)[:, None]
        return KeyValues(h_BGUS, h_BGUS, source.positions_BT)

    def _first_states(self, kv: KeyValues, mask_BNS: jax.Array) -> list:
        """Computes initial states from the mean of h_j (Sennrich et al. 2017)."""
        count = jnp.maximum(mask_BNS.sum(-1, keepdims=True), 1)
        h_BUS = kv.value_BGUS[:, 0].astype(jnp.float32)
        mean_BNU = jnp.einsum('b...s,bus->b...u', mask_BNS / count, h_BUS)
        states_BNLD = jnp.tanh(self.first_state(mean_BNU))
        states = jnp.unstack(states_BNLD, axis=-2)
        return [
            cell.first_state(h_BND)
            for cell, h_BND in zip(self.decoder_cells.cell, states, strict=True)
        ]

    def decode_hidden(self, source, inputs):
        kv = self._encode(source)
        x_BTD = self.sublayer_dropout(self.embed(self.target_VD, inputs.tokens_BT))
        # Each token is the only hypothesis at its position: N = 1.
        x_BTND = x_BTD[:, :, None]
        mask_BTNS = inputs.segment_mask(source)[:, 0, :, None]
        first_states = self._first_states(kv, mask_BTNS)
        h_BTNU = _scan_tokens(
            self.decoder_cells,
            first_states,
            inputs.segments_BT,
            (x_BTND, mask_BTNS),
            kv,
        )
        return jnp.tanh(self.merge(h_BTNU[:, :, 0]))

    def prefill(self, source_BS):
        source = TokenBatch.from_tokens(source_BS, self.special_tokens.padding)
        encoded = _Encoded(self._encode(source), source.valid_BT[:, None])
        states = self._first_states(encoded.kv, encoded.mask_B1S)
        return DecodeState(encoded, (_CellStates(states),))

    def step_hidden(self, x_BND, state, beam):
        encoded: _Encoded = state.encoder_state
        (cache,) = state.caches

        def of_parent(x_BN):
            return gather_beams(x_BN, beam.parent_BN)

        states = jax.tree.map(of_parent, cache.states)
        states, h_BNU = self.decoder_cells(states, x_BND, encoded.mask_B1S, encoded.kv)
        return jnp.tanh(self.merge(h_BNU)), (_CellStates(states),)


class _BothDirections(nn.Module):
    """Bidirectional layer over each sentence of a row; returns float32 BSU, U = 2 D."""

    forwards: Cell
    backwards: Cell

    def __call__(self, x_BSD, segments_BS):
        zeros_BSD = jnp.zeros((*x_BSD.shape[:2], self.forwards.d_model))
        zeros = self.forwards.first_state(zeros_BSD)
        forwards_BSD = _scan_tokens(self.forwards, zeros, segments_BS, (x_BSD,))
        reversed_BSD = x_BSD[:, ::-1]
        backwards_BSD = _scan_tokens(
            self.backwards, zeros, segments_BS[:, ::-1], (reversed_BSD,)
        )
        return jnp.concatenate([forwards_BSD, backwards_BSD[:, ::-1]], -1)


class _Decoder(nn.Module):
    """s_i = f(s_{i−1}, y_{i−1}, c_i), c_i = Σ_j α_ij h_j, α_ij from s_{i−1} and h_j.

    Source: Bahdanau et al. (2015), appendix A.
    """

    cell: list[Cell]
    cross_attention: nn.Module
    dropout: nn.Module

    def __call__(self, states, x_BND, mask_BNS, kv):
        """Advances one token per hypothesis; returns states and inputs of logits."""
        c_BNU = self._attend(states, x_BND, mask_BNS, kv)
        inputs_BNU = jnp.concatenate([x_BND, c_BNU], -1)
        h_BNU = inputs_BNU
        new_states = []
        for cell, state in zip(self.cell, states, strict=True):
            state, h_BNU = cell(state, h_BNU)
            h_BNU = self.dropout(h_BNU)
            new_states.append(state)
        return new_states, jnp.concatenate([h_BNU, inputs_BNU], -1)

    def _attend(self, states, x_BND, mask_BNS, kv):
        query_BND = jax.tree.leaves(states[-1])[-1]
        query_BNHK = query_BND[:, :, None].astype(kv.key_BGKS.dtype)
        with unobserved():
            c_BNHU = self.cross_attention(
                query_BNHK,
                kv,
                positions_BT=jnp.zeros(x_BND.shape[:2], jnp.int32),
                mask_BHTS=mask_BNS[:, None],
            )
        return c_BNHU[:, :, 0]


def _scan_tokens(layer, first_states, segments_BT, arrays, *shared):
    """Scans a layer over tokens; each sentence starts from its own initial state."""

    def step(layer, state, at_token):
        begins_B, is_token_B, first_state, arrays = at_token
        choose = jax.vmap(jnp.where)
        state = jax.tree.map(functools.partial(choose, begins_B), first_state, state)
        new, output = layer(state, *arrays, *shared)
        # Padding leaves the state unchanged.
        state = jax.tree.map(functools.partial(choose, is_token_B), new, state)
        return state, output

    scan = nn.scan(
        step,
        variable_broadcast='params',
        # Only `Out`: values that modules of the layer sowed before the scan lack this
        # axis.
        variable_axes={'intermediates': Out(1)},
        split_rngs={'params': False, 'dropout': True},
        in_axes=1,
        out_axes=1,
        # The check traces the cell a second time, so skip it if parameters exist.
        check_constancy_invariants=layer.is_mutable_collection('params'),
    )
    is_token_BT = segments_BT != 0
    index_T = jnp.arange(segments_BT.shape[1])
    last_BT = jax.lax.cummax(jnp.where(is_token_BT, index_T[None], 0), axis=1)
    # Padding belongs to the sentence before it, which may continue after a gap.
    segments_BT = jnp.take_along_axis(segments_BT, last_BT, 1)
    begins_BT = jnp.diff(segments_BT, prepend=0) != 0
    start = jax.tree.map(lambda x: x[:, 0], first_states)
    at_tokens = begins_BT, is_token_BT, first_states, arrays
    _, outputs = scan(layer, start, at_tokens)
    return outputs
