"""The same model in other words: what a family of Transformers can have, too.

A matrix without bias is one whose bias is zero; features of the residual stream may
stand in another order; a constant factor may stand in a matrix. Each function takes a
config and variables and gives others that compute the same.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.config import build, spec, variants
from flaxformer_lite.config.schema import ModelConfig
from flaxformer_lite.families._entries import Spec
from flaxformer_lite.layers.scanned_stack import unstack_layers
from flaxformer_lite.models.base import Model
from flaxformer_lite.training.train_step import init_variables

# Changed by training alone: no result of a trained model goes by it.
_OF_TRAINING = dict(head_dropout=0.0, dropout_kind='elements', scan_layers=False)
# Rows of BART's table of positions that stand before the first.
_BART_OFFSET = 2


class Expressed(NamedTuple):
    """A model's config, and its variables with separate layers."""

    config: ModelConfig
    variables: Any


def plain(model: Model, config: ModelConfig, variables: Any) -> Expressed:
    """A trained model without what only training goes by."""
    if model.scans_layers:
        variables = unstack_layers(variables)
    return Expressed(dataclasses.replace(config, **_OF_TRAINING), variables)


def towards(model: Expressed, fields: Mapping[str, Any]) -> Expressed:
    """A model in the words of a family, as far as there are such words.

    Args:
      model: with separate layers.
      fields: the family's table: our field → the value that it always has, or an entry.
    """
    for field, change in _REWRITES.items():
        wanted = fields.get(field)
        if getattr(model.config, field) != wanted:
            model = change(model, wanted)
    for field, entry in fields.items():
        if isinstance(entry, Spec):
            model = _explicit(model, field, entry)
    return model


def _explicit(model: Expressed, field: str, entry: Spec) -> Expressed:
    """A spec with the defaults of those arguments that are fields of the family's."""
    text = getattr(model.config, field)
    if text is None:
        return model
    name, given = spec.parse(text)
    variant = variants.find(model.config, field)
    for argument in entry.arguments:
        default = getattr(variant, argument, None)
        if default:
            given.setdefault(argument, default)
    if not given:
        return model
    inner = ', '.join(f'{key}={value!r}' for key, value in given.items())
    config = dataclasses.replace(model.config, **{field: f'{name}({inner})'})
    return model._replace(config=config)


def with_biases(model: Expressed, vocab_size: int) -> Expressed:
    """The variables with zeros for the biases that the config has and they have not."""
    built = build.model(model.config, vocab_size)
    shapes = jax.eval_shape(lambda: init_variables(built, jax.random.key(0)))
    given = dict(jax.tree.leaves_with_path(model.variables))

    def fill(path, x):
        is_bias = jax.tree_util.keystr(path[-1:], simple=True).endswith('bias')
        if path not in given and is_bias:
            return jnp.zeros(x.shape, x.dtype)
        return given[path]

    variables = jax.tree_util.tree_map_with_path(fill, shapes)
    return model._replace(variables=variables)


def _bias(field: str) -> Callable[[Expressed, Any], Expressed]:
    """No biases are biases of zero, which `with_biases` adds."""

    def change(model: Expressed, wanted: Any) -> Expressed:
        if wanted is not True:
            return model
        config = dataclasses.replace(model.config, **{field: True})
        return model._replace(config=config)

    return change


def _norm(model: Expressed, wanted: Any) -> Expressed:
    """ε of layer normalisation as PyTorch has it: all but the same, and measured."""
    if model.config.norm != 'layer' or wanted != 'layer(epsilon=1e-05)':
        return model
    return model._replace(config=dataclasses.replace(model.config, norm=wanted))


def _positions(model: Expressed, wanted: Any) -> Expressed:
    name, given = spec.parse(model.config.positions)
    if name == 'sinusoidal' and not given and wanted == 'sinusoidal(interleaved=False)':
        return _sines_first(model, wanted)
    if name == 'learned' and not given.get('offset') and not isinstance(wanted, str):
        return _offset_table(model, given)
    return model


def _sines_first(model: Expressed, positions: str) -> Expressed:
    """All sines before all cosines: the residual stream's features in that order."""
    d_model = model.config.d_model
    order = np.r_[0:d_model:2, 1:d_model:2]

    def permute(path, x):
        axis = _stream_axis([key.key for key in path])
        return x if axis is None or not x.ndim else x.take(order, axis)

    variables = jax.tree_util.tree_map_with_path(permute, model.variables)
    config = dataclasses.replace(model.config, positions=positions)
    return Expressed(config, variables)


def _stream_axis(names: list[str]) -> int | None:
    """The axis of a parameter that is the residual stream's; None without one."""
    module, leaf = names[-2:]
    if leaf in ('embedding', 'source_embedding', 'output'):
        return -1
    if leaf == 'output_bias':
        return None
    if module in ('out_proj', 'down') or 'norm' in module:
        return -1
    return 0 if leaf == 'kernel' else None


def _offset_table(model: Expressed, given: Mapping[str, Any]) -> Expressed:
    """A learned table with rows before the first, which nothing reads."""
    length = given.get('max_length', 1024)
    positions = f'learned(max_length={length}, offset={_BART_OFFSET})'

    def pad(path, x):
        if [key.key for key in path][-2:] != ['positions', 'table']:
            return x
        return jnp.pad(x, ((_BART_OFFSET, 0), (0, 0)))

    variables = jax.tree_util.tree_map_with_path(pad, model.variables)
    config = dataclasses.replace(model.config, positions=positions)
    return Expressed(config, variables)


def _scale_embeddings(model: Expressed, wanted: Any) -> Expressed:
    """√d_model in the embeddings; logits by the same matrix are divided by it."""
    config = model.config
    if wanted is not False or not config.scale_embeddings:
        return model
    if config.tie != 'all' or config.scale_logits:
        return model
    params = dict(model.variables['params'])
    params['embedding'] = params['embedding'] * config.d_model**0.5
    variables = {**model.variables, 'params': params}
    config = dataclasses.replace(config, scale_embeddings=False, scale_logits=True)
    return Expressed(config, variables)


def _attention(model: Expressed, wanted: Any) -> Expressed:
    """1 / √d_k in the matrices of queries; `wanted` is T5's entry of the table."""
    config = model.config
    entry = getattr(wanted, 'entry', None)
    own = config.decoder_attention, config.cross_attention
    if config.attention != 'softmax' or entry != 'softmax(scale=False)' or any(own):
        return model
    d_k = {
        'encoder': config.sizes('encoder').d_k,
        'decoder': config.sizes('decoder').d_k,
        'cross_attention': config.cross_sizes().d_k,
    }

    def scale(path, x):
        names = [key.key for key in path]
        if 'query' not in names:
            return x
        where = names[-3] if names[-3] in d_k else names[1]
        return x * d_k[where] ** -0.5

    variables = jax.tree_util.tree_map_with_path(scale, model.variables)
    config = dataclasses.replace(config, attention='softmax(scale=False)')
    return Expressed(config, variables)


def _same_dropout(field: str) -> Callable[[Expressed, Any], Expressed]:
    """One rate for all, where a family has one: it is of training alone."""

    def change(model: Expressed, wanted: Any) -> Expressed:
        if getattr(wanted, 'arguments', {}).get('dropout') != 'dropout_rate':
            return model
        name, given = spec.parse(getattr(model.config, field))
        given['dropout'] = model.config.dropout
        inner = ', '.join(f'{key}={value!r}' for key, value in given.items())
        config = dataclasses.replace(model.config, **{field: f'{name}({inner})'})
        return model._replace(config=config)

    return change


def _in_turn(*changes: Callable[[Expressed, Any], Expressed]) -> Any:
    def change(model: Expressed, wanted: Any) -> Expressed:
        for each in changes:
            model = each(model, wanted)
        return model

    return change


_REWRITES: dict[str, Callable[[Expressed, Any], Expressed]] = {
    'attention_bias': _bias('attention_bias'),
    'output_bias': _bias('output_bias'),
    'norm': _norm,
    'positions': _positions,
    'scale_embeddings': _scale_embeddings,
    'attention': _in_turn(_attention, _same_dropout('attention')),
    'feed_forward': _same_dropout('feed_forward'),
}
