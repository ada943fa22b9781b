"""Tests of export to PEFT; with that package, slow tests compare logits."""

import dataclasses
import json
import shutil
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import published
import pytest

import flaxformer_checkpoints
from experiments import storage
from experiments.config.schema import ExperimentConfig
from experiments.errors import UserError
from flaxformer_checkpoints.exports import export, to_peft
from flaxformer_checkpoints.loading import arrays, load
from flaxformer_checkpoints.tokenizer import HuggingfaceTokenizer
from flaxformer_lite.config import build
from flaxformer_lite.layers.dense.lora import LoRADense
from flaxformer_lite.training import freezing

safetensors_numpy = pytest.importorskip('safetensors.numpy')
SUPPORTED = sorted({*published.NAMES} - {'t5gemma2', 'gemma3'})
RECORD = {
    'run': 'cache/hub-me--tiny-0',
    'tokenizer': 'init_from',
    'published_base': True,
}


def run_of(family, path, model, **record):
    storage.write_json(path / 'init.json', RECORD | record)
    sums = json.dumps({'sums': {'config.json': ''}}).encode()
    folder = str(published.GOLDENS / family)
    return SimpleNamespace(
        path=path,
        config=ExperimentConfig(init_from='me/tiny@v1'),
        tokenizer=HuggingfaceTokenizer(path=folder, model=sums),
        model=model,
    )


def adapted(family, path, dense):
    """Returns a run with random adapters on a published checkpoint."""
    base = published.GOLDENS / family
    described = flaxformer_checkpoints.describe_pretrained(base)
    _, variables = flaxformer_checkpoints.from_pretrained(base)
    fields = described.config.with_values({'dense': dense})
    model = build.model(fields, *described[1:])
    inputs = np.ones((1, 2), int)
    shapes = jax.eval_shape(model.init, jax.random.key(0), inputs, inputs)
    draw = np.random.default_rng(0).normal
    params = freezing.paths(variables['params'])
    for name, x in freezing.paths(shapes['params']).items():
        if name not in params:
            params[name] = jnp.asarray(draw(0, 0.3, x.shape), jnp.float32)
    run = run_of(family, path, model)
    run.config = dataclasses.replace(run.config, model=fields)
    run.variables = {'params': freezing.from_paths(params)}
    return run


def written(run, folder):
    folder.mkdir()
    to_peft.write(run, export._as_exported(run), folder)
    settings = json.loads((folder / 'adapter_config.json').read_text('utf-8'))
    stored = safetensors_numpy.load_file(folder / 'adapter_model.safetensors')
    return settings, stored


@pytest.mark.parametrize('name', ['query', 'out_proj'])
def test_a_layer_is_written_in_the_form_of_peft(name):
    """PEFT computes (W + s B A) x, with rows of the norms m for DoRA."""
    shape = {'query': (6, 2, 4), 'out_proj': (2, 4, 6)}[name]
    features = {'query': 8, 'out_proj': 6}[name]
    draw = np.random.default_rng(0).normal
    shapes = {
        'kernel': shape,
        'lora_a': (48 // features, 3),
        'lora_b': (3, features),
        'lora_m': (features,),
    }
    layer = {key: draw(size=size).astype(np.float32) for key, size in shapes.items()}
    dense = LoRADense(rank=3, alpha=6.0, dora=True)
    kernel = arrays.Array((name, 'kernel'), shape, 'W', (), halves=name == 'query')
    found = to_peft._to_peft_arrays(dense, kernel, layer)
    a, b, m = map(np.float64, found.values())
    w = np.float64(kernel.to_theirs(layer['kernel']))
    v = w + 2 * b @ a
    expected = kernel.to_theirs(np.asarray(dense.merge(layer)['kernel']))
    rows = np.linalg.norm(v, axis=1, keepdims=True)
    np.testing.assert_allclose(m[:, None] * v / rows, expected, rtol=1e-4, atol=1e-5)
    assert list(found) == ['lora_A.weight', 'lora_B.weight', 'lora_magnitude_vector']


@pytest.mark.slow
@pytest.mark.parametrize(
    ('family', 'arguments'),
    [
        ('t5', ''),
        ('marian', 'stabilized=True'),
        ('m2m100', 'dora=True'),
        ('t5gemma', 'dora=True'),  # which orders the features of heads differently
    ],
)
def test_the_matrices_are_those_that_peft_merges(family, arguments, tmp_path):
    run = adapted(
        family,
        tmp_path,
        f'lora(rank=3, alpha=6.0, on="query|out_proj|up", {arguments})',
    )
    settings, stored = written(run, tmp_path / 'out')
    assert settings['base_model_name_or_path'] == 'me/tiny'
    assert settings['revision'] == 'v1'
    assert settings['r'] == 3 and settings['lora_alpha'] == 6
    assert settings['use_rslora'] == ('stabilized' in arguments)
    assert settings['use_dora'] == ('dora' in arguments)
    scale = 6 / np.sqrt(3) if settings['use_rslora'] else 6 / 3

    merged = export._as_exported(run)
    described = flaxformer_checkpoints.describe_pretrained(published.GOLDENS / family)
    kind = load.family_of(settings_of(family)['model_type']).model_types[0]
    _, theirs = flaxformer_checkpoints.to_pretrained(described, merged.variables, kind)
    base = published.weights_of(published.GOLDENS / family)
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
        whole = base[f'{module}.weight'] + scale * b @ a
        if m:
            whole *= (m[0] / np.linalg.norm(whole, axis=1))[:, None]
        found = theirs[f'{module}.weight']
        np.testing.assert_allclose(found, whole, rtol=1e-4, atol=1e-5, err_msg=module)


def settings_of(family):
    return json.loads((published.GOLDENS / family / 'config.json').read_text('utf-8'))


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('arguments', ['', 'stabilized=True', 'dora=True'])
@pytest.mark.parametrize('family', SUPPORTED)
def test_peft_computes_the_same_logits(family, arguments, tmp_path):
    peft = pytest.importorskip('peft')
    torch = pytest.importorskip('torch')
    transformers = pytest.importorskip('transformers')
    run = adapted(family, tmp_path, f'lora(rank=2, on="", {arguments})')
    written(run, tmp_path / 'out')
    folder = shutil.copytree(published.GOLDENS / family, tmp_path / 'base')
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(
        folder, dtype='float32', attn_implementation='eager'
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
        found = peft.PeftModel.from_pretrained(theirs, tmp_path / 'out').eval()
        logits = found(**tensors).logits.numpy()
    ours = jax.jit(run.model.apply)(run.variables, source, inputs)
    assert np.abs(logits - before).max() > 0.01
    there = golden['labels'] != theirs.config.pad_token_id
    np.testing.assert_allclose(logits[there], ours[there], rtol=1e-4, atol=1e-4)


def test_runs_that_peft_cannot_open_are_refused(tmp_path):
    with_lora, without = SimpleNamespace(dense=LoRADense()), SimpleNamespace(dense=None)
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


def test_a_model_that_differs_from_its_checkpoint_is_refused(tmp_path):
    """PEFT would add the adapters to the checkpoint's own model."""
    run = adapted('t5', tmp_path, 'lora(rank=2)')
    plain = export._as_exported(run)

    def with_fields(**fields):
        config = plain.config.model.with_values(fields)
        return plain._replace(config=dataclasses.replace(plain.config, model=config))

    folder = tmp_path / 'out'
    folder.mkdir()
    dropout = {'dropout': 0.3, 'attention': 'softmax(scale=False)'}
    to_peft.write(run, with_fields(**dropout), folder)
    assert len(list(folder.iterdir())) == 2
    for fields, problem in (
        ({'norm': 'rms(epsilon=0.1)'}, "model.norm='rms.epsilon=0.1.'"),
        ({'attention': 'softmax'}, "model.attention='softmax'"),
    ):
        with pytest.raises(UserError, match=f'^--to=peft: {problem}'):
            to_peft.write(run, with_fields(**fields), tmp_path)
