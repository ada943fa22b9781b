"""What a model does inside: recorded, summed up, or switched off, with no second model to do it."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from flaxformer_lite import learning
from flaxformer_lite.architectures.base import Model
from flaxformer_lite.stack import Stack

# What a module of this name is to the stack that it is in; the rest of a kind's name is the stack.
ATTENTIONS = {'attention': '', 'cross_attention': ' cross'}


class Record(NamedTuple):
    """What a forward pass went through, layer by layer, float32.

    Attributes:
      weights: BHTS of each attention: 'encoder', 'decoder', 'decoder cross', or 'stack'.
      heads: BTHU, each head's result before the last product, by the same names.
      norms: BT, the length of the residual stream before each layer and after the last, by stack.
      places: (int32 positions, which of them hold a token) BT, by stack.
    """

    weights: dict[str, tuple[jax.Array, ...]]
    heads: dict[str, tuple[jax.Array, ...]]
    norms: dict[str, tuple[jax.Array, ...]]
    places: dict[str, tuple[jax.Array, jax.Array]]


def record(model: Model, variables: Any, batch: learning.Batch) -> Record:
    """What happens inside when a batch goes through the model, without dropout.

    Args:
      variables: as `model.apply` takes them: {'params': …}.
      batch: the arrays of `learning.ARRAYS`.

    Raises:
      ValueError: an attention does not hold its weights.
    """
    _, found = learning.forward(model, variables, batch, collected=('intermediates',))
    weights, heads, norms, places = {}, {}, {}, {}
    for stack in found['intermediates']:
        inside = found['intermediates'][stack]
        if 'norms' not in inside:  # a recurrent decoder, recorded place by place: BTHNS, N = 1
            w_BTHNS = inside['cross_attention']['weights'][0]
            weights['decoder cross'] = (jnp.moveaxis(w_BTHNS[:, :, :, 0], 1, 2),)
            for name, text in zip(('encoder', 'decoder'), learning.texts(batch), strict=True):
                places[name] = text.pos_BT, text.valid_BT
            continue
        norms[stack], places[stack] = inside['norms'], (inside['pos'], inside['valid'])
        layers = [inside[f'layer_{i}'] for i in range(len(norms[stack]) - 1)]
        for name in layers[0].keys() & ATTENTIONS:
            kind = stack + ATTENTIONS[name]
            heads[kind] = tuple(layer[name]['heads'][0] for layer in layers)
            weights[kind] = tuple(_weights(layer[name], kind) for layer in layers)
    return Record(weights, heads, norms, places)


def _weights(attention: Any, kind: str) -> jax.Array:
    """BHTS, also where a group of heads shares keys, whose queries come as one head's."""
    if 'weights' not in attention.get('attend', {}):
        raise ValueError(
            f'the attention of {kind} never holds its weights: record it with softmax in its '
            'place, which has the same parameters'
        )
    (w_BGTS,), (y_BTHU,) = attention['attend']['weights'], attention['heads']
    (b, t, h), (g, s) = y_BTHU.shape[:3], (w_BGTS.shape[1], w_BGTS.shape[3])
    return jnp.swapaxes(w_BGTS.reshape(b, g, t, h // g, s), 2, 3).reshape(b, h, t, s)


def statistics(
    model: Model, variables: Any, batch: learning.Batch, label_smoothing: float = 0.1
) -> dict[str, dict[str, jax.Array]]:
    """Figures of each attention's heads, (layers, heads), and of each stack's layers, (layers,).

    Returns:
      by attention, as `Record.weights` names them, means over the queries that are tokens:
        entropy: of the weights, in nats.
        largest: the largest weight.
        distance: Σ w |key's position − query's|, in tokens.
        diagonal, previous: what falls on the query's own position, and on the one before it.
        padding: what falls on places that hold no token. It must be 0.
      by stack:
        gradient_norm: of the mean loss of a token, without dropout, over a layer's parameters.
        norm: the mean length of the residual stream behind a layer.
    """
    seen, result = record(model, variables, batch), {}
    for kind, layers in seen.weights.items():
        stack = kind.split()[0]
        keys = 'encoder' if kind.endswith('cross') else stack
        figures = [_of_heads(w_BHTS, *seen.places[stack], *seen.places[keys]) for w_BHTS in layers]
        result[kind] = jax.tree.map(lambda *x: jnp.stack(x), *figures)

    def loss(params: Any) -> jax.Array:
        own = variables | {'params': params}
        sums = learning.loss_sums(model, own, batch, label_smoothing=label_smoothing)
        return sums.loss / sums.tokens

    gradient = jax.grad(loss)(variables['params'])
    for stack, norms in seen.norms.items():
        valid_BT = seen.places[stack][1]
        lengths = [jnp.where(valid_BT, n_BT, 0).sum() / valid_BT.sum() for n_BT in norms[1:]]
        gradients = [_norm(gradient[stack][f'layer_{i}']) for i in range(len(lengths))]
        figures = dict(norm=jnp.stack(lengths), gradient_norm=jnp.stack(gradients))
        result.setdefault(stack, {}).update(figures)
    return result


def _of_heads(w_BHTS, pos_BT, valid_BT, key_pos_BS, key_valid_BS) -> dict[str, jax.Array]:
    distance_BHTS = (key_pos_BS[:, None] - pos_BT[..., None])[:, None]
    logs_BHTS = jnp.log(jnp.where(w_BHTS > 0, w_BHTS, 1.0))

    def mean(x_BHT: jax.Array) -> jax.Array:
        return jnp.where(valid_BT[:, None], x_BHT, 0).sum((0, 2)) / valid_BT.sum()

    def mass(where_BHTS: jax.Array) -> jax.Array:
        return mean(jnp.where(where_BHTS, w_BHTS, 0).sum(-1))

    return {
        'entropy': mean(-(w_BHTS * logs_BHTS).sum(-1)),
        'largest': mean(w_BHTS.max(-1)),
        'distance': mean((w_BHTS * jnp.abs(distance_BHTS)).sum(-1)),
        'diagonal': mass(distance_BHTS == 0),
        'previous': mass(distance_BHTS == -1),
        'padding': mass(~key_valid_BS[:, None, None]),
    }


def _norm(tree: Any) -> jax.Array:
    return jnp.sqrt(sum(jnp.square(x).sum() for x in jax.tree.leaves(tree)))


def switches(model: Model) -> dict[str, Any]:
    """A switch for each head and layer, all on: a collection beside `params` for `model.apply`.

    `on['encoder']['layer_0']['attention']['heads']` has a number for each head, which its result is
    multiplied by; `on['decoder']['leave_1']['keep']` is 0 where that layer passes on what it got.
    They are arrays: to change them compiles nothing, and their gradient is how much each head
    matters (Michel et al. 2019).
    """
    return {
        name: _of_stack(stack) for name, stack in vars(model).items() if isinstance(stack, Stack)
    }


def _of_stack(stack: Stack) -> dict[str, Any]:
    attentions = {name: getattr(stack.block, name) for name in ATTENTIONS}
    on = {}
    for i in range(stack.num_layers):
        on[f'leave_{i}'] = {'keep': jnp.ones(())}
        on[f'layer_{i}'] = {
            name: {'heads': jnp.ones(x.num_heads)} for name, x in attentions.items() if x
        }
    return on
