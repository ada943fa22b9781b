"""Our variables and a family's arrays: the same numbers under other names and shapes.

PyTorch's matrices are outputs × inputs, with the heads in one axis: those are the only
two differences of shape. Both directions go by the family's one table.
"""

import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax

from flaxformer_lite.config.schema import ModelConfig
from flaxformer_lite.families.base import Family
from flaxformer_lite.models.base import Model
from flaxformer_lite.training.train_step import init_variables

# Of a parameter's path the last word → the last word of theirs.
_LEAVES = {'kernel': 'weight', 'scale': 'weight', 'bias': 'bias'}
# What rotary positions turn, or stands before it.
_ROTATED = re.compile('self_attention/((query|key)/|core_attention/(query|key)_norm/)')
_FIELDS = {'stack': 'encoder|decoder', 'layer': r'\d+'}
_MOST_NAMED = 3
# Of names in files of a whole model; the model without its head has none.
_PREFIX = 'model.'


class Array(NamedTuple):
    """One parameter.

    Attributes:
      path: ours, such as ('encoder', 'layer_0', 'feed_forward', 'up', 'kernel').
      shape: ours.
      name: theirs.
      aliases: other names that it may have.
      halves: whether features 2i and 2i + 1 of a head are i and i + d_k / 2 there.
      zero_where_missing: whether files may lack it.
    """

    path: tuple[str, ...]
    shape: tuple[int, ...]
    name: str
    aliases: tuple[str, ...]
    halves: bool = False
    zero_where_missing: bool = False

    @property
    def their_shape(self) -> tuple[int, ...]:
        """Their array's shape."""
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
        # Of the attention's result all axes but the last are read; of x the first.
        inputs = self.shape[:-1] if self.path[-2] == 'out_proj' else self.shape[:1]
        return math.prod(inputs)

    def to_ours(self, array: Any) -> Any:
        """Their array as ours: a view, where the kind of array has views."""
        if self.path[-1] == 'kernel':
            array = array.T
        if self.halves:
            pairs = array.reshape(*self.shape[:-1], 2, -1)
            array = pairs.swapaxes(-1, -2)
        return array.reshape(self.shape)

    def to_theirs(self, array: Any) -> Any:
        """Our array as theirs."""
        if self.halves:
            pairs = array.reshape(*self.shape[:-1], -1, 2)
            array = pairs.swapaxes(-1, -2)
        if self.path[-1] != 'kernel':
            return array.reshape(self.their_shape)
        return array.reshape(self._fan_in, -1).T


def table(family: type[Family], config: ModelConfig, model: Model) -> list[Array]:
    """All parameters of a model, with their names in a family.

    Args:
      family: whose names.
      config: of the model.
      model: made of it.

    Raises:
      ValueError: the family has no array for a parameter, or the model keeps other
        things than parameters.
    """
    variables = jax.eval_shape(lambda: _separate_variables(model))
    others = set(variables) - {'params'}
    if others:
        raise ValueError(f'a checkpoint has no place for {", ".join(sorted(others))}')
    shapes = {
        '/'.join(key.key for key in path): x.shape
        for path, x in jax.tree.leaves_with_path(variables['params'])
    }
    patterns = family.arrays_of(config)
    names = {path: _their_name(family, patterns, path) for path in shapes}
    arrays = []
    for path, shape in shapes.items():
        # What repeats another array in one model may be one of its own in another.
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
    """Their name of a parameter: by the entry of its path, or of its module."""
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
    """Finds the stack and the layer in a path that an entry of a table stands for."""
    groups = {name: f'(?P<{name}>{values})' for name, values in _FIELDS.items()}
    literal = re.escape(entry).replace(r'\{', '{').replace(r'\}', '}')
    return re.compile(literal.format(**groups))


def as_in_files(arrays: list[Array], names: Iterable[str]) -> list[Array]:
    """The same parameters, by the names that files of a model without its head have.

    Args:
      arrays: as `table` has them.
      names: in the files; where one has the prefix of a whole model, nothing changes.
    """
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
    """Refuses a checkpoint that does not hold exactly what the model has.

    Args:
      family: whose checkpoint it is.
      arrays: the model's, as `table` has them.
      shapes: name → shape, of what the checkpoint holds.

    Raises:
      ValueError: names that are missing or left over, or other shapes; names the first.
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
                wrong.append(
                    f'{name} is {_by(shapes[name])}, not {_by(array.their_shape)}'
                )
    computed = [re.compile(pattern) for pattern in family.computed]
    left_over = [
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
            ('left over', left_over),
            ('of another shape', wrong),
        )
        if found
    ]
    if problems:
        raise ValueError('the weights do not fit the config; ' + '; '.join(problems))


def _first(words: list[str]) -> str:
    more = len(words) - _MOST_NAMED
    text = ', '.join(words[:_MOST_NAMED])
    return f'{text} and {more} more' if more > 0 else text


def _by(shape: tuple[int, ...]) -> str:
    return ' × '.join(map(str, shape)) or 'a number'


def to_variables(arrays: Iterable[Array], read: Callable[[Array], Any]) -> Any:
    """The variables of what `read` gives for each parameter, in our shape."""
    params: dict[str, Any] = {}
    for array in arrays:
        tree = params
        for name in array.path[:-1]:
            tree = tree.setdefault(name, {})
        tree[array.path[-1]] = read(array)
    return {'params': params}


def to_theirs(arrays: Iterable[Array], variables: Any) -> dict[str, Any]:
    """Their arrays by name, of variables whose layers are separate."""
    theirs = {}
    for array in arrays:
        x = variables['params']
        for name in array.path:
            x = x[name]
        theirs[array.name] = array.to_theirs(x)
    return theirs
