"""The recurrent encoder-decoder with additive attention (Bahdanau et al. 2015)."""

import functools

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from flaxformer_lite.architectures._cells import CELLS
from flaxformer_lite.architectures.base import Model
from flaxformer_lite.dropout import Dropout
from flaxformer_lite.shapes import KV, for_each, take
from flaxformer_lite.text import Text


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

    idle = (
        *(
            'attention',
            'positions',
            'projections',
            'num_heads',
            'num_kv_heads',
            'd_k',
            'd_v',
        ),
        *(
            'd_ff',
            'feed_forward',
            'norm',
            'residual',
            'parallel',
            'head_dropout',
            'layer_drop',
        ),
    )
    cell: str = 'gru'
    num_layers: int
    attend: nn.Module
    dropout: Dropout

    def setup(self):
        super().setup()
        if self.cell not in CELLS:
            raise ValueError(
                f'cell must be one of {", ".join(CELLS)}, not {self.cell!r}'
            )

        def cell():
            dense = self.dense.copy(parent=None)
            return CELLS[self.cell](self.d_model, dense, parent=None)

        each = range(self.num_layers)
        self.encoder = [_BothWays(cell(), cell()) for _ in each]
        self.decoder = _Decoder(
            [cell() for _ in each], self.attend.copy(parent=None), self.dropout
        )
        self.decoder_first = self.dense.copy(
            features=(self.num_layers, self.d_model), name=None
        )
        self.decoder_merge = self.dense.copy(features=(self.d_model,), name=None)

    def _read(self, source: Text) -> KV:
        """h_j, the states at each word of the source in both directions (equation 7)."""
        h_BSU = self.dropout(self.embed(self.source_VD, source.tokens_BT))
        for layer in self.encoder:
            h_BSU = self.dropout(layer(h_BSU, source.segments_BT))
        h_BGUS = jnp.moveaxis(h_BSU, 1, -1)[:, None].astype(self.dense.dtype)
        return KV(h_BGUS, h_BGUS, source.pos_BT)

    def _begin(self, kv, seen_BNS):
        """Each layer's state before the first word, of the mean of h_j (Sennrich et al. 2017)."""
        w_BNS = seen_BNS / jnp.maximum(seen_BNS.sum(-1, keepdims=True), 1)
        mean_BNU = jnp.einsum(
            'b...s,bus->b...u', w_BNS, kv.value_BGUS[:, 0].astype(jnp.float32)
        )
        states = jnp.unstack(jnp.tanh(self.decoder_first(mean_BNU)), axis=-2)
        cells = self.decoder.cell
        return [c.begin(x_BND) for c, x_BND in zip(cells, states, strict=True)]

    def hidden(self, source, inputs):
        kv = self._read(source)
        # Each place as one hypothesis.
        x_BTND = self.dropout(self.embed(self.target_VD, inputs.tokens_BT))[:, :, None]
        seen_BTNS = inputs.sees(source)[:, 0, :, None]
        begin = self._begin(kv, seen_BTNS)
        h_BTNU = _along_rows(
            self.decoder, begin, inputs.segments_BT, (x_BTND, seen_BTNS), kv
        )
        return jnp.tanh(self.decoder_merge(h_BTNU[:, :, 0]))

    def start(self, source_BS):
        source = Text.of(source_BS)
        kv, seen_B1S = self._read(source), source.valid_BT[:, None]
        return (kv, seen_B1S), (_States(self._begin(kv, seen_B1S)),)

    def advance(self, x_BND, context, caches, path):
        kv, seen_B1S = context
        states = jax.tree.map(lambda x: take(x, path.parent_BN), caches[0].states)
        states, h_BNU = self.decoder(states, x_BND, seen_B1S, kv)
        return jnp.tanh(self.decoder_merge(h_BNU)), (_States(states),)


class _States(struct.PyTreeNode):
    """The layers' states of N hypotheses: all that a recurrent decoder remembers."""

    states: list

    def grow(self, hypotheses, tokens):
        return for_each(hypotheses, self)


# Traced once for all layers that read as much.
@nn.jit
class _BothWays(nn.Module):
    """A layer that reads each sentence of a row forwards and backwards → float32 BSU, U = 2 D."""

    forwards: nn.Module
    backwards: nn.Module

    def __call__(self, x_BSD, segments_BS):
        shape = (*x_BSD.shape[:2], self.forwards.d_model)
        zeros = self.forwards.begin(jnp.zeros(shape))
        h_BSD = _along_rows(self.forwards, zeros, segments_BS, (x_BSD,))
        back_BSD = _along_rows(
            self.backwards, zeros, segments_BS[:, ::-1], (x_BSD[:, ::-1],)
        )
        return jnp.concatenate([h_BSD, back_BSD[:, ::-1]], -1)


class _Decoder(nn.Module):
    """s_i = f(s_{i−1}, y_{i−1}, c_i), c_i = Σ_j α_ij h_j, α_ij by s_{i−1} and h_j (appendix A)."""

    cell: list[nn.Module]
    cross_attention: nn.Module
    dropout: nn.Module

    def __call__(self, states, x_BND, seen_BNS, kv):
        """One word of each hypothesis → new states, and all that its successor depends on."""
        query_BNHK = jax.tree.leaves(states[-1])[-1][:, :, None].astype(
            kv.key_BGKS.dtype
        )
        places = dict(
            pos_BT=jnp.zeros(x_BND.shape[:2], jnp.int32), mask_BHTS=seen_BNS[:, None]
        )
        c_BNU = self.cross_attention(query_BNHK, kv, **places)[:, :, 0]
        h_BNU = now_BNU = jnp.concatenate([x_BND, c_BNU], -1)
        states = list(states)
        for i, cell in enumerate(self.cell):
            states[i], h_BNU = cell(states[i], h_BNU)
            h_BNU = self.dropout(h_BNU)
        return states, jnp.concatenate([h_BNU, now_BNU], -1)


def _along_rows(layer, begin, segments_BT, words, *shared):
    """A layer that goes from word to word, from `begin` where a sentence of a row begins."""

    def step(layer, state, now):
        first_B, begin, words = now
        renewed = functools.partial(jax.vmap(jnp.where), first_B)
        return layer(jax.tree.map(renewed, begin, state), *words, *shared)

    settings = dict(
        variable_broadcast='params', split_rngs={'params': False, 'dropout': True}
    )
    # It takes one tracing more, which only new parameters need.
    settings |= dict(check_constancy_invariants=layer.is_mutable_collection('params'))
    over = nn.scan(
        step, variable_axes={'intermediates': 1}, in_axes=1, out_axes=1, **settings
    )
    first_BT = jnp.diff(segments_BT, prepend=0) != 0
    return over(
        layer, jax.tree.map(lambda x: x[:, 0], begin), (first_BT, begin, words)
    )[1]
