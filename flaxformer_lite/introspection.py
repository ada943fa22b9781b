"""Records and summarizes a model's internal values."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from flaxformer_lite.config.deprecated_text import warn_of_text
from flaxformer_lite.config.variants import LOSSES
from flaxformer_lite.interventions.context import (
    InterventionObserver,
    with_separate_layers,
)
from flaxformer_lite.interventions.names import (
    Interventions,
    Where,
    check_known,
    matches,
)
from flaxformer_lite.models.base import Model
from flaxformer_lite.remat import NONE
from flaxformer_lite.taps import observed_by
from flaxformer_lite.training.batch import Batch, source_and_inputs
from flaxformer_lite.training.loss import DEFAULT_LOSS, Losses, as_loss, loss_sums
from flaxformer_lite.validation import naming

# Suffix of an attention's name in a record, after the name of the stack.
ATTENTION_SUFFIXES = {'self_attention': '', 'cross_attention': ' cross'}
# Activations that `Record` has by layer, too.
_STATS_ACTIVATIONS = ('resid_pre', 'resid_post', 'z', 'pattern')


class Record(NamedTuple):
    """Values that a forward pass computed, by layer; float32 unless stated otherwise.

    Attributes:
      weights: Attention weights, BHTS, one entry per layer that has the attention. Keys
        are 'encoder', 'decoder' or 'decoder cross'.
      heads: Each head's output before the output projection, BTHU, with the same keys.
      norms: Norm of the residual stream before the first layer and after each layer,
        BT, by stack.
      positions: Positions of the tokens, int32 BT, by stack.
      valid: bool BT, False for padding, by stack.
      values: Activations by name, as in `interventions`.
    """

    weights: dict[str, tuple[jax.Array, ...]]
    heads: dict[str, tuple[jax.Array, ...]]
    norms: dict[str, tuple[jax.Array, ...]]
    positions: dict[str, jax.Array]
    valid: dict[str, jax.Array]
    values: dict[str, jax.Array]


def record(
    model: Model,
    variables: Any,
    batch: Batch,
    missing_ok: bool = False,
    names: Sequence[str] | None = None,
    interventions: Interventions | None = None,
) -> Record:
    """Records the internal values of a forward pass without dropout.

    Use it to look at attention weights and activations.

        record = fl.record(model, variables, batch)
        weights_BHTS = record.weights['decoder cross'][0]  # of the first layer

    Args:
      variables: {'params': …}.
      missing_ok: If True, `weights` omits attentions that don't materialize their
        weights.
      names: Names of `Record.values` to keep, as in `intervene`. Defaults to all.
      interventions: As in `intervene`. The record has the changed values, also in the
        context of `intervene`.

    Raises:
      ValueError: An attention doesn't materialize its weights (use `softmax`, which has
        the same parameters), an intervention or a name matches no activation, or
        `variables` lacks the 'params' level.
    """
    if isinstance(names, str):
        raise ValueError(f'names must be a list, such as [{names!r}], not a string.')
    model, variables = with_separate_layers(model, variables)
    intervened = InterventionObserver(interventions or {})
    recorder = _Recorder(names)
    has_logits = recorder.keeps('logits') or intervened.wants('logits')
    with observed_by(intervened), observed_by(recorder):
        _, written = model.with_remat(NONE).apply(
            variables,
            *source_and_inputs(batch),
            method='__call__' if has_logits else 'logit_factors',
            # Without stacks, the attention of a recurrent decoder.
            mutable=[] if model.stacks() else ['intermediates'],
        )
    intervened.check()
    check_known('names', names or (), recorder.seen)
    values = {name: x for name, x in recorder.values.items() if recorder.keeps(name)}
    found = Record({}, {}, {}, {}, {}, values)
    for name, stack in model.stacks().items():
        _add_stack(found, recorder, name, stack.num_layers, missing_ok)
        if stack.block.merged and name in found.weights:
            _split_merged(found, name)
    if 'intermediates' in written:
        _add_recurrent_decoder(found, written['intermediates']['decoder'], batch)
    return found


class _Recorder:
    """Observer that keeps the activations that the model uses.

    Args:
      names: As in `record`.
    """

    def __init__(self, names: Sequence[str] | None):
        self._names = names
        self.seen: dict[str, None] = {}  # names of all activations, in order
        self.values: dict[str, jax.Array] = {}
        self.places: dict[str, Where] = {}

    def keeps(self, name: str) -> bool:
        return self._names is None or any(matches(key, name) for key in self._names)

    def wants(self, name: str) -> bool:
        self.seen[name] = None
        return self.keeps(name) or name.rpartition('/')[2] in _STATS_ACTIVATIONS

    def __call__(self, value: jax.Array, where: Where) -> jax.Array:
        self.values[where.name] = value
        self.places[where.name] = where
        return value


def _add_stack(
    found: Record, recorder: _Recorder, stack: str, num_layers: int, missing_ok: bool
) -> None:
    values = recorder.values
    layers = [f'{stack}/layer_{i}' for i in range(num_layers)]
    streams = [f'{layers[0]}/resid_pre', *(f'{layer}/resid_post' for layer in layers)]
    found.norms[stack] = tuple(jnp.linalg.norm(values[x], axis=-1) for x in streams)
    place = recorder.places[streams[0]]
    assert place.positions_BT is not None and place.mask_BT is not None
    found.positions[stack] = place.positions_BT
    found.valid[stack] = place.mask_BT
    for sublayer, suffix in ATTENTION_SUFFIXES.items():
        name = stack + suffix
        paths = [f'{layer}/{sublayer}' for layer in layers]
        paths = [path for path in paths if f'{path}/z' in values]
        if not paths:
            continue
        found.heads[name] = tuple(values[f'{path}/z'] for path in paths)
        patterns = [values.get(f'{path}/pattern') for path in paths]
        weights = tuple(x for x in patterns if x is not None)
        if len(weights) == len(paths):
            found.weights[name] = weights
        elif not missing_ok:
            raise ValueError(
                f'the attention of {name} does not compute its weights. Record it with '
                'Softmax attention, which has the same parameters.'
            )


def _split_merged(found: Record, name: str) -> None:
    weights = found.weights[name]
    of_source = found.positions['encoder'].shape[1]
    found.weights[f'{name} cross'] = tuple(x[..., :of_source] for x in weights)
    found.weights[name] = tuple(x[..., of_source:] for x in weights)


def _add_recurrent_decoder(found: Record, inside: Any, batch: Batch) -> None:
    """Adds the decoder's only attention, over the source, recorded per token."""
    weights_BTHNS = inside['cross_attention']['weights'][0]
    found.weights['decoder cross'] = (jnp.moveaxis(weights_BTHNS[:, :, :, 0], 1, 2),)
    source, inputs = source_and_inputs(batch)
    for stack, tokens in (('encoder', source), ('decoder', inputs)):
        found.positions[stack] = tokens.positions_BT
        found.valid[stack] = tokens.valid_BT


def attention_stats(
    model: Model,
    variables: Any,
    batch: Batch,
    loss: Losses = DEFAULT_LOSS,
    missing_ok: bool = False,
) -> dict[str, dict[str, jax.Array]]:
    """Computes statistics of each head, (layers, heads), and layer, (layers,).

    Use it to find heads that attend to one position, or layers without gradients.

        stats = fl.attention_stats(model, variables, batch)
        stats['encoder']['entropy'][0, 3]  # layer 0, head 3

    Args:
      model, variables, batch, missing_ok: As in `record`.
      loss: Loss of the gradients, as in `loss_sums`.

    Returns:
      For each attention, named as in `Record.weights`, means over non-padding queries:
        entropy: of the weights, in nats.
        largest: the largest weight.
        distance: Σ w |key's position − query's position|, in tokens.
        diagonal, previous: the weight of the query's own position and the one before.
        padding: the weight of padding. It must be 0.
      For each stack:
        gradient_norm: norm of the gradient of the mean loss per token with respect to a
          layer's parameters, without dropout.
        norm: mean norm of the residual stream after a layer.

    Raises:
      ValueError: As `record` and `loss_sums`.
    """
    with naming('loss'):
        loss_fn = as_loss(loss)
    warn_of_text('loss', loss, LOSSES)
    model, variables = with_separate_layers(model, variables)
    found = record(model, variables, batch, missing_ok, names=())
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
    gradients = _gradients(model, variables, batch, loss_fn)
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

    def mean_loss(params):
        with_params = variables | {'params': params}
        sums = loss_sums(model, with_params, batch, loss)
        return sums.loss / sums.tokens

    return jax.grad(mean_loss)(variables['params'])


def _head_stats(weights_BHTS, positions_BT, valid_BT, key_positions_BS, key_valid_BS):
    offset_BTS = key_positions_BS[:, None] - positions_BT[..., None]
    offset_B1TS = offset_BTS[:, None]
    surprise_BHTS = -jnp.log(jnp.where(weights_BHTS > 0, weights_BHTS, 1.0))
    # Statistics per key, to be averaged with the attention weights.
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
