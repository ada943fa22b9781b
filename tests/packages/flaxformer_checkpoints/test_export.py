"""Tests of `flaxformer_checkpoints.convert --to`."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from experiments.config.schema import ExperimentConfig
from experiments.data.tokenizers.sentencepiece import SentencePiece
from experiments.errors import UserError
from flaxformer_checkpoints import convert
from flaxformer_checkpoints.exports import export
from flaxformer_checkpoints.exports.trained import Trained, logits
from flaxformer_lite.config import builder
from flaxformer_lite.config.schema import ModelConfig
from flaxformer_lite.training.train_step import init_variables


@pytest.fixture
def formats(monkeypatch):
    """Replaces the formats: huggingface succeeds, ctranslate2 fails half-way."""

    def write(trained, folder):
        (folder / 'model').write_text('whole', 'utf-8')

    def fail(trained, folder, quantization):
        (folder / 'model').write_text('half', 'utf-8')
        raise UserError('no space')

    monkeypatch.setattr(export.huggingface, 'write', write)
    monkeypatch.setattr(export.to_ctranslate2, 'write', fail)
    monkeypatch.setattr(export.flags, 'require_packages', lambda *_: None)
    trained = Trained(None, SentencePiece(), None, None)
    monkeypatch.setattr(export, 'OpenedRun', lambda *arguments: trained)
    monkeypatch.setattr(export, '_as_exported', lambda run: run)


def test_export_writes_a_complete_folder(tmp_path, formats, command):
    out = tmp_path / 'new' / 'out'
    arguments = 'run', '--to=huggingface', f'--out={out}'
    assert str(out) in command(convert, *arguments).out
    for path in out, out / 'model':
        with pytest.raises(UserError, match='exists'):
            command(convert, 'run', '--to=huggingface', f'--out={path}')
    assert (out / 'model').read_text('utf-8') == 'whole'
    assert [*out.parent.rglob('*')] == [out, out / 'model']


@pytest.mark.parametrize(
    ('arguments', 'problem'),
    [
        ('', '--workdir'),
        ('--out=x', '--workdir'),
        ('--to=huggingface', '--out'),
        ('--to=huggingface --out=x --workdir=y', '--workdir'),
        ('--workdir=y --quantization=int8', '--to'),
        ('--to=ctranslate2 --out=x', 'no space'),
        ('--to=huggingface --quantization=int8 --out=x', '--quantization=int8'),
    ],
)
def test_invalid_flags_and_failed_exports_write_nothing(
    arguments, problem, formats, command, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=problem):
        command(convert, 'run', *arguments.split())
    assert not any(tmp_path.iterdir())


def test_export_of_multi_token_has_only_the_first_head():
    architecture = 'multi_token(reads="mixture", heads=2)'
    config = ExperimentConfig(
        model=ModelConfig(d_model=8, num_layers=1, architecture=architecture)
    )
    model = builder.build(config.model, 9)

    def shapes(model):
        return jax.eval_shape(lambda key: init_variables(model, key), jax.random.key(0))

    run = SimpleNamespace(
        config=config, model=model, tokenizer=None, variables=shapes(model)
    )
    exported = export._as_exported(run)
    architecture = str(exported.config.model.architecture)
    assert architecture == "encoder_decoder(reads='mixture')"
    assert exported.variables == shapes(exported.model)


def test_checks_compute_in_full_float32():

    class Recorder:
        def apply(self, variables, source, inputs):
            precisions.append(jax.config.jax_default_matmul_precision)
            return inputs

    precisions = []
    with jax.default_matmul_precision('default'):
        logits(Recorder(), {}, np.ones((1, 2)), np.ones((1, 3)))
    assert precisions == ['highest']
