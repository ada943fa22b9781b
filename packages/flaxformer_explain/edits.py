"""Changes of a model's heads, sublayers and layers, for the page of a translation."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.errors import UserError
from flaxformer_lite import interventions, introspection
from flaxformer_lite.models.base import Model
from flaxformer_lite.training.batch import Batch

PATCH = 'patch'
MAX_FACTOR = 1000  # largest factor
_HEADS = '*/layer_*/*_attention/z'
_SUBLAYERS = '*/layer_*/*_out'
_NAMES = _HEADS, _SUBLAYERS


class Donor(NamedTuple):
    """The recorded activations of another sentence, to patch from.

    Attributes:
      lengths: Number of tokens, int32, by stack.
    """

    values: dict[str, jax.Array]
    lengths: dict[str, Any]


class Editor:
    """Builds the changes of a model from the user's choices.

    Every choice gives arrays of the same shapes, so only the first patch compiles.

    Attributes:
      names: Names of all that can change: `decoder/layer_1/cross_attention/z/3` is a
        head, `decoder/layer_1/mlp_out` a sublayer and `decoder/layer_1` a layer. The
        factor of a layer multiplies the outputs of its sublayers.

    Args:
      model: A model with separate layers.
      variables, batch: Arrays or their shapes.
    """

    def __init__(self, model: Model, variables: Any, batch: Batch):
        def seen(variables, batch):
            return record(model, variables, batch)

        values = jax.eval_shape(seen, variables, batch)
        # The number of heads of each attention, and 1 for sublayers.
        self._parts = {
            name: value.shape[2] if name.endswith('/z') else 1
            for name, value in values.items()
        }
        self._layers = [
            f'{name}/layer_{i}'
            for name, stack in model.stacks().items()
            for i in range(stack.num_layers)
        ]
        self._can_patch = 'encoder' in model.stacks()
        self.names = [*self._layers]
        for name, parts in self._parts.items():
            heads = [f'{name}/{i}' for i in range(parts)]
            self.names += heads if name.endswith('/z') else [name]

    def check(self, edits: Mapping[str, Any]) -> None:
        """Raises UserError if a name or a value is not possible."""
        for name, value in edits.items():
            self._check_edit(name, value)

    def _check_edit(self, name: str, value: Any) -> None:
        if name not in self.names:
            raise UserError(
                f'edits: the model has no {name[:100]!r}. Choose a head, sublayer or '
                'layer that the page lists.'
            )
        if value == PATCH:
            if name in self._layers or not self._can_patch:
                raise UserError(
                    f'edits: {name} cannot be patched. Choose a head or sublayer of a '
                    'model with an encoder.'
                )
            return
        factor = as_number(value)
        if name in self._layers and factor not in (0, 1):
            raise UserError(f'edits: {name} has the factor {factor:g}. Use 0 or 1.')

    def functions(
        self, edits: Mapping[str, Any], donor: Donor | None
    ) -> interventions.Interventions:
        """Returns the interventions.

        Args:
          edits: A factor or 'patch' by name.
        """
        return {name: self._function(name, edits, donor) for name in self._parts}

    def _function(self, name, edits, donor):
        parts = self._parts[name]
        stack, layer, *_ = name.split('/')
        of_layer = as_number(edits.get(f'{stack}/{layer}', 1))
        chosen = [edits.get(name, edits.get(f'{name}/{i}', 1)) for i in range(parts)]
        is_patched = np.array([value == PATCH for value in chosen])
        factors = [1.0 if value == PATCH else as_number(value) for value in chosen]
        factor = np.array(factors, np.float32) * np.float32(of_layer)
        if name.endswith('/z'):
            factor, is_patched = factor[:, None], is_patched[:, None]
        patch = None
        if donor is not None:
            patch = is_patched, donor.values[name], donor.lengths[stack]
        return jax.tree_util.Partial(_edit, factor, patch)


def record(model: Model, variables: Any, batch: Batch) -> dict[str, jax.Array]:
    """Returns the activations that can be patched, by name."""
    if not model.stacks():
        return {}
    seen = introspection.record(model, variables, batch, missing_ok=True, names=_NAMES)
    return seen.values


def as_number(value: Any) -> float:
    """Returns a factor; raises UserError if it isn't a number of a sensible size."""
    try:
        factor = float(value)
    except (ValueError, TypeError, OverflowError):
        factor = float('nan')
    if not abs(factor) <= MAX_FACTOR:
        raise UserError(
            f'factor: {str(value)[:40]!r} is not a number from -{MAX_FACTOR} to '
            f'{MAX_FACTOR}. Enter one, such as 0.5.'
        )
    return factor


def _edit(factor, patch, value, where):
    if patch is not None:
        is_patched, other, length = patch
        exists_BT = where.index_BT < length
        exists = jnp.expand_dims(exists_BT, range(2, value.ndim))
        chosen = exists & is_patched[None, None]
        patched = interventions.set_to(other)(value, where)
        value = jnp.where(chosen, patched, value)
    return interventions.scale(factor)(value, where)
