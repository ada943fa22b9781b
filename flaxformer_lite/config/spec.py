"""Spec strings such as `'local(window=64)'`: a component and its arguments.

A component is a file `<folder>/<name>.py` that defines one public class. An installed
package can add components by entry points. Name a class of your own with its module,
or pass the class or an object in Python.

    LOSSES = Folder('flaxformer_lite.losses', 'Loss')
    loss = LOSSES.make('focal(gamma=1.0)')         # from losses/focal.py
    loss = LOSSES.make('my_parts.Focal(gamma=2)')  # from my_parts.py, or a package
"""

import ast
import dataclasses
import functools
import importlib.util
import inspect
import pkgutil
import re
import sys
import warnings
from collections.abc import Collection, Mapping
from importlib import metadata
from typing import Any, ClassVar, Protocol, runtime_checkable

from flaxformer_lite import validation
from flaxformer_lite.lazy_exports import public_name
from flaxformer_lite.validation import did_you_mean, quote


class ModuleError(ImportError):
    """A user's module cannot be imported; the cause says why.

    Attributes:
      name: Its package.
    """


@runtime_checkable
class Dataclass(Protocol):
    """Any dataclass, for annotations."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


# A component's text; in Python also its class, an object of it, or a `Component`.
Spec = str | type | Dataclass

# Top-level packages of this project.
OWN_PACKAGES = (
    'flaxformer_lite',
    'experiments',
    'parallel_grammar',
    'flaxformer_checkpoints',
    'flaxformer_explain',
)
# Exceptions that Python raises for text it can't parse. Deeply nested text raises one
# of the last two, depending on the Python version.
_UNREADABLE = (SyntaxError, ValueError, TypeError, RecursionError, MemoryError)
_FLAX_ATTRIBUTES = ('parent', 'name')  # attributes that Flax adds to every module


@dataclasses.dataclass(frozen=True)
class Folder:
    """The components of one kind: a package's files, entry points and user classes.

    Attributes:
      base: Name of the class in `<package>/base.py` from which components derive.
      lists: Whether a spec may be a list in brackets.
      may_be_empty: Whether '' and '[]' are valid specs, for a field that is optional.
      group: Group of the entry points by which installed packages add components.
        Defaults to `package`; '' allows no entry points.
    """

    package: str
    base: str
    lists: bool = False
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

    def check_name(self, name: str) -> None:
        """Raises ValueError for an unknown name without a module. Imports nothing."""
        if '.' not in name and name not in self.names():
            raise ValueError(
                f'{quote(name)} is not one of {", ".join(self.names())}, nor the path '
                'of a class, such as my_package.my_module.MyClass'
                f'{did_you_mean(name, self.names())}'
            )

    def load(self, name: str) -> Any:
        """Imports the class of a name; a file takes precedence over an entry point.

        Raises:
          ValueError: The class doesn't exist, or isn't of this kind.
        """
        self.check_name(name)
        if '.' in name:
            found = imported(name)
        elif name in self._files():
            found = _only_class(f'{self.package}.{name}')
        else:
            found = load_entry_point(self._group, name)
        self.check_class(name, found)
        return found

    def check_class(self, name: str, cls: Any) -> None:
        """Raises ValueError unless a class is of this kind."""
        base = getattr(importlib.import_module(f'{self.package}.base'), self.base)
        if not (isinstance(cls, type) and issubclass(cls, base)):
            raise ValueError(
                f'{name} is not a subclass of {self.base}. Derive it from '
                f'{public_name(base)}.'
            )

    def find(self, spec: Spec) -> 'Component':
        """Returns the component of a spec, with its class imported; nothing is built.

        Raises:
          ValueError: The spec is malformed, or the class doesn't exist or isn't of this
            kind.
        """
        component = Component.of(spec, self)
        _ = component.cls
        return component

    def make(self, spec: Spec, /, **given: Any) -> Any:
        """Builds the object that a spec names; `given` are arguments that it can't set.

        Raises:
          ValueError: As `find` and `Component.make`.
        """
        return Component.of(spec, self).make(**given)


@dataclasses.dataclass(frozen=True)
class Component:
    """A class and its arguments, or a list of components.

    Components are equal if they have the same name and arguments, even if their specs
    are formatted differently. The class is imported at its first use.

    Attributes:
      text: The spec, which `config.json` stores.
      name: The file or entry point, or the path of the class; '' for a list.
      listed: The components of a list in brackets, else None.
      given: The class, if it is given directly instead of by its name.

    Examples:
      >>> component = Component.of('local(window=64)')
      >>> component.name, component.arguments
      ('local', {'window': 64})
      >>> [str(entry) for entry in Component.of('[local(window=64), softmax]').entries]
      ['local(window=64)', 'softmax']
    """

    text: str = dataclasses.field(compare=False)
    name: str = ''
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)
    listed: 'tuple[Component, ...] | None' = None
    folder: Folder | None = dataclasses.field(default=None, compare=False)
    given: Any = dataclasses.field(default=None, compare=False)

    @classmethod
    def of(cls, spec: Spec, folder: Folder | None = None) -> 'Component':
        """Parses a spec of a folder, without imports.

        Raises:
          ValueError: The spec is malformed, or a list that the folder doesn't allow.
        """
        found = spec
        if isinstance(spec, str):
            found = _parse(spec)
        elif not isinstance(spec, Component):
            found = _from_class(spec)
        assert isinstance(found, Component)
        if folder is None or found.folder is folder:
            return found
        if found.listed and not folder.lists:
            found._check_single()
        if found.listed == () and not folder.may_be_empty:
            raise ValueError(f'{quote(found.text)} names no component. Give one.')
        listed = found.listed and tuple(cls.of(x, folder) for x in found.listed)
        return dataclasses.replace(found, listed=listed, folder=folder)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f'Component({self.text!r})'

    @property
    def is_list(self) -> bool:
        return self.listed is not None

    @property
    def entries(self) -> 'tuple[Component, ...]':
        """The components of a list; a single component is its own."""
        return (self,) if self.listed is None else self.listed

    @property
    def label(self) -> str:
        """The name in messages: 'local', or 'fl.attention.Local' of a class."""
        return self.name if self.given is None else public_name(self.given)

    @functools.cached_property
    def cls(self) -> Any:
        """The class or function, imported at the first use.

        Raises:
          ValueError: It doesn't exist or isn't of the folder's kind.
        """
        self._check_single()
        if self.given is None:
            return self.folder.load(self.name) if self.folder else imported(self.name)
        if self.folder:
            self.folder.check_class(self.label, self.given)
        return self.given

    def _check_single(self) -> None:
        if self.is_list:
            raise ValueError(f'{quote(self.text)} is a list. Give a single component.')

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters that are not set by a model: name → annotation."""
        signature = inspect.signature(self.cls)
        found = {name: p.annotation for name, p in signature.parameters.items()}
        others = getattr(self.cls, 'set_by_model', ())
        if 'parent' in found:
            others = (*others, *_FLAX_ATTRIBUTES)
        return {name: kind for name, kind in found.items() if name not in others}

    def accepted(self, **given: Any) -> dict[str, Any]:
        """Returns the arguments that are parameters."""
        takes = self.parameters
        return {argument: x for argument, x in given.items() if argument in takes}

    def with_arguments(self, **arguments: Any) -> 'Component':
        """Returns a component with some arguments replaced or added.

        Examples:
          >>> str(Component.of('cosine(peak=1e-3)').with_arguments(peak=0.5))
          'cosine(peak=0.5)'
        """
        self._check_single()
        arguments = {**self.arguments, **arguments}
        text = _format_spec(self.name, arguments)
        return dataclasses.replace(self, text=text, arguments=arguments)

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
                raise ValueError(
                    f'unknown argument {quote(argument)}; {self.label} takes {names}'
                )
            validation.check(argument, takes[argument], value)
        defaults = inspect.signature(self.cls).parameters
        required = [x for x in takes if defaults[x].default is inspect.Parameter.empty]
        missing = [x for x in required if x not in self.arguments]
        if missing:
            pattern = rf'`({re.escape(self.name)}\(.+?\))`'
            example = re.search(pattern, self.cls.__doc__ or '')
            example_text = f', such as {example[1]}' if example else ''
            raise ValueError(f'{self.label} needs {", ".join(missing)}{example_text}')

    def make(self, **given: Any) -> Any:
        """Builds the object.

        Raises:
          ValueError: As `check`, or the class raises it.
        """
        self.check(given)
        return self.cls(**given, **self.arguments)


def _parse(text: str) -> Component:
    if not text.strip():
        return Component(text, listed=())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')  # about style, such as an unknown escape
            node = ast.parse(text.strip(), mode='eval').body
        if isinstance(node, ast.List):
            return Component(
                text, listed=tuple(_from_node(ast.unparse(x), x) for x in node.elts)
            )
        return _from_node(text, node)
    except _UNREADABLE:
        name, _, _ = text.partition('(')
        hint = ''
        if '-' in name and name.replace('-', '_').isidentifier():
            hint = did_you_mean(name, [name.replace('-', '_')])
        raise ValueError(
            f'{quote(text)} is not a spec: write name, name(argument=value, …) or '
            f'[spec, spec, …]; texts need quotes{hint}'
        ) from None


def _from_node(text: str, node: ast.expr) -> Component:
    arguments = {}
    if isinstance(node, ast.Call):
        arguments = {k.arg: ast.literal_eval(k.value) for k in node.keywords if k.arg}
        if node.args or len(arguments) != len(node.keywords):
            raise ValueError('an argument without a name, or one given twice')
        node = node.func
    name = ast.unparse(node)
    if not all(part.isidentifier() for part in name.split('.')):
        raise ValueError('no name in front')
    return Component(text, name, arguments)


def _from_class(spec: type | Dataclass) -> Component:
    if not isinstance(spec, type | Dataclass):
        raise ValueError(
            f'{quote(spec)} is not a spec: give an object, such as '
            'fl.attention.Local(window=64), or its class. Your own classes derive from '
            'the base class of their kind, such as fl.attention.Attention'
        )
    cls = spec if isinstance(spec, type) else type(spec)
    arguments = {}
    if not isinstance(spec, type):
        for field in dataclasses.fields(spec):
            value = getattr(spec, field.name, field.default)
            if (
                field.init
                and field.name not in _FLAX_ATTRIBUTES
                and value != field.default
            ):
                arguments[field.name] = value
    name = f'{cls.__module__}.{cls.__qualname__}'
    return Component(_format_spec(name, arguments), name, arguments, given=cls)


def _format_spec(name: str, arguments: Mapping[str, Any]) -> str:
    given = ', '.join(f'{argument}={value!r}' for argument, value in arguments.items())
    return f'{name}({given})' if given else name


def text(spec: Spec) -> str:
    """Returns a spec as a string from which the component can be rebuilt.

    Raises:
      ValueError: The class can't be imported by name, or an attribute of an object
        isn't a literal.
    """
    component = Component.of(spec)
    if component.given is None:
        return component.text
    try:
        is_found = component.given.__module__ != '__main__'
        is_found = is_found and imported(component.name) is component.given
        is_found = is_found and Component.of(component.text) == component
    except ValueError:
        is_found = False
    if not is_found:
        raise ValueError(
            f'{quote(component.text)} cannot be stored as text and rebuilt. Import the '
            'class from a file, such as my_parts.py, and pass only literals, such as '
            'numbers and strings.'
        )
    return component.text


def kind_of(spec: Spec, folders: Mapping[str, Folder]) -> str:
    """Returns the kind of a component, by its base class.

    Raises:
      ValueError: No kind has it, or several kinds have a component of this name.
    """
    found = []
    reasons = set()
    for kind, folder in folders.items():
        try:
            folder.find(spec)
            found.append(kind)
        except ValueError as error:
            reasons.add(str(error))
    if len(found) == 1:
        return found[0]
    component = Component.of(spec)
    if found:
        raise ValueError(
            f'{component} matches several kinds of component. Pass its kind: '
            f'{" or ".join(found)}.'
        )
    if len(reasons) == 1:
        raise ValueError(reasons.pop())
    known = {name for folder in folders.values() for name in folder.names()}
    raise ValueError(
        f'{quote(component.name)} is not a component. Give a name, or the path of a '
        'class that derives from the base class of its kind, such as fl.losses.Loss'
        f'{did_you_mean(component.name, sorted(known))}'
    )


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
    try:
        return entry.load()
    except Exception as error:
        if entry.value.startswith(OWN_PACKAGES):
            raise
        what = f'{type(error).__name__}: {error}'.removesuffix(': ')
        source = f' of {entry.dist.name}' if entry.dist else ''
        raise ModuleError(
            f'the entry point {name} = {entry.value!r}{source} cannot be loaded: '
            f'{what}',
            name=entry.value.partition(':')[0].partition('.')[0],
        ) from error


def imported(name: str) -> Any:
    """Returns the class or function of a dotted name.

    Raises:
      ValueError: The module doesn't exist, lacks the callable, or is a program.
      ModuleError: The module raises an error, which is the cause.
    """
    module_name, _, class_name = name.rpartition('.')
    # A shared config may name any module, and importing some has effects.
    is_standard = name.partition('.')[0] in (*sys.stdlib_module_names, 'test')
    if is_standard or not module_name or '__main__' in name.split('.'):
        raise ValueError(
            f'{name} cannot be a component. Give the path of your own class, such as '
            'my_parts.MyClass.'
        )
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
        raise ModuleError(
            f'{module_name} cannot be imported: {what}', name=name.partition('.')[0]
        ) from error
    found = getattr(module, class_name, None)
    if not callable(found):
        there = [key for key, value in vars(module).items() if callable(value)]
        hint = did_you_mean(class_name, there)
        raise ValueError(f'{name}: {module_name} has no class {class_name}{hint}')
    return found


def _only_class(module_name: str) -> type:
    module = importlib.import_module(module_name)
    classes = [
        x
        for name, x in vars(module).items()
        if isinstance(x, type)
        and x.__module__ == module_name
        and not name.startswith('_')
    ]
    if len(classes) != 1:
        names = ', '.join(x.__name__ for x in classes) or 'none'
        raise ValueError(
            f'{module_name} must define one public class, not {names}. Begin the names '
            'of the others with _.'
        )
    return classes[0]
