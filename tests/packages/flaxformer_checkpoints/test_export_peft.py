"""Tests of export to PEFT; with that package, slow tests compare logits."""

import dataclasses
import json
import re
import shutil
from types import SimpleNamespace

import numpy as np
import published
import pytest
import safetensors.numpy
import tiny

import flaxformer_checkpoints
from experiments import storage
from experiments.config.schema import ExperimentConfig
from experiments.errors import UserError
from flaxformer_checkpoints.exports import export, to_peft
from flaxformer_checkpoints.loading import folder, load
from flaxformer_checkpoints.tokenizer import HuggingfaceTokenizer
from flaxformer_lite.config import builder
from flaxformer_lite.layers.dense.lora import LoRA
from flaxformer_lite.training import freezing

SUPPORTED = sorted({*published.NAMES} - {'t5gemma2', 'gemma3'})
RECORD = {
    'run': 'cache/hub-me--tiny-0',
    'tokenizer': 'init_from',
    'published_base': True,
}


def run_of(family, path, model, **record):
    storage.write_json(path / 'init.json', RECORD | record)
    sums = json.dumps({'sums': {'config.json': ''}}).encode()
    base = str(published.GOLDENS / family)
    return SimpleNamespace(
        path=path,
        config=ExperimentConfig(init_from='me/tiny@v1'),
        tokenizer=HuggingfaceTokenizer(path=base, model=sums),
        model=model,
    )


def adapted_run(family, path, dense):
    """Returns a run with random adapters on a published checkpoint."""
    base = published.GOLDENS / family
    described = flaxformer_checkpoints.describe_pretrained(base)
    _, variables = flaxformer_checkpoints.from_pretrained(base)
    config = described.config.with_values({'dense': dense})
    model = builder.build(config, *described[1:])
    run = run_of(family, path, model)
    run.config = dataclasses.replace(run.config, model=config)
    params = freezing.paths(tiny.parameters(model))
    params |= freezing.paths(variables['params'])
    run.variables = {'params': freezing.from_paths(params)}
    return run


def write(run, out):
    """Returns the settings and the arrays of an exported adapter."""
    out.mkdir()
    to_peft.write(run, export._as_exported(run), out)
    settings = json.loads((out / 'adapter_config.json').read_text('utf-8'))
    return settings, safetensors.numpy.load_file(out / 'adapter_model.safetensors')


@pytest.mark.ci
@pytest.mark.parametrize(
    ('family', 'arguments'),
    [
        ('marian', 'stabilized=True'),
        # T5Gemma orders the features of heads differently.
        pytest.param('t5gemma', 'dora=True', marks=pytest.mark.slow),
        pytest.param('m2m100', '', marks=pytest.mark.slow),
    ],
)
def test_merged_matrices_match_the_formula_of_peft(family, arguments, tmp_path):
    """PEFT computes (W + s B A) x, with rows of the norms m for DoRA."""
    dense = f'lora(rank=3, alpha=6.0, on="query|out_proj|up", {arguments})'
    run = adapted_run(family, tmp_path, dense)
    settings, stored = write(run, tmp_path / 'out')
    assert settings['base_model_name_or_path'] == 'me/tiny'
    assert settings['revision'] == 'v1'
    assert settings['r'] == 3 and settings['lora_alpha'] == 6
    assert settings['use_rslora'] == ('stabilized' in arguments)
    assert settings['use_dora'] == ('dora' in arguments)
    scale = 6 / np.sqrt(3) if settings['use_rslora'] else 6 / 3

    path = published.GOLDENS / family
    model_type = load.family_of(folder.read_config(path)['model_type']).model_types[0]
    described = flaxformer_checkpoints.describe_pretrained(path)
    merged = export._as_exported(run).variables
    _, theirs = flaxformer_checkpoints.to_pretrained(described, merged, model_type)
    base = published.weights_of(path)
    modules = settings['target_modules']
    changed = {x for x in theirs if x in base and (theirs[x] != base[x]).any()}
    assert changed == {f'{module}.weight' for module in modules}
    names = ['lora_A.weight', 'lora_B.weight']
    names += ['lora_magnitude_vector'] * settings['use_dora']
    assert stored.keys() == {
        f'base_model.model.{x}.{y}' for x in modules for y in names
    }
    for module in modules:
        a, b, *m = (np.float64(stored[f'base_model.model.{module}.{x}']) for x in names)
        expected = base[f'{module}.weight'] + scale * b @ a
        if m:
            expected *= (m[0] / np.linalg.norm(expected, axis=1))[:, None]
        np.testing.assert_allclose(
            theirs[f'{module}.weight'], expected, rtol=1e-4, atol=1e-5, err_msg=module
        )


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('arguments', ['', 'stabilized=True', 'dora=True'])
@pytest.mark.parametrize('family', SUPPORTED)
def test_peft_computes_the_same_logits(family, arguments, tmp_path):
    peft = pytest.importorskip('peft')
    torch = pytest.importorskip('torch')
    transformers = pytest.importorskip('transformers')
    run = adapted_run(family, tmp_path, f'lora(rank=2, on="", {arguments})')
    write(run, tmp_path / 'out')
    base = shutil.copytree(published.GOLDENS / family, tmp_path / 'base')
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(
        base, dtype='float32', attn_implementation='eager'
    )
    golden = published.golden_of(family)
    source, inputs = golden['source'], golden['inputs']
    tensors = {
        'input_ids': torch.tensor(source),
        'attention_mask': torch.tensor(source != theirs.config.pad_token_id),
        'decoder_input_ids': torch.tensor(inputs),
    }
    with torch.no_grad():
        before = theirs.eval()(**tensors).logits.numpy()
        adapted = peft.PeftModel.from_pretrained(theirs, tmp_path / 'out').eval()
        logits = adapted(**tensors).logits.numpy()
    ours = tiny.apply(run.model, run.variables, source, inputs)
    assert np.abs(logits - before).max() > 0.01
    is_token = golden['labels'] != theirs.config.pad_token_id
    np.testing.assert_allclose(logits[is_token], ours[is_token], rtol=1e-4, atol=1e-4)


def test_runs_that_peft_cannot_open_are_rejected(tmp_path):
    with_lora, without = SimpleNamespace(dense=LoRA()), SimpleNamespace(dense=None)
    for family, model, record, problem in [
        ('t5', without, {}, 'adapters'),
        ('t5gemma2', with_lora, {}, 't5gemma2'),
        ('gemma3', with_lora, {}, 'gemma3_text'),
        ('t5', with_lora, {'published_base': False}, 'cache/hub-me--tiny-0'),
    ]:
        run = run_of(family, tmp_path, model, **record)
        with pytest.raises(UserError, match=f'^--to=peft: .*{problem}'):
            to_peft.write(run, None, tmp_path)
    run.tokenizer = None
    with pytest.raises(UserError, match='published checkpoint'):
        to_peft.write(run, None, tmp_path)
    assert [x.name for x in tmp_path.iterdir()] == ['init.json']


def test_models_that_differ_from_their_checkpoint_are_rejected(tmp_path):
    """PEFT would add the adapters to the checkpoint's own model."""
    run = adapted_run('t5', tmp_path, 'lora(rank=2)')
    plain = export._as_exported(run)

    def with_fields(**fields):
        config = plain.config.model.with_values(fields)
        return plain._replace(config=dataclasses.replace(plain.config, model=config))

    out = tmp_path / 'out'
    out.mkdir()
    dropout = {'dropout': 0.3, 'attention': 'softmax(scale=False)'}
    to_peft.write(run, with_fields(**dropout), out)
    assert len(list(out.iterdir())) == 2
    for field, value in ('norm', 'rms(epsilon=0.1)'), ('attention', 'softmax'):
        problem = re.escape(f"--to=peft: model.{field}='{value}'")
        with pytest.raises(UserError, match=f'^{problem}'):
            to_peft.write(run, with_fields(**{field: value}), tmp_path)
