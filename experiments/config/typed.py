"""What a config file or a run's directory holds, made into a typed `ExperimentConfig`.

A config file returns a `ConfigDict`, which may leave fields out. `fill` gives it the
schema's defaults, so that every field can be overridden on the command line.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from experiments.config import upgrade
from experiments.config.flat import flatten
from experiments.config.schema import ExperimentConfig, Field, fields
from experiments.errors import UserError
from flaxformer_lite import ranges


def fill(config: ConfigDict) -> None:
    """Gives a config file's `ConfigDict` the fields that it leaves out.

    Each field then also has the schema's type, by which an override is read: a whole
    number becomes a float where one is meant, and a None a placeholder.

    Raises:
      UserError: a field that the schema does not have.
    """
    check_names(flatten(config.to_dict()))
    with config.unlocked():
        for name, field in fields().items():
            section, _, key = name.rpartition('.')
            part: Any = config
            if section:
                if section not in config:
                    config[section] = ConfigDict()
                part = config[section]
            _fill_field(part, key, field)


def _fill_field(part: ConfigDict, key: str, field: Field) -> None:
    kind = ranges.types_of(field.kind)[0]
    is_there = key in part
    value: Any = part[key] if is_there else field.default
    if is_there:
        is_whole = type(value) is int and kind is float
        is_untyped_none = value is None and part.get_type(key) is type(None)
        if not is_whole and not is_untyped_none:
            return
        del part[key]
    if value is None:
        part[key] = placeholder(kind)
    else:
        part[key] = float(value) if kind is float else value


def from_config_dict(config: ConfigDict) -> ExperimentConfig:
    """The typed config of a `ConfigDict`, whose missing fields have their defaults.

    Raises:
      UserError: a field that does not exist or a value that cannot be, by name.
    """
    filled = ConfigDict(config.to_dict())
    fill(filled)
    return from_dict(filled.to_dict())


def from_dict(config: Mapping[str, Any]) -> ExperimentConfig:
    """The typed config of a nested dictionary in which every field stands.

    Raises:
      UserError: a field that is missing or does not exist, or a value that cannot be.
    """
    values = flatten(config)
    check_names(values)
    for field in fields():
        if field not in values:
            raise UserError(
                f'the config has no field {field}: it is not of this schema'
            )
        _check_former_value(field, values[field])
    parts: dict[str, Any] = {}
    for field in dataclasses.fields(ExperimentConfig):
        parts[field.name] = config[field.name]
        if dataclasses.is_dataclass(field.type):
            parts[field.name] = _make_section(field.type, config[field.name])
    return ExperimentConfig(**parts)


def _make_section(section: Any, values: Mapping[str, Any]) -> Any:
    try:
        return section(**values)
    except ValueError as error:
        raise UserError(str(error)) from None


def _check_former_value(field: str, value: Any) -> None:
    """Refuses a word that has another name now."""
    if not isinstance(value, str):
        return
    present = upgrade.present_value(field, value)
    if present != value:
        raise UserError(f'{field}={value} is now {field}={present}: give that')


def check_names(names: Iterable[str]) -> None:
    """Refuses names of fields that are not in the schema.

    Raises:
      UserError: names the field, and what took its place or may have been meant.
    """
    for name in names:
        if name not in fields():
            raise UserError(f'nothing reads the field {name} of the config{hint(name)}')


def hint(name: str) -> str:
    """What to add to a message of a field that is not in the schema."""
    own = [field for field in fields() if field.startswith(f'{name}.')]
    if own:
        return f': it is a section, of {", ".join(own)}'
    words = upgrade.successor(name)
    if words:
        return f': {words}'
    return ranges.nearest(name, fields())
