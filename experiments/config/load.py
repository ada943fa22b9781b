"""Loads config files and stored configs as an `ExperimentConfig`."""

import contextlib
import operator
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from experiments import storage
from experiments.config.schema import (
    ExperimentConfig,
    Field,
    check_value,
    fields,
    part_fields,
    sections,
)
from experiments.errors import UserError, prefix_errors, user_errors
from flaxformer_lite import validation
from flaxformer_lite.config import spec
from flaxformer_lite.config.schema import of_flat
from flaxformer_lite.config.spec import Component, Dataclass
from flaxformer_lite.validation import quote

CONFIG = 'config.json'  # in the directory of a run
VERSION_FIELD = 'schema_version'
# If you add a field, raise the version, and let `_update` set the field to the value
# that keeps the behavior of earlier versions.
VERSION = 16
_OLDEST = 13  # of release 0.3, the oldest whose runs can be read


def flatten(nested: Mapping[Any, Any], prefix: str = '') -> dict[str, Any]:
    """Returns `{'model.d_ff': 8}` for `{'model': {'d_ff': 8}}`."""
    flat = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f'{prefix}{key}.')
        else:
            flat[f'{prefix}{key}'] = value
    return flat


def fill(config: ConfigDict) -> None:
    """Adds the missing fields, so that each can be overridden, and sets field types.

    The type determines how overrides are parsed. An int becomes a float in a float
    field, and None becomes a placeholder.
    """
    check_names(flatten(config.to_dict()))
    with config.unlocked(), config.ignore_type():
        for name, field in fields().items():
            *within, key = name.split('.')
            part: Any = config
            for section in within:
                if section not in part:
                    part[section] = ConfigDict()
                part = part[section]
            with user_errors(f'{name}: '):
                _fill_field(part, key, field)


def _fill_field(part: ConfigDict, key: str, field: Field) -> None:
    # Without the key, `ConfigDict.get` is slow: it searches for similar names.
    given: Any = part[key] if key in part else field.default
    value = plain(given, field.type)
    is_typed = key in part and part.get_type(key) is not type(None)
    if is_typed and type(value) is type(given):
        return  # other fields may refer to it
    part[key] = placeholder(field.type) if value is None else value


def plain(value: Any, kind: Any = None) -> Any:
    """Returns a value as `config.json` stores it.

    A class or an object becomes its spec, a NumPy number becomes Python's, and an int
    becomes a float if that is the field's `kind`.

    Raises:
      ValueError: A class can't be imported by name, or an array has several elements.
    """
    if isinstance(value, type | Dataclass):
        return spec.text(value)
    if hasattr(value, 'item'):
        value = value.item()
    if type(value) is int and kind is float:
        with contextlib.suppress(OverflowError):  # the range check reports it
            value = float(value)
    return value


def override(config: ConfigDict, values: Mapping[str, Any]) -> None:
    """Sets fields of a config that `fill` has completed: `{'model.num_heads': 8}`.

    `optimizer.schedule.peak` sets an argument of the component that the field names,
    after all fields.
    """
    arguments = {name: x for name, x in values.items() if _is_argument(name)}
    found = {name: x for name, x in values.items() if name not in arguments}
    check_names(found)
    for name, value in found.items():
        with user_errors(f'{name}: '):
            found[name] = plain(value, fields()[name].type)
        check_value(name, fields()[name].kind, found[name])
    with config.ignore_type():  # the file may have given a field another type
        config.update_from_flattened_dict(found)
        for name, value in arguments.items():
            field, _, argument = name.rpartition('.')
            given = operator.attrgetter(field)(config)
            with user_errors(f'{name}: '):
                component = Component.of(given).with_arguments(
                    **{argument: plain(value)}
                )
            config.update_from_flattened_dict({field: component.text})


def _is_argument(name: str) -> bool:
    return name not in fields() and name.rpartition('.')[0] in part_fields()


def from_config_dict(config: ConfigDict) -> ExperimentConfig:
    """Returns the typed config of a `ConfigDict`; missing fields get their defaults."""
    filled = ConfigDict(config.to_dict())
    fill(filled)
    return from_dict(filled.to_dict())


def from_dict(config: Mapping[str, Any]) -> ExperimentConfig:
    """Returns the typed config of a nested dictionary with all fields."""
    values = flatten(config)
    check_names(values)
    for name in fields():
        if name not in values:
            raise UserError(
                f'missing config field {name}. Set every field of the schema.'
            )
    with user_errors():  # errors of model fields, which the library raises
        return of_flat(ExperimentConfig, values)


def check_names(names: Iterable[str]) -> None:
    """Raises UserError for an unknown field; suggests a similar one."""
    for name in names:
        if name in fields():
            continue
        own = [field for field in fields() if field.startswith(f'{name}.')]
        # The run's directory is a flag, not a field.
        hint = validation.did_you_mean(name, [*fields(), '--workdir'])
        if own:
            hint = f'; it is a section with the fields {", ".join(own)}'
        raise UserError(f"unknown config field '{name}'{hint}")


def to_store(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a nested config as `config.json` stores it, with its version."""
    return {VERSION_FIELD: VERSION, **config}


def read_stored(file: Path) -> dict[str, Any]:
    """Returns the stored config of a run, nested, in the current version's fields."""
    if not storage.exists(file):
        has_directory = storage.exists(file.parent)
        reason = f'it has no {CONFIG}' if has_directory else 'it does not exist'
        raise UserError(
            f'{file.parent}: not a run directory, because {reason}. Pass another.'
        )
    fix = 'Restore the file, or use another directory.'
    config = storage.read_json(file, dict[str, Any], fix)
    version = config.pop(VERSION_FIELD, None)
    if type(version) is not int or not _OLDEST <= version <= VERSION:
        raise UserError(
            f'{file}: unsupported {VERSION_FIELD} {validation.quote(version)}. This '
            f'code reads versions {_OLDEST} to {VERSION}; use the commit that '
            'environment.json names.'
        )
    with prefix_errors(file), user_errors():
        _check_sections(config)
        _update(config, version)
        for name, value in flatten(config).items():
            if name in fields():
                check_value(name, fields()[name].kind, value)
    return config


def _check_sections(nested: Mapping[str, Any], prefix: str = '') -> None:
    """Raises UserError for a key with a dot, which could hide the value of a field."""
    for key, value in nested.items():
        if '.' in key:
            raise UserError(
                f'the key {quote(key)} has a dot. Write the field in its section.'
            )
        if isinstance(value, dict):
            _check_sections(value, f'{prefix}{key}.')
        elif prefix + key in sections():
            raise UserError(f'{prefix}{key} must be a section, not {quote(value)}')


def _inherits_window(model: Mapping[str, Any]) -> bool:
    """Returns whether, before version 14, an empty `cross_attention` meant `local`."""
    has_cross = model.get('architecture', 'encoder_decoder') == 'encoder_decoder'
    if not has_cross or model.get('merged_attention') or model.get('cross_attention'):
        return False
    entries = Component.of(model.get('attention', 'softmax')).entries
    return any(entry.name == 'local' for entry in entries)


def _update(config: dict[str, Any], version: int) -> None:
    model = config.get('model', {})
    if version < 16:
        model.setdefault('dense', None)
    if version < 14 and _inherits_window(model):
        model['cross_attention'] = model['attention']
    if version >= 15:
        return
    for section in ('decoder', 'cross'):
        prefix = f'{section}_'
        own = [name for name in model if name.startswith(prefix)]
        model[section] = {name.removeprefix(prefix): model.pop(name) for name in own}
