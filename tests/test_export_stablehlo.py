"""StableHLO of a model: run in a process that has JAX alone, it gives our logits."""

import json
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
import sentencepiece
import small_runs
from jax import export

from experiments.config.schema import EvaluationConfig, ExperimentConfig
from experiments.conversion import stablehlo
from experiments.conversion.trained import Trained
from experiments.data.sources.grammar import Grammar
from experiments.errors import UserError
from flaxformer_lite.config import build
from flaxformer_lite.config.schema import ModelConfig
from tests import tiny

pytest.importorskip('flatbuffers')

EXTRA = 4
# Runs in a process of its own, which knows nothing of this project.
_PROGRAM = """
import json, sys
import jax, numpy as np
from jax import export

def load(name):
    with open(f'{sys.argv[1]}/{name}.stablehlo', 'rb') as file:
        return export.deserialize(bytearray(file.read())).call

with np.load(f'{sys.argv[1]}/parameters.npz') as file:
    parameters = dict(file)
encode, step = jax.jit(load('encode')), jax.jit(load('step'))
for source, inputs in json.loads(sys.stdin.read()):
    state = encode(parameters, np.array(source, np.int32))
    inputs = np.array(inputs, np.int32)
    logits = []
    for position in range(inputs.shape[1]):
        token = inputs[:, position]
        found, state = step(parameters, token, np.int32(position), state)
        logits.append(found)
    print(json.dumps(np.stack(logits, 1).tolist()))
assert not any('flax' in name or 'experiments' in name for name in sys.modules)
"""
CASES = [
    ([[4, 5, 6, 1], [7, 1, 0, 0]], [[2, 8, 9], [2, 4, 3]]),
    ([[9, 8, 7, 6, 5, 1]], [[2, 4, 5, 6, 7]]),
]


@pytest.fixture(scope='module')
def tokenizer(tmp_path_factory):
    pairs = Grammar(pairs=200)
    return small_runs.train_tokenizer(pairs, 200, tmp_path_factory.mktemp('cache'))


def trained(tokenizer, **fields):
    config = ModelConfig.of(tiny.SIZES | dict(num_layers=1) | fields)
    model = build.model(config, tiny.VOCAB)
    evaluation = EvaluationConfig(extra_length=EXTRA)
    return Trained(
        ExperimentConfig(model=config, evaluation=evaluation),
        tokenizer,
        model,
        tiny.all_variables(model),
    )


def logits_elsewhere(folder):
    """What the programs give for `CASES` in another process."""
    found = subprocess.run(
        [sys.executable, '-W', 'error::FutureWarning', '-c', _PROGRAM, str(folder)],
        input=json.dumps(CASES),
        capture_output=True,
        text=True,
        cwd=folder,
        check=False,
    )
    assert not found.returncode, found.stderr
    return [np.array(json.loads(line)) for line in found.stdout.splitlines()]


@pytest.mark.parametrize(
    'fields',
    [
        dict(residual='pre_norm', positions='t5', num_kv_heads=1),
        pytest.param(dict(), marks=pytest.mark.slow),
        pytest.param(dict(architecture='decoder_only'), marks=pytest.mark.slow),
        pytest.param(dict(architecture='recurrent'), marks=pytest.mark.slow),
        pytest.param(dict(attention='linear', norm='batch'), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_process_with_jax_alone_gives_our_logits(tmp_path, tokenizer, fields):
    ours = trained(tokenizer, **fields)
    stablehlo.write(ours, tmp_path)
    expected = []
    for source, inputs in CASES:
        arrays = jnp.array(source), jnp.array(inputs)
        expected.append(tiny.apply(ours.model, ours.variables, *arrays))
    for found, logits in zip(logits_elsewhere(tmp_path), expected, strict=True):
        np.testing.assert_allclose(found, logits, atol=2e-5, rtol=2e-5)
    manifest = json.loads((tmp_path / 'manifest.json').read_text('utf-8'))
    assert manifest['special_tokens'] == {'padding': 0, 'start': 2, 'end': 1}
    assert manifest['extra_length'] == EXTRA
    pieces = sentencepiece.SentencePieceProcessor(str(tmp_path / 'tokenizer.model'))
    text = ' The  red\tcat\r'
    assert pieces.encode(text) == tokenizer.encode([text])[0]
    with open(tmp_path / 'step.stablehlo', 'rb') as file:
        program = export.deserialize(bytearray(file.read()))
    assert program.platforms == ('cpu', 'cuda', 'tpu')


def test_what_needs_known_lengths_is_refused(tmp_path, tokenizer):
    ours = trained(tokenizer, attention='blockwise', residual='pre_norm')
    with pytest.raises(UserError, match='needs lengths that are known, as blockwise'):
        stablehlo.write(ours, tmp_path)
