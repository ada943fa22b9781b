"""Tests of `flaxformer_checkpoints.convert --to`."""

import sys
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
from flaxformer_lite.config import build
from flaxformer_lite.config.schema import ModelConfig
from flaxformer_lite.training.train_step import init_variables


@pytest.fixture
def formats(monkeypatch):

    def good(trained, folder):
        (folder / 'model').write_text('whole', 'utf-8')

    def fails(trained, folder, quantization):
        (folder / 'model').write_text('half', 'utf-8')
        raise UserError('no space')

    monkeypatch.setattr(export.huggingface, 'write', good)
    monkeypatch.setattr(export.to_ctranslate2, 'write', fails)
    monkeypatch.setattr(export.flags, 'require_packages', lambda *_: None)
    trained = Trained(None, SentencePiece(), None, None)
    monkeypatch.setattr(export, 'OpenedRun', lambda *arguments: trained)
    monkeypatch.setattr(export, '_as_exported', lambda run: run)


def convert_to(monkeypatch, *arguments):
    monkeypatch.setattr(sys, 'argv', ['convert', 'run', *map(str, arguments)])
    convert.main()


def test_export_writes_a_complete_folder(tmp_path, formats, monkeypatch, capsys):
    out = tmp_path / 'new' / 'out'
    convert_to(monkeypatch, '--to=huggingface', f'--out={out}')
    assert [path.name for path in out.iterdir()] == ['model']
    assert str(out) in capsys.readouterr().out
    assert [path.name for path in out.parent.iterdir()] == ['out']


def test_existing_folders_are_refused(tmp_path, formats, monkeypatch):
    out = tmp_path / 'out'
    out.mkdir()
    (out / 'model').write_text('mine', 'utf-8')
    for path in (out, out / 'model'):
        with pytest.raises(UserError, match='exists'):
            convert_to(monkeypatch, '--to=huggingface', f'--out={path}')
    assert (out / 'model').read_text('utf-8') == 'mine'


@pytest.mark.parametrize(
    ('arguments', 'words'),
    [
        (['--to=ctranslate2'], 'no space'),
        (['--to=huggingface', '--quantization=int8'], '--quantization=int8'),
    ],
)
def test_failed_exports_leave_no_files(
    tmp_path, formats, monkeypatch, arguments, words
):
    with pytest.raises(UserError, match=words):
        convert_to(monkeypatch, *arguments, f'--out={tmp_path / "out"}')
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    'given',
    [
        (),
        ('--out=x',),
        ('--to=huggingface',),
        ('--to=huggingface', '--out=x', '--workdir=y'),
        ('--workdir=y', '--quantization=int8'),
    ],
)
def test_incomplete_flags_of_a_conversion_are_refused(given, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match='--'):
        convert_to(monkeypatch, *given)
    assert not any(tmp_path.iterdir())


def test_only_the_first_head_of_multi_token_is_written():
    architecture = 'multi_token(reads="mixture", heads=2)'
    config = ExperimentConfig(
        model=ModelConfig(d_model=8, num_layers=1, architecture=architecture)
    )
    model = build.model(config.model, 9)
    variables = jax.eval_shape(
        lambda key: init_variables(model, key), jax.random.key(0)
    )
    run = SimpleNamespace(
        config=config, model=model, tokenizer=None, variables=variables
    )
    found = export._as_exported(run)
    assert str(found.config.model.architecture) == "encoder_decoder(reads='mixture')"
    assert found.variables == jax.eval_shape(
        lambda key: init_variables(found.model, key), jax.random.key(0)
    )


def test_checks_compute_in_full_float32():

    class Recorder:
        def apply(self, variables, source, inputs):
            precisions.append(jax.config.jax_default_matmul_precision)
            return inputs

    precisions = []
    with jax.default_matmul_precision('default'):
        logits(Recorder(), {}, np.ones((1, 2)), np.ones((1, 3)))
    assert precisions == ['highest']
