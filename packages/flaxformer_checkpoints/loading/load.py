"""Loads a checkpoint as a model and variables, and converts them back."""

import dataclasses
from contextlib import ExitStack
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from flaxformer_checkpoints.families.base import Described, Family
from flaxformer_checkpoints.loading import arrays, folder
from flaxformer_lite.config import builder
from flaxformer_lite.config.spec import Folder
from flaxformer_lite.layers.scanned_stack import unstack_layers
from flaxformer_lite.models.base import Model
from flaxformer_lite.sharding import state_shardings
from flaxformer_lite.validation import quote

FAMILIES = Folder('flaxformer_checkpoints.families', 'Family', group='')


def family_of(model_type: Any) -> type[Family]:
    """Returns the family that a config.json names.

    Raises:
      ValueError: The family is unknown; lists the known ones.

    Examples:
      >>> family_of('marian').__name__
      'Marian'
    """
    known = {}
    for name in FAMILIES.names():
        family = FAMILIES.find(name).cls
        known |= dict.fromkeys(family.model_types, family)
    if model_type not in list(known):  # a list: model_type may be unhashable
        names = ', '.join(sorted(known))
        raise ValueError(f'model_type={quote(model_type)} is not one of {names}')
    return known[model_type]


def describe_pretrained(path: folder.PathLike) -> Described:
    """Returns the `model` config, vocabulary and special tokens of a checkpoint.

    Raises:
      ValueError, ModuleNotFoundError: As `from_pretrained`, but reads no arrays.
    """
    with ExitStack() as stack:
        return _open(path, stack)[1]


def _open(
    path: folder.PathLike, stack: ExitStack
) -> tuple[type[Family], Described, folder.Weights]:
    config = folder.read_config(path)
    try:
        family = family_of(config.get('model_type'))
    except ValueError as error:
        raise ValueError(f'{path}/{folder.CONFIG}: {error}') from None
    weights = folder.Weights(path, stack)
    try:
        described = family.read(config, weights.shapes)
    except ValueError as error:
        raise ValueError(f'{path}/{folder.CONFIG}: {error}') from None
    return family, described, weights


def from_pretrained(
    path: folder.PathLike, *, dtype: str = 'float32', mesh: Mesh | None = None
) -> tuple[Model, Any]:
    """Loads the model and variables of a checkpoint saved by Transformers.

    Args:
      path: A folder with config.json and model.safetensors, or its shards with an
        index.
      dtype: Dtype of the variables and of matrix product operands.
      mesh: Shards the variables as `sharding.state_shardings` does.

    Returns:
      The model and {'params': …}.

    Raises:
      ValueError: The checkpoint is missing, damaged or unsupported, or its arrays don't
        match the config.
      ModuleNotFoundError: `safetensors` is not installed.
    """
    with ExitStack() as stack:
        family, described, weights = _open(path, stack)
        config = dataclasses.replace(described.config, dtype=dtype)
        described = described._replace(config=config)
        try:
            model = builder.build(*described)
            table = arrays.table(family, config, model)
            table = arrays.resolve_aliases(table, weights.shapes)
            arrays.check_names(family, table, weights.shapes)
            variables = arrays.to_variables(
                table, lambda array: _read(array, family, weights, dtype, mesh)
            )
        except ValueError as error:
            raise ValueError(f'{path}: {error}') from None
    return model, variables


def _tied_arrays_differ(family: type[Family], one: str, other: str) -> str:
    message = f'{one} differs from {other}, but the config ties them'
    if 'output' not in family.arrays or one != family.arrays['output']:
        return message
    return (
        f'{message}. If the checkpoint has a separate output matrix, set '
        'tie_word_embeddings to false in config.json.'
    )


def _read(
    array: arrays.Array,
    family: type[Family],
    weights: folder.Weights,
    dtype: str,
    mesh: Mesh | None,
) -> jax.Array:
    """Reads one parameter onto its devices; all of its aliases must be equal."""
    names = [n for n in (array.name, *array.aliases) if n in weights.shapes]
    if names:
        theirs = weights.read(names[0])
    else:
        theirs = jnp.zeros(array.their_shape)
    for other in names[1:]:
        if (weights.read(other) != theirs).any():
            raise ValueError(_tied_arrays_differ(family, other, names[0]))
    ours = array.to_ours(theirs.astype(jnp.dtype(dtype), copy=False))
    if mesh is None:
        return jnp.asarray(ours)
    tree = jax.ShapeDtypeStruct(ours.shape, ours.dtype)
    for name in reversed(array.path):
        tree = {name: tree}
    (sharding,) = jax.tree.leaves(state_shardings(tree, mesh))
    return jax.make_array_from_callback(ours.shape, sharding, lambda part: ours[part])


def to_pretrained(
    described: Described, variables: Any, model_type: str
) -> tuple[dict[str, Any], dict[str, jax.Array]]:
    """Converts a model to its family's config and arrays by name.

    Write them as config.json and model.safetensors, with `safetensors.flax.save_file`
    and metadata={'format': 'pt'}.

    Args:
      described: As from `describe_pretrained`.
      model_type: The family's name, such as 'marian'.

    Raises:
      ValueError: The family is unknown, or doesn't support the model; names the field.
    """
    family = family_of(model_type)
    model = builder.build(*described)
    table = arrays.table(family, described.config, model)
    config = family.write(described, [array.name for array in table])
    separate = unstack_layers(variables) if model.scans_layers else variables
    return config, arrays.to_theirs(table, separate)
