"""What a model does inside: recorded, replaced, summed up, or switched off."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from flaxformer_lite.config.spec import Spec
from flaxformer_lite.layers.blocks.base import Block
from flaxformer_lite.layers.scanned_stack import stack_layers, unstack_layers
from flaxformer_lite.layers.stack import Stack
from flaxformer_lite.models.base import Model
from flaxformer_lite.remat import NONE
from flaxformer_lite.training.batch import Batch, check_variables, source_and_inputs
from flaxformer_lite.training.loss import DEFAULT_LOSS, loss_sums

# What an attention is called in a record: the stack's name and this.
ATTENTION_SUFFIXES = {'self_attention': '', 'cross_attention': ' cross'}
# The parts of a layer that give one of `Record.values`, and the method that does.
_GIVES_VALUE = {
    **dict.fromkeys([*ATTENTION_SUFFIXES, 'feed_forward'], '__call__'),
    **dict.fromkeys(['residual_1', 'residual_2', 'residual_3'], 'after'),
}


class Record(NamedTuple):
    """What a forward pass computed, layer by layer, float32.

    Attributes:
      weights: the weights of each attention, BHTS, by its name: 'encoder', 'decoder' or
        'decoder cross'; of the layers that have it.
      heads: each head's result before the output projection, BTHU, by the same names.
      norms: the length of the residual stream before the first layer and after each
        layer, BT, by stack.
      positions: int32 BT, by stack.
      valid: bool BT, False for padding, by stack.
      values: what `patch` can replace, by the path of the part that gives it, as the
        parameters have it. Of layer 1 of the decoder:
        decoder/layer_1/before: the residual stream before the layer, BTD.
        decoder/layer_1/residual_2: the stream after its second sublayer, BTD.
        decoder/layer_1/cross_attention, …/self_attention, …/feed_forward: what the
          sublayer gives the stream, BTD.
        decoder/layer_1/cross_attention/head_3: a head's result, BTU.
    """

    weights: dict[str, tuple[jax.Array, ...]]
    heads: dict[str, tuple[jax.Array, ...]]
    norms: dict[str, tuple[jax.Array, ...]]
    positions: dict[str, jax.Array]
    valid: dict[str, jax.Array]
    values: dict[str, jax.Array]


def record(
    model: Model, variables: Any, batch: Batch, missing_ok: bool = False
) -> Record:
    """What happens inside when a batch goes through the model, without dropout.

    Args:
      model: the model.
      variables: what `model.apply` takes: {'params': …}.
      batch: the arrays of `training.batch.BATCH_ARRAYS`.
      missing_ok: whether `weights` has no entry for an attention that does not hold
        its weights, instead of an error.

    Raises:
      ValueError: an attention does not hold its weights (`softmax` does, with the same
        parameters); or `variables` are parameters alone.
    """
    model, variables = _with_separate_layers(model, variables)
    # What is computed again would be taken out of the function that does it.
    model = model.with_remat(NONE)
    found = Record({}, {}, {}, {}, {}, {})

    def keep(name: str, value: jax.Array) -> jax.Array:
        found.values[name] = value
        return value

    with _values_through(keep):
        _, written = model.apply(
            variables,
            *source_and_inputs(batch),
            method='logit_factors',
            mutable=['intermediates'],
        )
    for stack, inside in written['intermediates'].items():
        if 'norms' in inside:
            _add_stack(found, stack, inside, missing_ok)
        else:
            _add_recurrent_decoder(found, inside, batch)
    for name, stack in model.stacks().items():
        if stack.block.merged and name in found.weights:
            _split_merged(found, name)
    return found


def patch(
    model: Model, variables: Any, batch: Batch, values: Mapping[str, jax.Array]
) -> jax.Array:
    """The logits of a batch, of which some values inside are replaced by others.

    With values that another input gave it is activation patching: what is restored
    where a value of a clean input goes into the run of a corrupted one? (Vig et al.
    2020; Meng et al. 2022; Heimersheim and Nanda 2024.) Zeros or means ablate.

    `jax.jit` compiles once for each set of names, since a name decides which operation
    is replaced.

    Args:
      model, variables, batch: as `record`.
      values: named and shaped as in `Record.values`. Inputs to exchange values between
        are as long as each other, as `make_batch(…, length=)` makes them.

    Returns:
      Logits as `model.apply` gives them, float32 BTV.

    Raises:
      ValueError: the model has no such value, or of another shape; or `variables` are
        parameters alone.
    """
    model, variables = _with_separate_layers(model, variables)
    shapes = {}

    def replace(name: str, value: jax.Array) -> jax.Array:
        shapes[name] = value.shape
        if name not in values:
            return value
        new = jnp.asarray(values[name], value.dtype)
        if new.shape != value.shape:
            raise ValueError(
                f'values[{name!r}] must be of shape {value.shape}, not {new.shape}: '
                'pad both batches by make_batch(…, length=)'
            )
        return new

    with _values_through(replace):
        logits_BTV: Any = model.apply(variables, *source_and_inputs(batch))
    unknown = [name for name in values if name not in shapes]
    if unknown:
        raise ValueError(
            f'the model has no value {unknown[0]!r}: it has {", ".join(shapes)}'
        )
    return logits_BTV


def _values_through(
    take: Callable[[str, jax.Array], jax.Array],
) -> AbstractContextManager[None]:
    """Has models go on with take(name, value) in place of each of `Record.values`."""

    def intercept(of, args, kwargs, context):
        path = context.module.path
        name = '/'.join(path)
        if isinstance(context.module, Block) and context.method_name == '__call__':
            x_BTD, *others = args
            return of(take(f'{name}/before', x_BTD), *others, **kwargs)
        result = of(*args, **kwargs)
        if len(path) != 3:  # no part of a layer: those are stack/layer/part
            return result
        if context.method_name == 'attend_by_head':
            heads = jnp.moveaxis(result, 2, 0)
            taken = [take(f'{name}/head_{i}', x_BTU) for i, x_BTU in enumerate(heads)]
            return jnp.stack(taken, 2)
        if _GIVES_VALUE.get(path[-1]) == context.method_name:
            return take(name, result)
        return result

    return nn.intercept_methods(intercept)


def _with_separate_layers(model: Model, variables: Any) -> tuple[Model, Any]:
    """What each layer does is its own, also where it shares its parameters."""
    check_variables(variables)
    if model.scans_layers:
        variables = unstack_layers(variables)
        model = model.with_separate_layers()
    return model.unshared(variables)


def _add_stack(found: Record, stack: str, inside: Any, missing_ok: bool) -> None:
    found.norms[stack] = inside['norms']
    found.positions[stack] = inside['positions']
    found.valid[stack] = inside['valid']
    num_layers = len(inside['norms']) - 1
    layers = [inside.get(f'layer_{i}', {}) for i in range(num_layers)]
    for module, suffix in ATTENTION_SUFFIXES.items():
        name = stack + suffix
        attentions = [layer[module] for layer in layers if module in layer]
        if not attentions:
            continue
        found.heads[name] = tuple(x['heads'][0] for x in attentions)
        if missing_ok and not all(map(_holds_weights, attentions)):
            continue
        found.weights[name] = tuple(_weights(x, name) for x in attentions)


def _split_merged(found: Record, name: str) -> None:
    """Takes the weights of the source from those of a merged attention.

    Those of the source and of its own tokens sum to 1 together.
    """
    weights = found.weights[name]
    of_source = found.positions['encoder'].shape[1]
    found.weights[f'{name} cross'] = tuple(x[..., :of_source] for x in weights)
    found.weights[name] = tuple(x[..., of_source:] for x in weights)


def _add_recurrent_decoder(found: Record, inside: Any, batch: Batch) -> None:
    """Its only attention is to the source, recorded token by token."""
    weights_BTHNS = inside['cross_attention']['weights'][0]
    found.weights['decoder cross'] = (jnp.moveaxis(weights_BTHNS[:, :, :, 0], 1, 2),)
    source, inputs = source_and_inputs(batch)
    for stack, tokens in (('encoder', source), ('decoder', inputs)):
        found.positions[stack] = tokens.positions_BT
        found.valid[stack] = tokens.valid_BT


def _holds_weights(attention: Any) -> bool:
    return 'weights' in attention.get('core_attention', {})


def _weights(attention: Any, name: str) -> jax.Array:
    if not _holds_weights(attention):
        raise ValueError(
            f'the attention of {name} never holds its weights: record it with softmax'
        )
    (weights_BGTS,) = attention['core_attention']['weights']
    (heads_BTHU,) = attention['heads']
    batch, length, num_heads, _ = heads_BTHU.shape
    # In grouped-query attention the queries of a group come as those of one head.
    _, groups, _, keys = weights_BGTS.shape
    weights_BGTRS = weights_BGTS.reshape(batch, groups, length, -1, keys)
    weights_BGRTS = jnp.swapaxes(weights_BGTRS, 2, 3)
    return weights_BGRTS.reshape(batch, num_heads, length, keys)


def attention_stats(
    model: Model,
    variables: Any,
    batch: Batch,
    loss: Spec = DEFAULT_LOSS,
    missing_ok: bool = False,
) -> dict[str, dict[str, jax.Array]]:
    """Figures of each head, (layers, heads), and of each layer, (layers,).

    Args:
      model, variables, batch: as `record`.
      loss: whose gradient is taken; as `loss_sums` takes it.
      missing_ok: as `record`.

    Returns:
      By attention, named as in `Record.weights`, means over the queries that are
      tokens:
        entropy: of the weights, in nats.
        largest: the largest weight.
        distance: Σ w |key's position − query's position|, in tokens.
        diagonal, previous: the weight of the query's own position, and of the one
          before.
        padding: the weight of padding. It must be 0.
      By stack:
        gradient_norm: of the mean loss of a token, without dropout, over the parameters
          of a layer.
        norm: the mean length of the residual stream after a layer.

    Raises:
      ValueError: as `record`.
    """
    model, variables = _with_separate_layers(model, variables)
    found = record(model, variables, batch, missing_ok)
    stats: dict[str, dict[str, jax.Array]] = {}
    for name, layers in found.weights.items():
        queries = name.removesuffix(' cross')
        keys = 'encoder' if name.endswith(' cross') else queries
        by_layer = [
            _head_stats(
                weights_BHTS,
                found.positions[queries],
                found.valid[queries],
                found.positions[keys],
                found.valid[keys],
            )
            for weights_BHTS in layers
        ]
        stats[name] = jax.tree.map(lambda *x: jnp.stack(x), *by_layer)
    gradients = _gradients(model, variables, batch, loss)
    for stack, (_, *after_layers) in found.norms.items():
        of_stack = stats.setdefault(stack, {})
        norms_BLT = jnp.stack(after_layers, 1)
        of_stack['norm'] = _mean_over_tokens(norms_BLT, found.valid[stack])
        of_stack['gradient_norm'] = jnp.stack(
            [
                optax.tree.norm(gradients[stack][f'layer_{i}'])
                for i in range(len(after_layers))
            ]
        )
    return stats


def _gradients(model, variables, batch, loss):
    """Of the mean loss of a token, by the parameters."""

    def mean_loss(params):
        with_params = variables | {'params': params}
        sums = loss_sums(model, with_params, batch, loss)
        return sums.loss / sums.tokens

    return jax.grad(mean_loss)(variables['params'])


def _head_stats(weights_BHTS, positions_BT, valid_BT, key_positions_BS, key_valid_BS):
    offset_BTS = key_positions_BS[:, None] - positions_BT[..., None]
    offset_B1TS = offset_BTS[:, None]
    surprise_BHTS = -jnp.log(jnp.where(weights_BHTS > 0, weights_BHTS, 1.0))
    # Of each key, what the weights are to be multiplied by and summed.
    factors = {
        'entropy': surprise_BHTS,
        'distance': jnp.abs(offset_B1TS),
        'diagonal': offset_B1TS == 0,
        'previous': offset_B1TS == -1,
        'padding': ~key_valid_BS[:, None, None],
    }
    figures = {name: (weights_BHTS * x).sum(-1) for name, x in factors.items()}
    figures['largest'] = weights_BHTS.max(-1)
    return {name: _mean_over_tokens(x, valid_BT) for name, x in figures.items()}


def _mean_over_tokens(x_BHT, valid_BT):
    return jnp.where(valid_BT[:, None], x_BHT, 0).sum((0, 2)) / valid_BT.sum()


def ablation_masks(model: Model) -> dict[str, Any]:
    """A mask for each head and each layer, all on: a collection for `model.apply`.

    `masks['encoder']['layer_0']['self_attention']['heads']` has what the result of each
    head is multiplied by. Where `masks['encoder']['layer_drop_0']['keep']` is 0, the
    layer is skipped. Those of a model that scans its layers have all of them in one:
    `masks['encoder']['layers']['self_attention']['heads'][0]` and
    `masks['encoder']['layer_drop']['keep'][0]`, or by the layers of a pattern, as
    `layers.scanned_stack.stack_layers` has them. They are arrays, so to change one
    compiles nothing anew. The mean over examples of the absolute gradient of each
    example's loss ranks heads by how much they matter (Michel et al. 2019). The
    gradient of the mean loss does not: near an optimum it is about 0.

        model.apply(variables | {'ablation_masks': masks}, source, inputs)
    """
    masks = {name: _stack_masks(stack) for name, stack in model.stacks().items()}
    if model.scans_layers:
        return stack_layers(masks, model.layer_periods)
    return masks


def _stack_masks(stack: Stack) -> dict[str, Any]:
    masks: dict[str, Any] = {}
    for i in range(stack.num_layers):
        # Arrays of its own for each layer: whoever changes one leaves the others alone.
        masks[f'layer_{i}'] = _head_masks(stack.template(i))
        masks[f'layer_drop_{i}'] = {'keep': jnp.ones(())}
    return masks


def _head_masks(block: Block) -> dict[str, Any]:
    masks = {}
    for module in ATTENTION_SUFFIXES:
        attention = getattr(block, module, None)
        if attention is not None:
            masks[module] = {'heads': jnp.ones(attention.sizes.num_heads)}
    return masks
