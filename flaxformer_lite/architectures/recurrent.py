"""The recurrent encoder-decoder with additive attention (Bahdanau et al. 2015)."""

import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from flaxformer_lite.architectures.base import Memory, Model
from flaxformer_lite.dropout import Dropout
from flaxformer_lite.shapes import KV, Path, Remembered, for_each, take
from flaxformer_lite.text import Text

CELLS = {'gru': nn.jit(nn.GRUCell), 'lstm': nn.jit(nn.OptimizedLSTMCell)}


class Recurrent(Model, kw_only=True):
    """What the Transformer replaced: on the same text, for the same loss, decoded the same way.

    Attributes:
      cell: 'gru' (Cho et al. 2014) or 'lstm' (Hochreiter and Schmidhuber 1997).
      num_layers: of the encoder, each in both directions, and of the decoder.
      attend: a module of `attention/`, by which the decoder looks at the source.
      dropout: of embeddings and of each layer's output.

    Raises:
      ValueError: an unknown cell.
    """

    idle: ClassVar[tuple[str, ...]] = (
        *('attention', 'decoder_attention', 'cross_attention', 'projections'),
        *('positions', 'decoder_positions', 'cross_positions'),
        *('num_heads', 'num_kv_heads', 'd_k', 'd_v', 'd_ff', 'feed_forward', 'norm', 'residual'),
        *('parallel', 'head_dropout', 'layer_drop'),
    )
    cell: str = 'gru'
    num_layers: int
    attend: nn.Module
    dropout: Dropout

    def setup(self):
        super().setup()
        if self.cell not in CELLS:
            raise ValueError(f'cell must be one of {", ".join(CELLS)}, not {self.cell!r}')

        def kernel(key: jax.Array, shape: tuple[int, int], dtype: Any) -> jax.Array:
            return self.dense.initial.matrix(key, *shape, 'cell')

        cell = CELLS[self.cell](
            self.d_model, dtype=self.dense.dtype, kernel_init=kernel, parent=None
        )
        self.encoder = [_BothWays(cell) for _ in range(self.num_layers)]
        self.decoder = _Decoder(cell, self.num_layers, self.dropout, self.attend)
        self.decoder_first = self.dense.copy(features=(self.num_layers, self.d_model), name=None)
        self.decoder_merge = self.dense.copy(features=(self.d_model,), name=None)

    def _read(self, source: Text) -> KV:
        """h_j, the states at each word of the source in both directions (equation 7)."""
        h_BSU = self.dropout(self.embed(self.source_VD, source.tokens_BT))
        for layer in self.encoder:
            h_BSU = self.dropout(layer(h_BSU, source.segments_BT))
        h_BGUS = jnp.moveaxis(h_BSU, 1, -1)[:, None].astype(self.dense.dtype)
        return KV(h_BGUS, h_BGUS, source.pos_BT)

    def _begin(self, kv: KV, seen_BTS: jax.Array) -> jax.Array:
        """Each layer's state before the first word, of the mean of h_j (Sennrich et al. 2017)."""
        w_BTS = seen_BTS / jnp.maximum(seen_BTS.sum(-1, keepdims=True), 1)
        mean_BTU = jnp.einsum('bts,bus->btu', w_BTS, kv.value_BGUS[:, 0].astype(jnp.float32))
        return jnp.tanh(self.decoder_first(mean_BTU))

    def hidden(self, source: Text, inputs: Text) -> jax.Array:
        kv = self._read(source)
        seen_BTS = inputs.sees(source)[:, 0]
        x_BTD = self.dropout(self.embed(self.target_VD, inputs.tokens_BT))
        # Place by place, each as one hypothesis.
        now = (
            x_BTD[:, :, None],
            seen_BTS[:, :, None, None],
            _begins(inputs.segments_BT)[..., None],
            self._begin(kv, seen_BTS)[:, :, None],
        )

        def step(decoder: nn.Module, states: Any, now: tuple) -> tuple[Any, jax.Array]:
            return decoder(states, *now, kv)

        states = self.decoder.states(len(x_BTD))
        _, h_BTNU = _along_rows(step)(self.decoder, states, now)
        return jnp.tanh(self.decoder_merge(h_BTNU[:, :, 0]))

    def start(self, source_BS: jax.Array) -> Memory:
        source = Text.of(source_BS)
        kv, seen_B1S = self._read(source), source.valid_BT[:, None]
        context = kv, seen_B1S[:, None], self._begin(kv, seen_B1S)
        return context, (_States(self.decoder.states(len(source_BS))),)

    def advance(
        self, x_BND: jax.Array, context: Any, caches: tuple[Remembered, ...], path: Path
    ) -> tuple[jax.Array, tuple[Remembered, ...]]:
        kv, seen_B11S, begin_B1LD = context
        states = jax.tree.map(lambda x: take(x, path.parent_BN), caches[0].states)
        first_BN = jnp.broadcast_to(path.step == 0, x_BND.shape[:2])
        states, h_BNU = self.decoder(states, x_BND, seen_B11S, first_BN, begin_B1LD, kv)
        return jnp.tanh(self.decoder_merge(h_BNU)), (_States(states),)


class _States(struct.PyTreeNode):
    """The layers' states of N hypotheses: all that a recurrent decoder remembers."""

    states: Any

    def grow(self, hypotheses: int, tokens: int) -> '_States':
        return for_each(hypotheses, self)


# Traced once for all layers that read as much.
@nn.jit
class _BothWays(nn.Module):
    """A layer that reads each sentence of a row forwards and backwards → float32 BSU, U = 2 D."""

    cell: nn.Module

    @nn.compact
    def __call__(self, x_BSD: jax.Array, segments_BS: jax.Array) -> jax.Array:
        zeros = _zeros(self.cell, len(x_BSD))

        def step(cell: nn.Module, state: Any, now: tuple) -> tuple[Any, jax.Array]:
            x_BD, first_B = now
            state = jax.tree.map(lambda x: jnp.where(first_B[:, None], 0.0, x), state)
            return cell(state, x_BD)

        def read(x_BSD: jax.Array, segments_BS: jax.Array, name: str) -> jax.Array:
            cell = self.cell.copy(name=name)
            return _along_rows(step)(cell, zeros, (x_BSD, _begins(segments_BS)))[1]

        forwards = read(x_BSD, segments_BS, 'forwards')
        backwards = read(x_BSD[:, ::-1], segments_BS[:, ::-1], 'backwards')[:, ::-1]
        return jnp.concatenate([forwards, backwards], -1)


class _Decoder(nn.Module):
    """s_i = f(s_{i−1}, y_{i−1}, c_i), c_i = Σ_j α_ij h_j, α_ij by s_{i−1} and h_j (appendix A)."""

    cell: nn.Module
    layers: int
    dropout: nn.Module
    attend: nn.Module

    def states(self, batch: int) -> tuple[Any, ...]:
        """What each layer begins with, for one hypothesis a sentence."""
        return (_zeros(self.cell, batch, 1),) * self.layers

    @nn.compact
    def __call__(
        self, states: tuple[Any, ...], x_BND, seen_BHNS, first_BN, begin_BNLD, kv: KV
    ) -> tuple[tuple[Any, ...], jax.Array]:
        """One word of each hypothesis → new states, and all that its successor depends on."""

        def state(i: int) -> Any:
            begin = functools.partial(jnp.where, first_BN[..., None], begin_BNLD[:, :, i])
            return jax.tree.map(begin, states[i])

        states = [state(i) for i in range(self.layers)]
        query_BNHK = jax.tree.leaves(states[-1])[-1][:, :, None].astype(kv.key_BGKS.dtype)
        places_BN = jnp.zeros(x_BND.shape[:2], jnp.int32)
        attend = self.attend.copy(name='cross_attention')
        c_BNU = attend(query_BNHK, kv, pos_BT=places_BN, mask_BHTS=seen_BHNS)[:, :, 0]
        h_BNU = jnp.concatenate([x_BND, c_BNU], -1)
        for i in range(self.layers):
            states[i], h_BNU = self.cell.copy(name=f'cell_{i}')(states[i], h_BNU)
            h_BNU = self.dropout(h_BNU)
        return tuple(states), jnp.concatenate([h_BNU, x_BND, c_BNU], -1)


def _zeros(cell: nn.Module, *outer: int) -> Any:
    """A state before anything was read, float32: of a GRU one array, of an LSTM two."""
    return cell.initialize_carry(jax.random.key(0), (*outer, cell.features))


def _begins(segments_BT: jax.Array) -> jax.Array:
    """Where a row's sentences begin."""
    return jnp.pad(segments_BT[:, 1:] != segments_BT[:, :-1], ((0, 0), (1, 0)), constant_values=1)


def _along_rows(step: Any) -> Any:
    """A step of one place, as a function of whole rows."""
    shared = dict(variable_broadcast='params', split_rngs={'params': False, 'dropout': True})
    return nn.scan(step, variable_axes={'intermediates': 1}, in_axes=1, out_axes=1, **shared)
