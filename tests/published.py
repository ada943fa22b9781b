"""The checkpoints in goldens/families/, and ways to damage them."""

import json
import re
from pathlib import Path

import numpy as np
import safetensors.numpy

from flaxformer_checkpoints.loading import folder, load

GOLDENS = Path(__file__).parent / 'goldens' / 'families'
NAMES = sorted(path.name for path in GOLDENS.iterdir())


def golden_of(name):
    with np.load(GOLDENS / name / 'golden.npz') as file:
        return dict(file)


def texts_of(name):
    return json.loads((GOLDENS / name / 'decoded.json').read_text('utf-8'))


def family_of(path):
    return load.family_of(folder.read_config(path)['model_type'])


def is_unread(path, array):
    """Returns whether the loader ignores an array that the family's files may have."""
    return any(re.fullmatch(pattern, array) for pattern in family_of(path).computed)


def change_config(path, file='config.json', **fields):
    """Sets fields; `...` removes one."""
    config = json.loads((path / file).read_text('utf-8'))
    config.update(fields)
    config = {name: value for name, value in config.items() if value is not ...}
    (path / file).write_text(json.dumps(config), encoding='utf-8')


def weights_of(path):
    return safetensors.numpy.load_file(path / folder.WEIGHTS)


def change_weights(path, change):
    stored = weights_of(path)
    change(stored)
    safetensors.numpy.save_file(stored, path / folder.WEIGHTS)


def split_weights(path):
    """Splits the weights into two files with an index, and returns their names."""
    stored = weights_of(path)
    (path / folder.WEIGHTS).unlink()
    parts = [path / f'model-0000{i}-of-00002.safetensors' for i in (1, 2)]
    for i, part in enumerate(parts):
        safetensors.numpy.save_file(dict(list(stored.items())[i::2]), part)
    weight_map = {name: parts[i % 2].name for i, name in enumerate(stored)}
    index = json.dumps({'weight_map': weight_map})
    (path / folder.INDEX).write_text(index, encoding='utf-8')
    return parts
