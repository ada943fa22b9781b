"""Loads config files and stored configs as an `ExperimentConfig`.

A config file returns a `ConfigDict`, which may omit fields. `fill` adds the schema's
defaults, so that every field can be overridden on the command line.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from experiments import storage
from experiments.config.schema import (
    ExperimentConfig,
    Field,
    fields,
    part_fields,
    sections,
)
from experiments.errors import UserError, named, user_errors
from flaxformer_lite import ranges
from flaxformer_lite.config import spec
from flaxformer_lite.config.spec import Dataclass
from flaxformer_lite.ranges import shown

CONFIG = 'config.json'  # in the directory of a run
_DEEPEST = 10  # levels of nested fields
VERSION_FIELD = 'schema_version'
# The version of the first release. Earlier configs cannot be read.
FIRST_VERSION = 8
# For each later version, its new fields with the values that keep the behavior of the
# version before: {'train.new': 0}. To add a field, append an entry. An empty entry is
# a version that only changes how fields are written: see `_in_words_of_now`.
ADDED: list[dict[str, Any]] = [
    {'train.loss': 'cross_entropy(label_smoothing=0.1)', 'train.teacher': ''},
    {'evaluation.metrics': '[bleu, chrf]', 'evaluation.best': ''},
    {},
    {
        'train.hooks': 'tensorboard',
        'train.ema': 0.0,
        'model.block': 'sequential',
        'model.decoder_block': None,
        'model.share_layers': None,
        'model.decoder_share_layers': None,
        'filters': None,
        'objective': None,
        'evaluation.processors': None,
    },
    {},
    {},
]
_SMOOTHED = 'cross_entropy(label_smoothing={})'
# Former fields that are now arguments of the strategies of `evaluation.decode`.
_OF_DECODE = {
    'beams': 'beam',
    'alpha': 'beam',
    'temperature': 'sample',
    'top_k': 'sample',
    'top_p': 'sample',
}
# Removed field → its current equivalent.
REPLACED = {
    'train.label_smoothing': f"train.loss='{_SMOOTHED.format(0.1)}'",
    'train.profile': "train.hooks='[profile(after=100), tensorboard]'",
    'model.parallel': 'model.block=parallel',
    'tokenizer.vocab_size': "tokenizer='sentencepiece(vocab_size=8000)'",
    'tokenizer.kind': "tokenizer='sentencepiece(vocab_size=8000)', or huggingface(…)",
} | {
    f'evaluation.{field}': f"evaluation.decode='{name}({field}=…)'"
    for field, name in _OF_DECODE.items()
}


def flatten(nested: Mapping[str, Any], prefix: str = '') -> dict[str, Any]:
    """Flattens nested fields: `{'model': {'d_ff': 8}}` → `{'model.d_ff': 8}`.

    Raises:
      UserError: A key isn't text, or the mappings nest too deep.
    """
    if prefix.count('.') > _DEEPEST:  # a mapping may contain itself
        raise UserError(f'{prefix[:40]}…: nests deeper than {_DEEPEST} levels')
    flat = {}
    for key, value in nested.items():
        if not isinstance(key, str):
            raise UserError(
                f'{prefix}{shown(key)}: a field name must be text, not '
                f'{type(key).__name__}. Write it as in model.dropout.'
            )
        if isinstance(value, Mapping):
            flat |= flatten(value, f'{prefix}{key}.')
        else:
            flat[prefix + key] = value
    return flat


def fill(config: ConfigDict) -> None:
    """Adds missing fields to the `ConfigDict` of a config file, with their defaults.

    Also sets the type of each field, which determines how overrides are parsed. An int
    becomes a float in a float field, and None becomes a placeholder.

    Raises:
      UserError: The schema does not have a field.
    """
    check_names(flatten(config.to_dict()))
    with config.unlocked():
        for name, field in fields().items():
            section, _, key = name.rpartition('.')
            if section and section not in config:
                config[section] = ConfigDict()
            part: Any = config[section] if section else config
            with user_errors(f'{name}: '):
                _fill_field(part, key, field)


def _fill_field(part: ConfigDict, key: str, field: Field) -> None:
    kind = ranges.types_of(field.kind)[0]
    value: Any = part.get(key, field.default)
    if isinstance(value, type | Dataclass):
        value = spec.text(value)
    elif type(value) is int and kind is float:
        value = float(value)
    elif key in part and part.get_type(key) is not type(None):
        return  # other fields may refer to it
    elif value is None:
        value = placeholder(kind)
    with part.ignore_type():
        part[key] = value


def from_config_dict(config: ConfigDict) -> ExperimentConfig:
    """Returns the typed config of a `ConfigDict`; missing fields get their defaults.

    Raises:
      UserError: A field is unknown, or its value is invalid.
    """
    filled = ConfigDict(config.to_dict())
    fill(filled)
    return from_dict(filled.to_dict())


def from_dict(config: Mapping[str, Any]) -> ExperimentConfig:
    """Returns the typed config of a nested dictionary with every field.

    Raises:
      UserError: A field is missing or unknown, or its value is invalid.
    """
    values = flatten(config)
    check_names(values)
    for name in fields():
        if name not in values:
            raise UserError(f'the config has no field {name}: it is not of this schema')
    parts: dict[str, Any] = dict(config)
    with user_errors():  # errors of model fields, which the library raises
        for name, section in sections().items():
            parts[name] = section(**config[name])
    return ExperimentConfig(**parts)


def check_names(names: Iterable[str]) -> None:
    """Checks that the names of fields are in the schema.

    Raises:
      UserError: Names the unknown field, and suggests a similar one.
    """
    for name in names:
        if name in fields():
            continue
        if name in REPLACED:
            raise UserError(f'there is no {name} any more: write {REPLACED[name]}')
        own = [field for field in fields() if field.startswith(f'{name}.')]
        # The run's directory is a flag, not a field.
        hint = ranges.nearest(name, [*fields(), '--workdir'])
        if own:
            hint = f': it is a section, of {", ".join(own)}'
        raise UserError(f'nothing reads the field {name} of the config{hint}')


def to_store(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields to store: a config with the version of the schema."""
    return {VERSION_FIELD: FIRST_VERSION + len(ADDED), **config}


def read_stored(file: Path) -> dict[str, Any]:
    """Returns the stored config of a run, nested, migrated to the current version.

    Raises:
      UserError: The file is not a config, its version is unsupported, or a value is
        invalid. Names the file.
    """
    config = storage.read_json(file)
    if not isinstance(config, dict) or not config:
        raise UserError(f'{file} is not the config of a run')
    for name in sections():
        if not isinstance(config.get(name, {}), dict):
            value = ranges.shown(config[name])
            raise UserError(f'{file}: {name} must be a section, not {value}')
    version = config.pop(VERSION_FIELD, None)
    latest = FIRST_VERSION + len(ADDED)
    if type(version) is not int or not FIRST_VERSION <= version <= latest:
        raise UserError(
            f'{file}: its {VERSION_FIELD} is {ranges.shown(version)}, and this code '
            f'reads those from {FIRST_VERSION} to {latest}: use the commit that its '
            'environment.json names'
        )
    with named(file), user_errors():
        for added in ADDED[version - FIRST_VERSION :]:
            for name, value in added.items():
                section, _, key = name.rpartition('.')
                part = config.setdefault(section, {}) if section else config
                part.setdefault(key, value)
        if version < latest:
            _in_words_of_now(config)
        _check_stored(flatten(config))
    return config


def _check_stored(values: Mapping[str, Any]) -> None:
    """Raises ValueError if a field of the schema has an invalid value."""
    for name, field in fields().items():
        if name in values:
            ranges.check(name, field.kind, values[name])
    for name in part_fields():
        value = values.get(name)
        is_off = name == 'train.hooks' and value in ('', '[]')
        if value is not None and not is_off:
            for entry in spec.entries(value):
                with user_errors(f'{name}: '):
                    spec.parse(entry)


def _passes_window_on(model: Mapping[str, Any]) -> bool:
    """Returns whether, before version 14, an empty `cross_attention` meant `local`."""
    has_cross = model.get('architecture', 'encoder_decoder') == 'encoder_decoder'
    if not has_cross or model.get('merged_attention') or model.get('cross_attention'):
        return False
    entries = spec.entries(model.get('attention', 'softmax'))
    return any(spec.parse(entry)[0] == 'local' for entry in entries)


def _in_words_of_now(config: dict[str, Any]) -> None:
    """Replaces fields of earlier versions by their current equivalents."""
    train = config.get('train', {})
    if 'label_smoothing' in train:
        train['loss'] = _SMOOTHED.format(train.pop('label_smoothing'))
    train.pop('profile', None)  # now a hook, which doesn't change results
    model = config.get('model', {})
    if model.pop('parallel', False):
        model['block'] = 'parallel'
    if _passes_window_on(model):
        model['cross_attention'] = model['attention']
    tokenizer = config.get('tokenizer')
    if isinstance(tokenizer, dict):
        is_own = tokenizer.get('kind') == 'trained'
        name = 'sentencepiece' if is_own else 'huggingface'
        config['tokenizer'] = f'{name}(vocab_size={tokenizer.get("vocab_size")})'
    evaluation = config.get('evaluation', {})
    arguments = []
    for field, name in _OF_DECODE.items():
        if field in evaluation:
            value = evaluation.pop(field)
            if name == evaluation.get('decode'):
                arguments.append(f'{field}={value!r}')
    if arguments:
        evaluation['decode'] += f'({", ".join(arguments)})'
