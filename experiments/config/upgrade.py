"""Stored configs of earlier versions of the schema, upgraded to the present one.

Every change of the schema's fields appends a `Change` to `CHANGES`, which raises the
version by one. So a run that was made before a field existed can still be read and
resumed.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from experiments import storage
from experiments.config.flat import flatten, nest
from experiments.errors import UserError

VERSION_FIELD = 'schema_version'


class Removed(NamedTuple):
    """What became of a field that no longer exists.

    Attributes:
      fixed: the value of the field that means what the code now always does.
      instead: what took the field's place, in words.
    """

    fixed: Any
    instead: str


@dataclasses.dataclass(frozen=True)
class Change:
    """What one version of the schema changes of the version before it.

    Attributes:
      added: field → the value that means what the earlier versions did.
      renamed: field → its new name; its value stays.
      removed: field → what became of it.
      values: field → {a former value: the value that means the same now}. Values that
        are specs are compared by their name, and keep their arguments.
    """

    added: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    removed: Mapping[str, Removed] = dataclasses.field(default_factory=dict)
    values: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)


# What version 1 changed. Configs from before it hold no version and cannot be upgraded:
# this only tells who writes such a value what it is now.
FIRST = Change(
    values={
        'model.architecture': {'language_model': 'decoder_only'},
        'model.tie': {'three': 'all', 'two': 'decoder'},
    }
)
# The first leads from version 1 to version 2, the second to version 3, and so on.
CHANGES: list[Change] = [
    Change(added={'train.replicas': 1}),
    Change(added={'train.profile': ''}),
    Change(
        added={
            'batch.rows_multiple': 1,
            'mesh.data': None,
            'mesh.fsdp': 1,
            'mesh.tensor': 1,
        }
    ),
    Change(added={'train.remat': 'none', 'model.scan_layers': False}),
    Change(
        added={
            'model.decoder_d_model': None,
            'model.continuous_positions': False,
            'model.merged_attention': False,
            'model.attention_bias': False,
            'model.norm_embeddings': False,
            'model.output_bias': False,
            'model.scale_logits': False,
            'model.logit_cap': None,
            'init_from': '',
            'init_average': None,
            'init_ignore': '',
            'train.freeze': '',
        }
    ),
    Change(added={'tokenizer.kind': 'trained'}),
    Change(removed={'train.replicas': Removed(1, 'a run for each seed')}),
]


def present_version() -> int:
    """The version of the schema as it is."""
    return 1 + len(CHANGES)


def to_store(config: Mapping[str, Any]) -> dict[str, Any]:
    """What is stored of a config: its fields, and the schema's version."""
    return {VERSION_FIELD: present_version(), **config}


def read(file: Path) -> dict[str, Any]:
    """The config that a run has stored, nested, as the present version says it.

    Raises:
      UserError: it is none, or of another version that cannot be read; names the file.
    """
    config = storage.read_json(file)
    if not isinstance(config, dict) or not config:
        raise UserError(f'{file} is not the config of a run')
    try:
        flatten(config)
    except RecursionError:
        raise UserError(f'{file} is not the config of a run') from None
    try:
        return upgrade(config)
    except UserError as error:
        raise UserError(f'{file}: {error}') from None


def upgrade(stored: Mapping[str, Any]) -> dict[str, Any]:
    """A stored config → the config of the present version that means the same.

    Args:
      stored: nested, with its `schema_version`, which the result leaves out.

    Raises:
      UserError: it has no version or one from the future, or a field that was removed
        has a value that the code can no longer do.
    """
    config = dict(stored)
    version = config.pop(VERSION_FIELD, None)
    if version is None:
        raise UserError(
            'it is from before configs had a schema_version, and cannot be read: use '
            'the commit that its environment.json names'
        )
    if type(version) is not int or version < 1:
        raise UserError(f'{VERSION_FIELD} must be a whole number from 1, not {version}')
    if version > present_version():
        raise UserError(
            f'its {VERSION_FIELD} is {version}, and this code knows no later one than '
            f'{present_version()}: use the commit that its environment.json names'
        )
    changes = CHANGES[version - 1 :]
    if not changes:
        return config
    fields = flatten(config)
    for change in changes:
        fields = _apply(change, fields)
    try:
        return nest(fields)
    except ValueError as error:
        raise UserError(str(error)) from None


def _apply(change: Change, fields: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(change.added)
    for field, value in fields.items():
        if field in change.removed:
            removed = change.removed[field]
            if value != removed.fixed:
                raise UserError(f'{field}={value} is no more: {removed.instead}')
            continue
        if isinstance(value, str):
            value = _value_now(change, field, value)
        result[change.renamed.get(field, field)] = value
    return result


def _value_now(change: Change, field: str, value: str) -> str:
    """`'language_model(a=1)'` → `'decoder_only(a=1)'`."""
    former = change.values.get(field, {})
    name, bracket, arguments = value.partition('(')
    return former.get(name.strip(), name) + bracket + arguments


def successor(field: str) -> str:
    """What took the place of a field that no longer exists, in words; '' if unknown."""
    words = ''
    for change in [FIRST, *CHANGES]:
        if field in change.renamed:
            field = change.renamed[field]
            words = f'its name is now {field}'
        elif field in change.removed:
            return change.removed[field].instead
    return words


def present_value(field: str, value: str) -> str:
    """The value that took the place of a former one; any other value itself."""
    for change in [FIRST, *CHANGES]:
        value = _value_now(change, field, value)
    return value
