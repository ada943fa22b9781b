"""Reads a folder saved by Transformers: config.json and safetensors files.

It never unpickles.
"""

import json
import math
import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeGuard

PathLike = str | Path

CONFIG = 'config.json'
GENERATION = 'generation_config.json'
WEIGHTS = 'model.safetensors'
INDEX = 'model.safetensors.index.json'
# The start of a Git LFS pointer file.
_POINTER = b'version https://git-lfs'
# Fields of generation_config.json that a model needs for decoding.
_GENERATION_FIELDS = (
    'pad_token_id',
    'eos_token_id',
    'decoder_start_token_id',
    'forced_bos_token_id',
)


def read_config(folder: PathLike) -> dict[str, Any]:
    """Reads the config of a checkpoint, including its special tokens.

    Raises:
      ValueError: The file is missing or isn't a JSON object.
    """
    folder = Path(folder)
    if not (folder / CONFIG).is_file():
        raise ValueError(f'{folder} is not a checkpoint: it has no {CONFIG}')
    config = _read_json(folder / CONFIG)
    if (folder / GENERATION).is_file():
        generation = _read_json(folder / GENERATION)
        for name in _GENERATION_FIELDS:
            if generation.get(name) is not None:
                config[name] = generation[name]
    return {name: value for name, value in config.items() if value is not None}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text('utf-8'))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f'{path} cannot be read: {error}') from None
    if not isinstance(value, dict):
        raise ValueError(f'{path} is not a JSON object')
    return value


class Weights:
    """The arrays of a folder's safetensors files, read on demand.

    Raises:
      ValueError: A file is missing or damaged.
    """

    def __init__(self, folder: PathLike, stack: ExitStack):
        self._file_by_name: dict[str, Any] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for path in _files(Path(folder)):
            file = _opened(path, stack)
            for name in file.keys():  # noqa: SIM118 (no mapping)
                self._file_by_name[name] = file
                self.shapes[name] = tuple(file.get_slice(name).get_shape())

    def read(self, name: str) -> Any:
        """Reads an array in its stored dtype.

        Raises:
          ValueError: It isn't floating-point, or has NaN or infinite numbers.
        """
        array = self._file_by_name[name].get_tensor(name)
        if array.dtype.kind in 'biu':
            raise ValueError(
                f'{name} has dtype {array.dtype}; expected a floating-point array'
            )
        if array.size and not _is_finite(array):
            raise ValueError(f'{name} contains NaN or infinite numbers')
        return array


def _is_finite(array: Any) -> bool:
    """Checks without the temporary array that `abs` would allocate."""
    if (array != array).any():
        return False
    return -math.inf < array.min() and array.max() < math.inf


def _files(folder: Path) -> Iterator[Path]:
    if (folder / WEIGHTS).is_file():
        return iter([folder / WEIGHTS])
    if (folder / INDEX).is_file():
        of_name = _read_json(folder / INDEX).get('weight_map')
        if not _is_map_of_names(of_name):
            raise ValueError(
                f'{folder / INDEX} lacks weight_map, the mapping from array names to '
                'files'
            )
        return (folder / Path(name).name for name in sorted(set(of_name.values())))
    pickled = sorted(path.name for path in folder.glob('*.bin'))
    if pickled:
        raise ValueError(
            f'{folder} has pickled weights ({pickled[0]}), which are not loaded '
            'because unpickling can run any program. If you trust them, write '
            f'{WEIGHTS} with `{_convert(folder)}`.'
        )
    raise ValueError(f'{folder} lacks weights: neither {WEIGHTS} nor {INDEX} exists')


def _is_map_of_names(value: Any) -> TypeGuard[dict[str, str]]:
    if not isinstance(value, dict) or not value:
        return False
    return all(isinstance(file, str) for file in value.values())


def _convert(folder: Path) -> str:
    program = (
        'import sys; from transformers import AutoModelForSeq2SeqLM as M; '
        'M.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[1])'
    )
    return f'python -c "{program}" {shlex.quote(str(folder))}'


def _opened(path: Path, stack: ExitStack) -> Any:
    try:
        import safetensors
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            'pretrained checkpoints need safetensors: '
            "pip install 'flaxformer-lite[pretrained]'"
        ) from None
    try:
        return stack.enter_context(safetensors.safe_open(str(path), 'numpy'))
    except FileNotFoundError:
        raise ValueError(f'{path} is missing, but the index lists it') from None
    except (OSError, safetensors.SafetensorError) as error:
        if _is_pointer(path):
            raise ValueError(
                f'{path} is a Git LFS pointer. Run `git lfs pull` to fetch the file.'
            ) from None
        raise ValueError(
            f'{path} is not a complete safetensors file: {error}'
        ) from None


def _is_pointer(path: Path) -> bool:
    try:
        with path.open('rb') as file:
            return file.read(len(_POINTER)) == _POINTER
    except OSError:
        return False
