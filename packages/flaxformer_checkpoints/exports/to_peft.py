"""Writes the adapters of a run for PEFT, without the checkpoint that they adapt.

PEFT stores A and B as `lora_A.weight` (r × D) and `lora_B.weight` (F × r) of a module,
and m of DoRA as `lora_magnitude_vector`.
"""

from pathlib import Path
from typing import Any

import jax

from experiments import storage
from experiments.errors import UserError, user_errors
from experiments.evaluation.opened_run import OpenedRun
from experiments.training import warm_start
from flaxformer_checkpoints import hub
from flaxformer_checkpoints.exports.trained import Trained
from flaxformer_checkpoints.families import base
from flaxformer_checkpoints.loading import arrays, folder, load
from flaxformer_checkpoints.tokenizer import CONFIG, HuggingfaceTokenizer
from flaxformer_lite.config import variants
from flaxformer_lite.config.schema import ModelConfig
from flaxformer_lite.config.spec import Component
from flaxformer_lite.layers.dense.lora import LoRA
from flaxformer_lite.layers.scanned_stack import unstack_layers
from flaxformer_lite.training import freezing
from flaxformer_lite.validation import quote

SETTINGS, WEIGHTS = 'adapter_config.json', 'adapter_model.safetensors'
# Transformers renames the arrays of T5Gemma 2 on loading, and PEFT expects the new
# names. Gemma 3 is another kind of task there.
_UNSUPPORTED = ('t5gemma2', 'gemma3_text')
_MERGE = 'Use --to=huggingface, which merges the adapters.'


def write(run: OpenedRun, plain: Trained, folder: Path) -> None:
    """Writes the folder.

    Args:
      plain: The run without adapters.
    """
    from safetensors.flax import save_file

    dense: Any = run.model.dense
    if not isinstance(dense, LoRA):
        raise UserError('--to=peft: the run has no adapters. Use --to=huggingface.')
    theirs = _published_config(run)
    family = load.family_of(theirs['model_type'])
    table = arrays.table(family, plain.config.model, plain.model)
    with user_errors('--to=peft: '):
        published = family.read(theirs, [kernel.name for kernel in table]).config
    _check_function(published, plain.config.model)
    params = freezing.paths(unstack_layers(run.variables['params']))
    named: dict[str, jax.Array] = {}
    modules = []
    for kernel in table:
        module = '/'.join(kernel.path[:-1])
        if kernel.path[-1] != 'kernel' or f'{module}/lora_a' not in params:
            continue
        layer = {
            name: params[f'{module}/{name}']
            for name in ('kernel', *dense.trained_parameters)
            if f'{module}/{name}' in params
        }
        theirs = kernel.name.removesuffix('.weight')
        modules.append(theirs)
        for name, x in _to_peft_arrays(dense, kernel, layer).items():
            named[f'base_model.model.{theirs}.{name}'] = x
    storage.write_json(folder / SETTINGS, _settings(run, dense, modules))
    save_file(named, folder / WEIGHTS, metadata={'format': 'pt'})


def _published_config(run: OpenedRun) -> dict[str, Any]:
    """Returns the config of the unchanged checkpoint that a run adapts."""
    tokenizer = run.tokenizer
    if not isinstance(tokenizer, HuggingfaceTokenizer) or CONFIG not in tokenizer.files:
        raise UserError(
            '--to=peft: the run does not adapt a published checkpoint. ' + _MERGE
        )
    with user_errors('--to=peft: '):
        theirs = folder.read_config(tokenizer.files[CONFIG].parent)
    model_type = theirs['model_type']
    if model_type in _UNSUPPORTED:
        raise UserError(f'--to=peft: {model_type} is not supported. {_MERGE}')
    record = warm_start.read_record(run.path)
    if not record.get('published_base'):
        raise UserError(
            '--to=peft: the parameters under the adapters, initialized from '
            f'{record["run"]}, are not known to be those of a published checkpoint. '
            f'{_MERGE}'
        )
    return theirs


def _check_function(published: ModelConfig, own: ModelConfig) -> None:
    """Raises UserError if the run's model computes otherwise than the checkpoint's.

    Dropout may differ.
    """
    here, there = base.field_values(own), base.field_values(published)
    for name, value in here.items():
        if 'drop' in name or name in base.RUNTIME_FIELDS:
            continue
        if _without_dropout(name, value) != _without_dropout(name, there[name]):
            raise UserError(
                f'--to=peft: model.{name}={quote(value)} differs from the published '
                f'checkpoint, {quote(there[name])}. {_MERGE}'
            )


def _without_dropout(name: str, value: Any) -> Any:
    if name not in variants.fields() or value is None:
        return value
    return [
        (entry.name, {k: x for k, x in entry.arguments.items() if k != 'dropout'})
        for entry in Component.of(value).entries
    ]


def _to_peft_arrays(
    dense: LoRA, kernel: arrays.Array, layer: dict[str, jax.Array]
) -> dict[str, jax.Array]:
    # A family may order the features of a head differently.
    features = -1, kernel.shape[-1]
    b = layer['lora_b'].reshape(dense.rank, *features)
    found = {
        'lora_A.weight': layer['lora_a'].T,
        'lora_B.weight': kernel._replace(shape=b.shape).to_theirs(b),
    }
    if dense.dora:
        m = dense.magnitude(layer).reshape(features)
        bias = kernel._replace(path=(*kernel.path[:-1], 'bias'), shape=m.shape)
        found['lora_magnitude_vector'] = bias.to_theirs(m)
    return found


def _settings(run: OpenedRun, dense: LoRA, modules: list[str]) -> dict[str, Any]:
    source = warm_start.read_record(run.path)['run']
    published = run.config.init_from if hub.is_converted(source) else ''
    name, _, revision = published.partition('@')
    return {
        'peft_type': 'LORA',
        'task_type': 'SEQ_2_SEQ_LM',
        'base_model_name_or_path': name or None,
        'revision': revision or None,
        'r': dense.rank,
        'lora_alpha': dense.alpha,
        'lora_dropout': 0.0,
        'use_rslora': dense.stabilized,
        'use_dora': dense.dora,
        'target_modules': modules,
        'bias': 'none',
        'fan_in_fan_out': False,
        'inference_mode': True,
    }
