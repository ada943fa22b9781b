"""The languages that a checkpoint writes as tokens: which it has, and their numbers."""

import difflib
import re
from typing import Any, NamedTuple

from experiments import storage
from experiments.data.published.opened import Opened
from experiments.errors import UserError

_SHOWN = 3  # languages that an error names
# Where files list tokens without their numbers, and under which names.
_LISTS = ('special_tokens_map.json', 'tokenizer_config.json')
_NAMES = ('additional_special_tokens', 'extra_special_tokens')


class Pair(NamedTuple):
    """The tokens of two languages."""

    source: int
    target: int


def read(opened: Opened, pattern: str, first: int) -> dict[str, int]:
    """The languages of a folder: code → token.

    Its files number them, or list them in the order of their numbers.

    Args:
      opened: the folder.
      pattern: what its tokens of languages are like, the code as a group.
      first: the number of the first, where they are only listed.

    Raises:
      UserError: none of its files has any, or one is not as Transformers writes it.
    """
    try:
        found = _codes(_numbered(opened), pattern)
        if not found:
            listed = enumerate(_listed(opened, pattern), first)
            found = _codes({token: number for number, token in listed}, pattern)
    except (AttributeError, KeyError, TypeError):
        raise UserError(
            f'{opened.request.folder} lists special tokens otherwise than Transformers '
            'does: copy tokenizer_config.json, special_tokens_map.json and '
            'added_tokens.json from where the checkpoint was published'
        ) from None
    if not found:
        raise UserError(
            f'{opened.request.folder} does not say which tokens are languages: copy '
            'tokenizer_config.json, special_tokens_map.json or tokenizer.json from '
            'where the checkpoint was published'
        )
    return found


def _codes(tokens: dict[str, int], pattern: str) -> dict[str, int]:
    """Those that are languages, by their codes."""
    found = {}
    for token, number in tokens.items():
        match = re.fullmatch(pattern, token)
        if match:
            found[match[1]] = number
    return found


def _numbered(opened: Opened) -> dict[str, Any]:
    """Tokens whose numbers the files say."""
    numbers = dict(opened.read_json('added_tokens.json'))
    for number, token in (opened.settings.get('added_tokens_decoder') or {}).items():
        numbers[_text(token)] = int(number) if number.isdecimal() else number
    if not numbers:
        for token in opened.read_json('tokenizer.json').get('added_tokens') or []:
            numbers[_text(token)] = token.get('id')
    return numbers


def _listed(opened: Opened, pattern: str) -> list[str]:
    """The languages that a file lists, the longest list of all."""
    lists = []
    for file in _LISTS:
        content = opened.read_json(file)
        for name in _NAMES:
            texts = map(_text, content.get(name) or [])
            lists.append([text for text in texts if re.fullmatch(pattern, text)])
    return max(lists, key=len)


def _text(token: Any) -> str:
    """A token, which files write as a text or as an object with more about it."""
    return token['content'] if isinstance(token, dict) else str(token)


def pair(opened: Opened, numbers: dict[str, int]) -> Pair:
    """The tokens of the languages that were asked for.

    Args:
      opened: the folder.
      numbers: its languages, from `read`.

    Raises:
      UserError: a language is not given, is none of these, or has a number that the
        model does not have.
    """
    request = opened.request
    for flag, code in (('source', request.source), ('target', request.target)):
        _check(opened, numbers, flag, code)
    return Pair(numbers[request.source], numbers[request.target])


def _check(opened: Opened, numbers: dict[str, int], flag: str, code: str) -> None:
    """Refuses what is no language, or has no row of the embedding."""
    folder, rows = opened.request.folder, opened.request.rows
    many = f'the {len(numbers)} languages of {folder}'
    if not code:
        names = ', '.join(list(numbers)[:_SHOWN])
        raise UserError(
            f'{folder} writes languages as tokens: give --source and --target, of '
            f'{many}, such as {names}'
        )
    if code not in numbers:
        near = difflib.get_close_matches(code, numbers, _SHOWN, cutoff=0.0)
        raise UserError(
            f'--{flag}={code} is none of {many}; the nearest are {", ".join(near)}'
        )
    token = numbers[code]
    if type(token) is not int or not 0 <= token < rows:
        raise UserError(
            f'{folder} has the number {storage.shown(token)} for the language {code}, '
            f'which is none of the {rows} rows of the model'
        )
