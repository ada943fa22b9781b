"""The schema of a run's JSON files."""

import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from experiments import storage
from experiments.command_line import console
from experiments.errors import UserError
from experiments.metrics.base import OF_MODELS
from flaxformer_lite.validation import quote


class EntryType(NamedTuple):
    """A kind of value; `words` describes it in messages."""

    words: str
    holds: Callable[[Any], bool]

    @property
    def or_null(self) -> 'EntryType':
        return EntryType(f'{self.words} or null', lambda x: x is None or self.holds(x))

    @property
    def array(self) -> 'EntryType':
        def holds(value: Any) -> bool:
            return isinstance(value, list) and all(map(self.holds, value))

        return EntryType(f'an array, each entry {self.words}', holds)


Schema = Mapping[str, EntryType]  # by name

# JSON has integers of any length, and Python's parser accepts NaN and Infinity.
NUMBER = EntryType(
    'a finite number',
    lambda x: console.is_number(x) and abs(x) <= sys.float_info.max,
)
COUNT = EntryType('a whole number', lambda x: isinstance(x, int) and NUMBER.holds(x))
TEXT = EntryType('a string', lambda x: isinstance(x, str))
OBJECT = EntryType('an object', lambda x: isinstance(x, dict))
PAIRS = EntryType(
    'an object of pairs of whole numbers',
    lambda x: OBJECT.holds(x) and all(map(_is_pair, x.values())),
)
MODULES = EntryType(
    'an object of files and digests',
    lambda x: OBJECT.holds(x) and all(map(_is_file, x.values())),
)
# The name of a set is part of the names of its files.
SET = EntryType('a file name', lambda x: isinstance(x, str) and storage.is_file_name(x))

RESULT = {
    'step': COUNT,
    'parameters': NUMBER,
    'train_seconds': NUMBER,
    'tokens_per_second': NUMBER,
    'evaluations': OBJECT,
}
RESULT_OPTIONAL = {
    'train_cpu_seconds': NUMBER,
    'averaged_steps': COUNT.array,
    'left_out_steps': COUNT.array,
    'flops_per_token': NUMBER.or_null,
    'peak_memory_bytes': NUMBER.or_null,
    'training_text_sha256': TEXT,
    'files': OBJECT,
    'sha256': TEXT,
}
SCORES = {
    **dict.fromkeys(OF_MODELS, NUMBER.or_null),
    'direction': TEXT,
    'sentences': NUMBER,
}
ROW = {'step': COUNT, 'kind': TEXT}
# Entries of rows and scores.
OPTIONAL = {
    **SCORES,
    'step': COUNT,
    'set': SET,
    'target': TEXT,
    'text_sha256': TEXT,
    'training_text_sha256': TEXT,
    'lower_is_better': TEXT.array,
    'time': NUMBER.or_null,
    'tokens': NUMBER.or_null,
    'seconds': NUMBER.or_null,
    'tokens_per_second': NUMBER.or_null,
    'learning_rate': NUMBER.or_null,
    'gradient_norm': NUMBER.or_null,
}
INIT = {'run': TEXT, 'tokenizer': TEXT}
INIT_OPTIONAL = {'anew': TEXT.array, 'rows': PAIRS}
FAILURE = {'status': TEXT}
FAILURE_OPTIONAL = {'step': COUNT.or_null, 'message': TEXT}
ENVIRONMENT_OPTIONAL = {
    'devices': OBJECT,
    'packages': OBJECT,
    'git': OBJECT.or_null,
    'modules': MODULES,
    'earlier': OBJECT.array,
}
_SIGNATURE = '_signature'


def check(
    file: object,
    fix: str,
    values: Any,
    required: Schema,
    optional: Schema | None = None,
    within: str = '',
) -> None:
    """Checks the entries of a JSON object. Other entries may have any value.

    Args:
      fix: How to repair damage, for the message.
      within: Where the object is in the file, such as `evaluations.test`.
    """
    if not OBJECT.holds(values):
        what = within or 'the content'
        raise UserError(f'{file}: {what} must be an object, not {quote(values)}. {fix}')
    required = {**_of_metrics(values), **required}
    for name, kind in {**(optional or {}), **required}.items():
        field = f'{within}.{name}' if within else name
        if name not in values and name in required:
            raise UserError(f'{file}: {field} is missing. {fix}')
        if name in values and not kind.holds(values[name]):
            value = quote(values[name])
            raise UserError(f'{file}: {field} must be {kind.words}, not {value}. {fix}')


def _of_metrics(values: Mapping[str, Any]) -> Schema:
    found = {}
    for name in values:
        if name.endswith(_SIGNATURE):
            found |= {name.removesuffix(_SIGNATURE): NUMBER.or_null, name: TEXT}
        elif name.startswith('loss/'):
            found[name] = NUMBER.or_null
    return found


def _is_file(value: Any) -> bool:
    entries = (value.get('file'), value.get('sha256')) if OBJECT.holds(value) else ()
    return bool(entries) and all(map(TEXT.holds, entries))


def _is_pair(value: Any) -> bool:
    return COUNT.array.holds(value) and len(value) == 2
