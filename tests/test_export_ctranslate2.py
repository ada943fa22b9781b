"""A model of CTranslate2: refused by field, or the same greedy tokens as ours."""

import jax
import numpy as np
import pytest

import flaxformer_lite
from experiments.command_line.errors import UserError
from experiments.config.schema import ExperimentConfig
from experiments.conversion import ctranslate2
from experiments.conversion.trained import Trained
from experiments.data import tokenizer
from experiments.data.sources.grammar import Grammar
from flaxformer_lite.config import build
from flaxformer_lite.config.schema import ModelConfig
from tests import tiny

# CTranslate2's heads are as wide as a cache line at least.
SIZES = dict(d_model=32, num_layers=1, decoder_num_layers=2, num_heads=2, d_ff=48)
CASES = {
    'post_norm': dict(),
    'pre_norm': dict(residual='pre_norm', feed_forward='gelu', tie='none'),
    'learned': dict(positions='learned(max_length=70)', norm_embeddings=True),
    'rms': dict(norm='rms(epsilon=1e-05)', residual='pre_norm', feed_forward='swiglu'),
    'biases': dict(
        attention_bias=True,
        output_bias=True,
        feed_forward='geglu(tanh=True)',
        positions='sinusoidal_t2t',
        scale_embeddings=False,
    ),
}


@pytest.mark.parametrize(
    ('fields', 'words'),
    [
        (dict(attention='cosine'), 'model.attention=cosine'),
        (dict(attention='softmax(cap=3.0)'), 'model.attention=softmax(cap=3.0)'),
        (dict(decoder_positions='alibi'), 'model.decoder_positions=alibi'),
        (dict(norm='batch'), 'model.norm=batch'),
        (dict(decoder_norm='rms'), 'model.decoder_norm=rms'),
        (
            dict(residual='post_norm(final=True)'),
            'model.residual=post_norm(final=True)',
        ),
        (dict(parallel=True), 'model.parallel=True'),
        (dict(num_kv_heads=1), 'model.num_kv_heads=1'),
        (dict(d_k=4), 'model.d_k=4'),
        (dict(architecture='recurrent'), 'model.architecture=recurrent'),
        (dict(logit_cap=30.0), 'model.logit_cap=30.0'),
    ],
)
def test_what_is_not_known_is_refused_by_its_field(fields, words):
    with pytest.raises(UserError) as caught:
        ctranslate2.check(ModelConfig.of(SIZES | fields))
    assert words in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize('quantization', [None, 'int8'])
@pytest.mark.parametrize('name', CASES)
def test_greedy_tokens_are_ours(tmp_path, name, quantization):
    package = pytest.importorskip('ctranslate2')
    vocabulary = tokenizer.train(Grammar(pairs=200), 200, tmp_path / 'cache')
    config = ModelConfig.of(SIZES | CASES[name])
    model = build.model(config, vocabulary.vocab_size)
    # Larger than at first: the logits are far apart.
    variables = jax.tree.map(lambda x: 1.2 * x, tiny.all_variables(model))
    ours = Trained(ExperimentConfig(model=config), vocabulary, model, variables)
    (tmp_path / 'out').mkdir()
    ctranslate2.prepare(ours, quantization)(tmp_path / 'out')
    theirs = package.Translator(str(tmp_path / 'out'), device='cpu', intra_threads=1)

    texts = [text for text, _ in Grammar(pairs=200).train()][:12]
    sources = [[*ids, tokenizer.EOS] for ids in vocabulary.encode(texts)]
    found = flaxformer_lite.generate(
        model, variables, sources, 'greedy', max_length=12
    ).tokens_BNL[:, 0]
    results = theirs.translate_batch(
        [vocabulary.pieces(ids[:-1]) for ids in sources],
        beam_size=1,
        max_decoding_length=11,
        # We never choose these.
        suppress_sequences=[['<pad>'], ['<s>']],
    )
    expected = [result.hypotheses[0] for result in results]
    rows = [row.tolist() for row in np.asarray(found)]
    rows = [row[: row.index(tokenizer.EOS)] for row in rows]
    same = [
        vocabulary.pieces(row) == pieces
        for row, pieces in zip(rows, expected, strict=True)
    ]
    # int8 rounds every matrix, and may choose another token now and then.
    assert sum(same) >= (len(same) if quantization is None else len(same) / 2)
