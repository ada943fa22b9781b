"""Spec strings such as `'local(window=64)'`: a component and its arguments.

A component is a file `<folder>/<name>.py` that defines one public class. An installed
package can add components by entry points. Name a class of your own with its module,
or pass the class or an object in Python.

    LOSSES = Folder('flaxformer_lite.losses', 'Loss')
    loss = LOSSES.make('smoothed(rate=0.1)')       # from losses/smoothed.py
    loss = LOSSES.make('my_parts.Focal(gamma=2)')  # from my_parts.py, or a package
"""

import ast
import dataclasses
import difflib
import functools
import importlib.util
import inspect
import pkgutil
import re
import sys
import traceback
import types
import warnings
from collections.abc import Collection, Mapping
from importlib import metadata
from typing import Any, ClassVar, Protocol, runtime_checkable

from flaxformer_lite import validation


class ModuleError(ImportError):
    """A user's module cannot be imported; the cause says why."""


@runtime_checkable
class Dataclass(Protocol):
    """Any dataclass, for annotations."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


# A component's name; in Python also its class, or an object of it.
Spec = str | type | Dataclass

# The packages of this project.
OURS = (
    'flaxformer_lite',
    'experiments',
    'parallel_grammar',
    'flaxformer_checkpoints',
    'flaxformer_explain',
)
# User packages and modules that specs have named.
_elsewhere: set[str] = set()
# Exceptions that Python raises for text it can't parse. Deeply nested text raises one
# of the last two, depending on the Python version.
_UNREADABLE = (SyntaxError, ValueError, TypeError, RecursionError, MemoryError)
_OF_FLAX = ('parent', 'name')  # attributes that Flax adds to every module


@dataclasses.dataclass(frozen=True)
class Folder:
    """The components of one kind: a package's files, entry points and user classes.

    Attributes:
      base: Name of the class in `<package>/base.py` from which components derive.
      may_be_empty: Whether '' and '[]' name no component.
      group: Group of the entry points by which installed packages add components.
        Defaults to `package`; '' allows no entry points.
    """

    package: str
    base: str
    may_be_empty: bool = False
    group: str | None = None

    def names(self) -> list[str]:
        """Returns the names of the components, without importing them."""
        return sorted({*self._files(), *entry_points(self._group)})

    @property
    def _group(self) -> str:
        return self.package if self.group is None else self.group

    def _files(self) -> set[str]:
        package = importlib.util.find_spec(self.package)
        assert package, self.package
        files = pkgutil.iter_modules(package.submodule_search_locations)
        names = {file.name for file in files if not file.name.startswith('_')}
        return names - {'base'}

    def load(self, name: str) -> Any:
        """Returns the class of a name without a module; a file takes precedence."""
        if name in self._files():
            return _only_class(f'{self.package}.{name}')
        return load_entry_point(self._group, name)

    def check_name(self, spec: Spec) -> None:
        """Checks, without imports, that a name without a module has a file.

        Raises:
          ValueError: The spec is malformed, or the name is unknown.
        """
        name = Component(spec).name
        if '.' in name or name in self.names():
            return
        hint = validation.did_you_mean(name, self.names())
        raise ValueError(
            f'{validation.quote(name)} is not one of {", ".join(self.names())}, nor '
            f'the path of a class, such as my_package.my_module.MyClass{hint}'
        )

    def check_class(self, name: str, cls: Any) -> None:
        """Raises ValueError unless a class is of this kind."""
        base = getattr(importlib.import_module(f'{self.package}.base'), self.base)
        if not (isinstance(cls, type) and issubclass(cls, base)):
            raise ValueError(
                f'{name} is not a subclass of {self.base}. Derive it from '
                f'{base.__module__}.{self.base}.'
            )

    def find(self, spec: Spec) -> 'Component':
        """Resolves a spec; nothing is built.

        Raises:
          ValueError: The spec is malformed, or the class doesn't exist or isn't of this
            kind.
        """
        component = Component(spec, self)
        _ = component.cls
        return component

    def make(self, spec: Spec, /, **given: Any) -> Any:
        """Builds the object that a spec names; `given` are arguments that it can't set.

        Raises:
          ValueError: As `find` and `Component.make`.
        """
        return Component(spec, self).make(**given)


class Component(str):
    """A spec, parsed once: its text, and the class and arguments that it names.

    Compares and prints as its text, which `config.json` stores. `Component(component)`
    is the same object.

    Attributes:
      entries: The components of a list in brackets; a single component is its own.
      name, arguments: Of a single component; for a list they raise ValueError.

    Examples:
      >>> component = Component('local(window=64)')
      >>> component.name, component.arguments
      ('local', {'window': 64})
      >>> Component('[local(window=64), softmax]').entries
      ('local(window=64)', 'softmax')
    """

    folder: 'Folder | None'
    entries: 'tuple[Component, ...]'
    _given: Spec

    def __new__(cls, spec: Spec, folder: 'Folder | None' = None) -> 'Component':
        """Parses a spec of a folder; imports nothing.

        Raises:
          ValueError: The spec is malformed.
        """
        if isinstance(spec, Component):
            if folder in (None, spec.folder):
                return spec
            spec = spec._given
        if not isinstance(spec, str):
            component = cls.of(*parse(spec), _class_of(spec))
        else:
            component = super().__new__(cls, spec)
            component.entries = component._read_entries(folder)
        component.folder = folder
        component._given = spec
        return component

    def _read_entries(self, folder: 'Folder | None') -> 'tuple[Component, ...]':
        if folder and folder.may_be_empty and self in ('', '[]'):
            return ()
        texts = entries(str(self))
        if texts != [self]:
            return tuple(Component(text, folder) for text in texts)
        _ = self._parsed  # reports malformed text
        return (self,)

    @classmethod
    def of(cls, name: str, arguments: dict[str, Any], function: Any) -> 'Component':
        """Returns the component of a class or function, without a folder."""
        component = super().__new__(cls, _text_of(name, arguments))
        component.folder = None
        component.entries = (component,)
        component._parsed = name, arguments
        component._function = function
        return component

    def __deepcopy__(self, memo: Any) -> 'Component':
        return self

    def __reduce__(self):
        # Doesn't parse again: the text of an object may not be a spec.
        return str.__new__, (Component, str(self)), vars(self)

    @functools.cached_property
    def _parsed(self) -> tuple[str, dict[str, Any]]:
        return parse(str(self))  # raises ValueError: it is a list

    @property
    def is_list(self) -> bool:
        return self.entries != (self,)

    @property
    def name(self) -> str:
        return self._parsed[0]

    @property
    def arguments(self) -> dict[str, Any]:
        return self._parsed[1]

    @functools.cached_property
    def _function(self) -> Any:
        assert self.folder, self
        self.folder.check_name(self)
        if '.' in self.name:
            return imported(self.name)
        return self.folder.load(self.name)

    @functools.cached_property
    def cls(self) -> Any:
        """The class or function, imported at the first use.

        Raises:
          ValueError: The class doesn't exist or isn't of the folder's kind.
        """
        if self.folder:
            self.folder.check_class(self.name, self._function)
        return self._function

    @property
    def parameters(self) -> dict[str, Any]:
        """All parameters: name → annotation."""
        signature = inspect.signature(self.cls)
        found = {name: p.annotation for name, p in signature.parameters.items()}
        if 'parent' in found:
            found = {name: kind for name, kind in found.items() if name not in _OF_FLAX}
        return found

    def accepted(self, **given: Any) -> dict[str, Any]:
        """Returns the arguments that are parameters."""
        takes = self.parameters
        return {argument: x for argument, x in given.items() if argument in takes}

    def check(self, given: Collection[str] = ()) -> None:
        """Checks the user's arguments; those in `given` are not the user's to set.

        Raises:
          ValueError: An argument is unknown, missing or invalid; names it, the allowed
            values, and an example from the docstring, if any.
        """
        takes = {x: kind for x, kind in self.parameters.items() if x not in given}
        for argument, value in self.arguments.items():
            if argument not in takes:
                names = ', '.join(takes) or 'no arguments'
                unknown = validation.quote(argument)
                raise ValueError(
                    f'unknown argument {unknown}; {self.name} takes {names}'
                )
            validation.check(argument, takes[argument], value)
        defaults = inspect.signature(self.cls).parameters
        needed = [x for x in takes if defaults[x].default is inspect.Parameter.empty]
        missing = [x for x in needed if x not in self.arguments]
        if missing:
            pattern = rf'`({re.escape(self.name)}\(.+?\))`'
            example = re.search(pattern, self.cls.__doc__ or '')
            such = f', such as {example[1]}' if example else ''
            raise ValueError(f'{self.name} needs {", ".join(missing)}{such}')

    def make(self, **given: Any) -> Any:
        """Builds the object.

        Raises:
          ValueError: As `check`, or the class raises it.
        """
        self.check(given)
        try:
            inspect.signature(self.cls).bind(**given, **self.arguments)
        except TypeError as error:
            raise ValueError(f'{self.name}: {error}') from None
        return self.cls(**given, **self.arguments)


def parse(spec: Spec) -> tuple[str, dict[str, Any]]:
    """Parses `'local(window=64)'` to `('local', {'window': 64})`; values are literals.

    A class or an object gives the qualified name and the attributes that differ from
    their defaults.

    Raises:
      ValueError: The text isn't a name, optionally with literal keyword arguments.
    """
    if not isinstance(spec, str):
        cls = _class_of(spec)
        return f'{cls.__module__}.{cls.__qualname__}', _attributes(spec)
    try:
        return _read(spec)
    except _UNREADABLE:
        raise ValueError(
            f'{validation.quote(spec)} is not a spec: write name or '
            'name(argument=value, …), with quotes around texts'
        ) from None


def kind_of(part: Spec, folders: Mapping[str, Folder]) -> str:
    """Returns the kind of a component: the key of the folder that finds it.

    Raises:
      ValueError: No folder finds it, or several do.
    """
    kinds, refused = [], set()
    for kind, folder in folders.items():
        try:
            folder.find(part)
            kinds.append(kind)
        except ValueError as error:
            refused.add(str(error))
    if len(kinds) == 1:
        return kinds[0]
    if len(refused) == 1 and not kinds:
        raise ValueError(*refused)
    name, _ = parse(part)
    problem = 'is not a component'
    if kinds:
        problem = f'matches several kinds of component: {", ".join(kinds)}'
        fix = 'Pass its kind.'
    elif '.' in name:
        fix = (
            'Derive it from the base class of its kind, such as '
            'flaxformer_lite.losses.base.Loss.'
        )
    else:
        known = sorted({x for folder in folders.values() for x in folder.names()})
        close = ', '.join(difflib.get_close_matches(name, known)) or 'none'
        fix = f'Close matches: {close}. Pass the path of your own class.'
    raise ValueError(f'{validation.quote(name)} {problem}. {fix}')


def text(spec: Spec) -> str:
    """Returns a spec as a string from which the component can be rebuilt.

    Raises:
      ValueError: The class can't be imported by name, or an attribute of an object
        isn't a literal.
    """
    if isinstance(spec, str):
        return spec
    cls = _class_of(spec)
    name, arguments = parse(spec)
    written = _text_of(name, arguments)
    try:
        is_found = cls.__module__ != '__main__' and imported(name) is cls
        is_found = is_found and parse(written) == (name, arguments)
    except ValueError:
        is_found = False
    if not is_found:
        raise ValueError(
            f'{validation.quote(written)} cannot be stored as text and rebuilt. '
            'Import the class from a file, such as my_parts.py, and pass only '
            'literals, such as numbers and strings.'
        )
    return written


def replace(spec: Spec, /, **arguments: Any) -> str:
    """Returns a spec with some arguments replaced or added, as a string.

        replace('cosine(peak=1e-3)', peak=0.5)  # 'cosine(peak=0.5)'

    Raises:
      ValueError: The spec is malformed.
    """
    name, given = parse(spec)
    return _text_of(name, given | arguments)


def _text_of(name: str, arguments: dict[str, Any]) -> str:
    given = ', '.join(f'{argument}={value!r}' for argument, value in arguments.items())
    return f'{name}({given})' if given else name


def entries(spec: Spec) -> list[Spec]:
    """Splits `'[local(window=64), softmax]'` into `['local(window=64)', 'softmax']`.

    Raises:
      ValueError: The brackets are empty or malformed.
    """
    if not isinstance(spec, str) or not spec.lstrip().startswith('['):
        return [spec]
    try:
        return list(_entries(spec))
    except _UNREADABLE:
        raise ValueError(
            f'{validation.quote(spec)} is not a list: write [spec, spec, …], with '
            'quotes around texts'
        ) from None


def _entries(spec: str) -> list[str]:
    node = _parse_expression(spec)
    if not isinstance(node, ast.List) or not node.elts:
        raise ValueError('no list')
    return [ast.unparse(entry) for entry in node.elts]


def _parse_expression(text: str) -> ast.expr:
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # about style, such as an unknown escape
        return ast.parse(text.strip(), mode='eval').body


def _read(spec: str) -> tuple[str, dict[str, Any]]:
    node = _parse_expression(spec)
    if not isinstance(node, ast.Call):
        return _name(node), {}
    arguments = {k.arg: ast.literal_eval(k.value) for k in node.keywords if k.arg}
    if node.args or len(arguments) != len(node.keywords):
        raise ValueError('an argument without a name, or one given twice')
    return _name(node.func), arguments


def _name(node: ast.expr) -> str:
    name = ast.unparse(node)
    is_name = isinstance(node, ast.Name | ast.Attribute)
    if not is_name or not all(part.isidentifier() for part in name.split('.')):
        raise ValueError('no name in front')
    return name


def _class_of(spec: type | Dataclass) -> type:
    if not isinstance(spec, type | Dataclass):
        raise ValueError(
            f'{validation.quote(spec)} is not a spec: give a name, a class or an '
            "object of a dataclass, and several as one text, '[name, name]'"
        )
    return spec if isinstance(spec, type) else type(spec)


def _attributes(spec: type | Dataclass) -> dict[str, Any]:
    if isinstance(spec, type):
        return {}
    found = {}
    for field in dataclasses.fields(spec):
        value = getattr(spec, field.name, field.default)
        if field.init and field.name not in _OF_FLAX and value != field.default:
            found[field.name] = value
    return found


def is_of_part(error: BaseException) -> bool:
    """Returns whether a user's component raised an error while it ran.

    Errors while it is built don't count.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    modules = [frame.f_globals.get('__name__', '') for frame in frames]
    return __name__ not in modules and own_traceback(error) is not None


def own_traceback(error: BaseException) -> types.TracebackType | None:
    """Returns the traceback from the first frame of code from elsewhere, if any."""
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        is_generated = frame.f_code.co_filename == '<string>'  # as of a dataclass
        if _is_elsewhere(frame.f_globals.get('__name__', '')) and not is_generated:
            return trace
        trace = trace.tb_next
    return None


def _is_elsewhere(module: str) -> bool:
    return _package_of(module) in _elsewhere


def _note_package(package: str) -> None:
    if package not in OURS:
        _elsewhere.add(package)


def _package_of(module: str) -> str:
    return module.partition('.')[0]


@functools.cache
def entry_points(group: str) -> dict[str, metadata.EntryPoint]:
    """Returns the entry points of a group, which installed packages declare, by name.

    Names are identifiers. If several have the same name, the first on `sys.path` wins,
    as for imports. See https://packaging.python.org/specifications/entry-points.
    """
    found: dict[str, metadata.EntryPoint] = {}
    for entry in metadata.entry_points(group=group):
        if entry.name.isidentifier():
            found.setdefault(entry.name, entry)
    return found


def load_entry_point(group: str, name: str) -> Any:
    """Imports what an entry point names.

    Raises:
      ModuleError: It is malformed, or its module raises an error, which is the cause.
    """
    entry = entry_points(group)[name]
    package = _package_of(entry.value.partition(':')[0])  # it may be malformed
    _note_package(package)
    try:
        return entry.load()
    except Exception as error:
        if package in OURS:
            raise
        what = f'{type(error).__name__}: {error}'.removesuffix(': ')
        source = f' of {entry.dist.name}' if entry.dist else ''
        raise ModuleError(
            f'the entry point {name} = {entry.value!r}{source} cannot be loaded: {what}'
        ) from error


def imported(name: str) -> Any:
    """Returns the class or function of a dotted name.

    Raises:
      ValueError: The module doesn't exist, lacks the callable, or is a program.
      ModuleError: The module raises an error, which is the cause.
    """
    module_name, _, class_name = name.rpartition('.')
    package = _package_of(name)
    # A shared config may name any module, and importing some has effects.
    is_standard = package in (*sys.stdlib_module_names, 'test')  # not among them
    if is_standard or '__main__' in name.split('.'):
        raise ValueError(
            f'{name} cannot be a component. Give the path of your own class, such as '
            'my_parts.MyClass.'
        )
    _note_package(package)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ValueError(
            f'{name}: module {error.name} not found in the working directory or among '
            'installed packages'
        ) from None
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        what = f'{type(error).__name__}: {error}'.removesuffix(': ')
        raise ModuleError(f'{module_name} cannot be imported: {what}') from error
    found = getattr(module, class_name, None)
    if not callable(found):
        there = [key for key, value in vars(module).items() if callable(value)]
        hint = validation.did_you_mean(class_name, there)
        raise ValueError(f'{name}: {module_name} has no class {class_name}{hint}')
    return found


def _only_class(module_name: str) -> type:
    module = importlib.import_module(module_name)
    public = [
        v
        for k, v in vars(module).items()
        if isinstance(v, type) and not k.startswith('_')
    ]
    classes = [c for c in public if c.__module__ == module_name]
    if len(classes) != 1:
        names = ', '.join(c.__name__ for c in classes) or 'none'
        raise ValueError(
            f'{module_name} must define one public class, not {names}. Begin the names '
            'of the others with _.'
        )
    return classes[0]
