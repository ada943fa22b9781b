"""Equivalent forms of a model that families of Transformers support."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.errors import UserError
from flaxformer_checkpoints.families._entries import Spec, written
from flaxformer_lite.config import builder, variants
from flaxformer_lite.config.schema import ModelConfig
from flaxformer_lite.layers.scanned_stack import unstack_layers
from flaxformer_lite.models.base import Model
from flaxformer_lite.training.train_step import init_variables

# Rows in BART's position table before the first position.
_BART_OFFSET = 2


class ConvertedModel(NamedTuple):
    config: ModelConfig
    variables: Any

    def with_fields(self, **fields: Any) -> 'ConvertedModel':
        return self._replace(config=self.config.with_values(fields))

    def with_arrays(self, change: Callable[[list[str], Any], Any]) -> 'ConvertedModel':
        def change_leaf(path, x):
            return change([key.key for key in path], x)

        variables = jax.tree_util.tree_map_with_path(change_leaf, self.variables)
        return self._replace(variables=variables)


def plain(model: Model, config: ModelConfig, variables: Any) -> ConvertedModel:
    """Returns a trained model without its training-only settings."""
    for field in variants.fields():
        component = config.get(field)
        if component and component.is_list:
            raise UserError(
                f'model.{field}={component}: the target format needs identical layers '
                'in a stack. Export a run without a list of layers.'
            )
    _, variables = model.unshared(unstack_layers(variables))
    layer_fields = {
        'scan_layers': False,
        'share_layers': None,
        'decoder.share_layers': None,
    }
    return ConvertedModel(config, variables).with_fields(
        head_dropout=0.0, dropout_kind='elements', **layer_fields
    )


def towards(model: ConvertedModel, fields: Mapping[str, Any]) -> ConvertedModel:
    """Brings a model close to the form of a family's table."""
    for bias in ('attention_bias', 'output_bias'):
        if fields.get(bias) is True:
            model = model.with_fields(**{bias: True})  # zeros, by `with_biases`
    # PyTorch's ε is nearly the same; `_check_logits` measures its effect.
    if (
        str(model.config.norm) == 'layer'
        and fields.get('norm') == 'layer(epsilon=1e-05)'
    ):
        model = model.with_fields(norm=fields['norm'])
    model = _with_positions(model, fields.get('positions'))
    if fields.get('scale_embeddings') is False:
        model = _without_scale_of_embeddings(model)
    if getattr(fields.get('attention'), 'entry', None) == 'softmax(scale=False)':
        model = _without_scale_of_scores(model)
    for field, entry in fields.items():
        if isinstance(entry, Spec):
            model = _with_arguments(model, field, entry)
    return model


def _with_arguments(model: ConvertedModel, field: str, entry: Spec) -> ConvertedModel:
    component = model.config.get(field)
    if component is None:
        return model
    given = dict(component.arguments)
    # A family with one dropout rate uses it everywhere. It matters in training only.
    if entry.arguments.get('dropout') == 'dropout_rate':
        given['dropout'] = model.config.dropout
    for argument in entry.arguments:
        default = getattr(component.cls, argument, None)
        if default:
            given.setdefault(argument, default)
    return model.with_fields(**{field: written(component.name, given)})


def with_biases(model: ConvertedModel, vocab_size: int) -> ConvertedModel:
    """Adds biases of zeros, which change nothing."""
    built = builder.build(model.config, vocab_size)
    shapes = jax.eval_shape(lambda: init_variables(built, jax.random.key(0)))
    given = dict(jax.tree.leaves_with_path(model.variables))

    def fill(path, x):
        name = jax.tree_util.keystr(path[-1:], simple=True)
        is_missing = name.endswith('bias') and path not in given
        return jnp.zeros(x.shape, x.dtype) if is_missing else given[path]

    variables = jax.tree_util.tree_map_with_path(fill, shapes)
    return model._replace(variables=variables)


def _with_positions(model: ConvertedModel, expected: Any) -> ConvertedModel:
    positions = model.config.positions
    name, given = positions.name, positions.arguments
    if (
        name == 'sinusoidal'
        and not given
        and expected == 'sinusoidal(interleaved=False)'
    ):
        return _with_sines_first(model, expected)
    if name == 'learned' and not given.get('offset') and isinstance(expected, Spec):
        return _with_offset(model, given.get('max_length', 1024))
    return model


def _with_sines_first(model: ConvertedModel, positions: str) -> ConvertedModel:
    """Permutes the residual stream's features: all sines before all cosines."""
    d_model = model.config.d_model
    order = np.r_[0:d_model:2, 1:d_model:2]

    def permute(names, x):
        axis = _stream_axis(names)
        return x if axis is None or not x.ndim else x.take(order, axis)

    return model.with_arrays(permute).with_fields(positions=positions)


def _stream_axis(names: list[str]) -> int | None:
    module, leaf = names[-2:]
    if leaf in ('embedding', 'source_embedding', 'output'):
        return -1
    if leaf == 'output_bias':
        return None
    if module in ('out_proj', 'down') or 'norm' in module:
        return -1
    return 0 if leaf == 'kernel' else None


def _with_offset(model: ConvertedModel, length: int) -> ConvertedModel:
    def pad(names, x):
        if names[-2:] != ['positions', 'table']:
            return x
        return jnp.pad(x, ((_BART_OFFSET, 0), (0, 0)))

    positions = f'learned(max_length={length}, offset={_BART_OFFSET})'
    return model.with_arrays(pad).with_fields(positions=positions)


def _without_scale_of_embeddings(model: ConvertedModel) -> ConvertedModel:
    config = model.config
    if config.tie != 'all' or config.scale_logits or not config.scale_embeddings:
        return model

    def scale(names, x):
        return x * config.d_model**0.5 if names[-1] == 'embedding' else x

    model = model.with_arrays(scale)
    return model.with_fields(scale_embeddings=False, scale_logits=True)


def _without_scale_of_scores(model: ConvertedModel) -> ConvertedModel:
    config = model.config
    own = config.decoder.attention, config.cross.attention
    if str(config.attention) != 'softmax' or any(own):
        return model
    d_k = {
        'encoder': config.sizes('encoder').d_k,
        'decoder': config.sizes('decoder').d_k,
        'cross_attention': config.cross_sizes().d_k,
    }

    def scale(names, x):
        if 'query' not in names:
            return x
        role = names[-3] if names[-3] in d_k else names[1]
        return x * d_k[role] ** -0.5

    return model.with_arrays(scale).with_fields(attention='softmax(scale=False)')
