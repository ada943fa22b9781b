"""Reads a run's `result.json`, and checks what it holds."""

from pathlib import Path
from typing import Any

from experiments import storage
from experiments.errors import UserError
from experiments.runs import directory
from flaxformer_lite.ranges import shown

_NUMBER = int | float | None  # a number that is not finite is null in JSON
_WHOLE = {
    'step': int,
    'parameters': int,
    'train_seconds': int | float,
    'tokens_per_second': int | float,
    'evaluations': dict,
}
_OF_A_SET = {
    'direction': str,
    'sentences': int,
    **dict.fromkeys(('loss', 'perplexity', 'accuracy', 'bleu', 'chrf'), _NUMBER),
    'bleu_signature': str,
    'chrf_signature': str,
}


def read(path: Path, whole: bool = True) -> dict[str, Any]:
    """The result of the run in a directory.

    Args:
      whole: whether an entry that is missing is refused, and not only one of another
        type.

    Raises:
      UserError: the file cannot be read, or is not the result of a run.
    """
    file = path / directory.RESULT
    result = storage.read_json(file)
    reason = _wrong(result, _WHOLE, whole) or _wrong_scores(result, whole)
    if reason is not None:
        raise UserError(
            f'{file} is not the result of a run, for {reason}: restore it, or remove '
            'it and start the run again to have it scored anew'
        )
    return result


def read_scores(file: Path) -> dict[str, Any]:
    """The scores of a set that stand beside its translations.

    Raises:
      UserError: the file cannot be read, or holds something else.
    """
    scores = storage.read_json(file)
    reason = _wrong(scores, _OF_A_SET, whole=False)
    if reason is not None:
        raise UserError(
            f'{file} holds no scores, for {reason}: score the run again with '
            'experiments.evaluate'
        )
    return scores


def _wrong_scores(result: dict[str, Any], whole: bool) -> str | None:
    if 'evaluations' not in result:
        return 'evaluations is missing'
    for name, scores in result['evaluations'].items():
        reason = _wrong(scores, _OF_A_SET, whole)
        if reason is not None:
            return f'{reason} in the evaluation of {name}'
    return None


def _wrong(values: Any, kinds: dict[str, Any], whole: bool) -> str | None:
    if not isinstance(values, dict):
        return f'it is {type(values).__name__}'
    for name, kind in kinds.items():
        if name not in values:
            if whole:
                return f'{name} is missing'
        elif not isinstance(values[name], kind) or isinstance(values[name], bool):
            return f'{name} is {shown(values[name])}'
    return None
