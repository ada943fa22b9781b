"""Conversion between our variables and a family's arrays.

PyTorch matrices are (outputs, inputs), and their heads share one axis.
"""

import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax

from flaxformer_checkpoints.families.base import Family
from flaxformer_lite.config.schema import ModelConfig
from flaxformer_lite.models.base import Model
from flaxformer_lite.training.train_step import init_variables

# The last component of a parameter's path → the last component of their name.
_LEAVES = {'kernel': 'weight', 'scale': 'weight', 'bias': 'bias'}
# The parameters that rotary positions rotate, and the norms before the rotation.
_ROTATED = re.compile('self_attention/((query|key)/|core_attention/(query|key)_norm/)')
_FIELDS = {'stack': 'encoder|decoder', 'layer': r'\d+'}
_MAX_NAMES = 3
# Prefix of names in files of a whole model; files without the head lack it.
_PREFIX = 'model.'


class Array(NamedTuple):
    """One parameter.

    Attributes:
      path: Path of our parameter, such as
        ('encoder', 'layer_0', 'feed_forward', 'up', 'kernel').
      halves: Whether a head's features 2i and 2i + 1 are i and i + d_k / 2 in their
        array, because rotary positions pair features differently.
      zero_where_missing: Whether the parameter is 0 if files lack it.
    """

    path: tuple[str, ...]
    shape: tuple[int, ...]
    name: str
    aliases: tuple[str, ...]
    halves: bool = False
    zero_where_missing: bool = False

    @property
    def their_shape(self) -> tuple[int, ...]:
        leaf = self.path[-1]
        if leaf == 'kernel':
            inputs = self._fan_in
            return math.prod(self.shape) // inputs, inputs
        if leaf == 'output_bias':
            return (1, *self.shape)
        if leaf == 'bias':
            return (math.prod(self.shape),)
        return self.shape

    @property
    def _fan_in(self) -> int:
        # The output projection contracts all axes but the last; other kernels the
        # first.
        inputs = self.shape[:-1] if self.path[-2] == 'out_proj' else self.shape[:1]
        return math.prod(inputs)

    def to_ours(self, array: Any) -> Any:
        """Converts their array to ours: a view, if the array type has views."""
        if self.path[-1] == 'kernel':
            array = array.T
        if self.halves:
            pairs = array.reshape(*self.shape[:-1], 2, -1)
            array = pairs.swapaxes(-1, -2)
        return array.reshape(self.shape)

    def to_theirs(self, array: Any) -> Any:
        if self.halves:
            pairs = array.reshape(*self.shape[:-1], -1, 2)
            array = pairs.swapaxes(-1, -2)
        if self.path[-1] != 'kernel':
            return array.reshape(self.their_shape)
        return array.reshape(self._fan_in, -1).T


def table(family: type[Family], config: ModelConfig, model: Model) -> list[Array]:
    """Returns all parameters of a model, with their names in a family.

    Raises:
      ValueError: The family lacks an array of the model, or the model has variables
        other than parameters.
    """
    variables = jax.eval_shape(lambda: _separate_variables(model))
    others = set(variables) - {'params'}
    if others:
        raise ValueError(f'checkpoints cannot store {", ".join(sorted(others))}')
    shapes = {
        '/'.join(key.key for key in path): x.shape
        for path, x in jax.tree.leaves_with_path(variables['params'])
    }
    patterns = family.arrays_of(config)
    names = {path: _their_name(family, patterns, path) for path in shapes}
    arrays = []
    for path, shape in shapes.items():
        # An alias in one model may be a separate array in another.
        aliases = set(family.aliases.get(path, ())) - set(names.values())
        is_rotated = _ROTATED.search(path) is not None
        arrays.append(
            Array(
                tuple(path.split('/')),
                shape,
                names[path],
                tuple(sorted(aliases)),
                halves=family.rotates_halves and is_rotated,
                zero_where_missing=path in family.zeros,
            )
        )
    return arrays


def _separate_variables(model: Model) -> Any:
    return init_variables(model.with_separate_layers(), jax.random.key(0))


def _their_name(family: type[Family], patterns: Mapping[str, str], path: str) -> str:
    module, _, leaf = path.rpartition('/')
    for ours, theirs in patterns.items():
        pattern = _pattern(ours)
        if found := pattern.fullmatch(path):
            return theirs.format(**found.groupdict())
        if found := pattern.fullmatch(module):
            name = theirs.format(**found.groupdict())
            return f'{name}.{_LEAVES[leaf]}'
    raise ValueError(f'{family.__name__} has no array for the parameter {path}')


@functools.cache
def _pattern(entry: str) -> re.Pattern[str]:
    groups = {name: f'(?P<{name}>{values})' for name, values in _FIELDS.items()}
    literal = re.escape(entry).replace(r'\{', '{').replace(r'\}', '}')
    return re.compile(literal.format(**groups))


def resolve_aliases(arrays: list[Array], names: Iterable[str]) -> list[Array]:
    """Removes the whole-model prefix from names if no name in the files has it."""
    if any(name.startswith(_PREFIX) for name in names):
        return arrays
    return [
        array._replace(
            name=array.name.removeprefix(_PREFIX),
            aliases=tuple(x.removeprefix(_PREFIX) for x in array.aliases),
        )
        for array in arrays
    ]


def check_names(
    family: type[Family],
    arrays: Iterable[Array],
    shapes: Mapping[str, tuple[int, ...]],
) -> None:
    """Checks that a checkpoint has the model's arrays, given its shapes by name.

    Raises:
      ValueError: Arrays are missing, left over or of the wrong shape; names the first
        few.
    """
    missing = []
    wrong = []
    known = set()
    for array in arrays:
        names = [name for name in (array.name, *array.aliases) if name in shapes]
        known.update(names)
        if not names and not array.zero_where_missing:
            missing.append(array.name)
        for name in names:
            if shapes[name] != array.their_shape:
                shape, expected = shapes[name], array.their_shape
                wrong.append(
                    f'{name} is {_format_shape(shape)}, not {_format_shape(expected)}'
                )
    computed = [re.compile(pattern) for pattern in family.computed]
    unused = [
        name
        for name in sorted(set(shapes) - known)
        if not any(
            pattern.fullmatch(x) for pattern in computed for x in (name, _PREFIX + name)
        )
    ]
    problems = [
        f'{words}: {_first(found)}'
        for words, found in (
            ('missing', missing),
            ('unused', unused),
            ('different shape', wrong),
        )
        if found
    ]
    if problems:
        raise ValueError('the weights do not fit the config; ' + '; '.join(problems))


def _first(words: list[str]) -> str:
    more = len(words) - _MAX_NAMES
    text = ', '.join(words[:_MAX_NAMES])
    return f'{text} and {more} more' if more > 0 else text


def _format_shape(shape: tuple[int, ...]) -> str:
    return ' × '.join(map(str, shape)) or 'a number'


def to_variables(arrays: Iterable[Array], read: Callable[[Array], Any]) -> Any:
    params: dict[str, Any] = {}
    for array in arrays:
        tree = params
        for name in array.path[:-1]:
            tree = tree.setdefault(name, {})
        tree[array.path[-1]] = read(array)
    return {'params': params}


def to_theirs(arrays: Iterable[Array], variables: Any) -> dict[str, Any]:
    """Converts variables with separate layers to their arrays, by name."""
    theirs = {}
    for array in arrays:
        x = variables['params']
        for name in array.path:
            x = x[name]
        theirs[array.name] = array.to_theirs(x)
    return theirs
