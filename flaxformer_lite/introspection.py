"""What a model does inside: recorded, summed up, or switched off, with no second model to do it."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

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
      ValueError: an attention does not hold its weights (softmax does, with the same parameters);
        or `variables` are parameters alone.
    """
    _, found = learning.forward(model, variables, batch, collected=('intermediates',))
    weights, heads, norms, places = {}, {}, {}, {}
    for stack, inside in found['intermediates'].items():
        if (
            'norms' not in inside
        ):  # a recurrent decoder, recorded place by place: BTHNS, N = 1
            w_BTHNS = inside['cross_attention']['weights'][0]
            weights['decoder cross'] = (jnp.moveaxis(w_BTHNS[:, :, :, 0], 1, 2),)
            for name, text in zip(
                ('encoder', 'decoder'), learning.texts(batch), strict=True
            ):
                places[name] = text.pos_BT, text.valid_BT
            continue
        norms[stack], places[stack] = inside['norms'], (inside['pos'], inside['valid'])
        layers = [inside[f'layer_{i}'] for i in range(len(norms[stack]) - 1)]
        for name in layers[0].keys() & ATTENTIONS:
            kind = stack + ATTENTIONS[name]
            heads[kind] = tuple(layer[name]['heads'][0] for layer in layers)
            weights[kind] = tuple(_weights(layer[name], kind) for layer in layers)
    return Record(weights, heads, norms, places)


def _weights(attention, kind):
    if 'weights' not in attention.get('attend', {}):
        raise ValueError(
            f'the attention of {kind} never holds its weights: record it with softmax'
        )
    # Where a group of heads shares keys, their queries come as one head's.
    (w_BGTS,), (b, t, h, _) = (
        attention['attend']['weights'],
        attention['heads'][0].shape,
    )
    w_BGTRS = w_BGTS.reshape(b, w_BGTS.shape[1], t, -1, w_BGTS.shape[3])
    return jnp.swapaxes(w_BGTRS, 2, 3).reshape(b, h, t, -1)


def statistics(
    model: Model, variables: Any, batch: learning.Batch, label_smoothing: float = 0.1
) -> dict[str, dict[str, jax.Array]]:
    """Figures of each attention's heads, (layers, heads), and of each stack's layers, (layers,).

    Returns:
      by attention, as `Record.weights` names them, means over the queries that are tokens:
        entropy, largest: of the weights; entropy in nats.
        distance: Σ w |key's position − query's|, in tokens.
        diagonal, previous: what falls on the query's own position, and on the one before it.
        padding: what falls on places that hold no token. It must be 0.
      by stack:
        gradient_norm: of the mean loss of a token, without dropout, over a layer's parameters.
        norm: the mean length of the residual stream behind a layer.
    """
    seen, result = record(model, variables, batch), {}
    for kind, layers in seen.weights.items():
        places = seen.places[kind.split()[0]]
        keys = seen.places['encoder'] if kind.endswith('cross') else places
        figures = [_of_heads(w_BHTS, *places, *keys) for w_BHTS in layers]
        result[kind] = jax.tree.map(lambda *x: jnp.stack(x), *figures)

    def loss(params):
        sums, _ = learning.forward(
            model, variables | {'params': params}, batch, label_smoothing
        )
        return sums.loss / sums.tokens

    gradient = jax.grad(loss)(variables['params'])
    for stack, (_, *norms) in seen.norms.items():
        gradients = [
            optax.tree.norm(gradient[stack][f'layer_{i}']) for i in range(len(norms))
        ]
        norm = _mean(jnp.stack(norms, 1), seen.places[stack][1])
        result[stack] |= dict(norm=norm, gradient_norm=jnp.stack(gradients))
    return result


def _of_heads(w_BHTS, pos_BT, valid_BT, key_pos_BS, key_valid_BS):
    d_BHTS = (key_pos_BS[:, None] - pos_BT[..., None])[:, None]
    of = dict(
        distance=jnp.abs(d_BHTS), entropy=-jnp.log(jnp.where(w_BHTS > 0, w_BHTS, 1.0))
    )
    of |= dict(
        diagonal=d_BHTS == 0,
        previous=d_BHTS == -1,
        padding=~key_valid_BS[:, None, None],
    )
    figures = {name: (w_BHTS * x).sum(-1) for name, x in of.items()} | {
        'largest': w_BHTS.max(-1)
    }
    return {name: _mean(x_BHT, valid_BT) for name, x_BHT in figures.items()}


def _mean(x_BHT, valid_BT):
    return jnp.where(valid_BT[:, None], x_BHT, 0).sum((0, 2)) / valid_BT.sum()


def switches(model: Model) -> dict[str, Any]:
    """A switch for each head and layer, all on: `variables | {'switches': on}` for `model.apply`.

    `on['encoder']['layer_0']['attention']['heads']` has what each head's result is multiplied by,
    `on['decoder']['leave_1']['keep']` is 0 where that layer passes on what it got. To change them
    compiles nothing, and their gradient is how much each head matters (Michel et al. 2019).
    """
    return {
        name: _of_stack(x) for name, x in vars(model).items() if isinstance(x, Stack)
    }


def _of_stack(stack):
    attentions = {name: getattr(stack.block, name) for name in ATTENTIONS}
    heads = {
        name: {'heads': jnp.ones(x.num_heads)} for name, x in attentions.items() if x
    }
    on = {'layer': heads, 'leave': {'keep': jnp.ones(())}}
    # Copies: whoever changes a layer's switches leaves the others' alone.
    return {
        f'{x}_{i}': jax.tree.map(jnp.copy, on[x])
        for i in range(stack.num_layers)
        for x in on
    }
