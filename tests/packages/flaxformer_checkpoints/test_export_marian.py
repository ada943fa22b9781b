"""Tests of a fine-tuned Marian model, exported to Transformers and CTranslate2."""

import jax
import numpy as np
import optax
import published
import published_tokenizers
import pytest

import flaxformer_checkpoints
import flaxformer_lite
from flaxformer_checkpoints.exports import huggingface
from flaxformer_checkpoints.exports.trained import Trained
from flaxformer_lite.training.train_step import TrainState, make_train_step


def zero_start(arrays):
    """Gives the start token, the last one, the embedding that Marian has."""
    arrays['model.shared.weight'][-1] = 0.0


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore::DeprecationWarning')  # of Transformers
@pytest.mark.filterwarnings('ignore:Recommended. pip install sacremoses')
def test_ctranslate2_scores_as_the_trained_model(tmp_path):
    ctranslate2 = pytest.importorskip('ctranslate2')
    pytest.importorskip('torch')
    pytest.importorskip('transformers')
    checkpoint = published_tokenizers.read('marian', tmp_path / 'marian')
    published.change_weights(checkpoint.folder, zero_start)
    # CTranslate2's converter reads one number of heads for both stacks.
    published.change_config(checkpoint.folder, decoder_attention_heads=2)
    model, variables = flaxformer_checkpoints.from_pretrained(checkpoint.folder)
    golden = published.golden_of('marian')
    batch = flaxformer_lite.make_batch(golden['source'], golden['labels'], model=model)
    optimizer = optax.adam(3e-2)
    step = jax.jit(make_train_step(model, optimizer))
    state = TrainState.create(variables, optimizer)
    for _ in range(10):
        state, _ = step(state, batch, jax.random.key(0))

    written = tmp_path / 'written'
    written.mkdir()
    tokenizer = checkpoint.tokenizer
    trained = Trained(checkpoint.config, tokenizer, model, state.variables)
    huggingface.write_published(trained, written)
    converter = ctranslate2.converters.TransformersConverter(str(written))
    translator = ctranslate2.Translator(converter.convert(str(tmp_path / 'converted')))

    sources = [[2, 4, 11, 0], [5, 6, 11, 7, 4, 0], [4, 14, 7, 13, 0]]
    targets = [[3, 13, 5, 9, 0], [5, 6, 12, 0], [14, 7, 0]]
    batch = flaxformer_lite.make_batch(sources, targets, model=model)
    logits_BTV = model.apply(state.variables, batch['source'], batch['inputs'])
    # CTranslate2 has no padding, which is the last token.
    expected_BTV = np.asarray(jax.nn.log_softmax(logits_BTV[..., :-1]))
    results = translator.score_batch(
        [tokenizer.pieces(row) for row in sources],
        [tokenizer.pieces(row[:-1]) for row in targets],
    )
    for result, row, expected_TV in zip(results, targets, expected_BTV, strict=True):
        expected = expected_TV[np.arange(len(row)), row]
        np.testing.assert_allclose(result.log_probs, expected, atol=1e-4)
