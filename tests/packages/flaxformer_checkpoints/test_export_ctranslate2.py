"""Tests of export to CTranslate2; with that package, slow tests compare results."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sentencepiece
import small_runs
import tiny

import flaxformer_lite
from experiments.config.schema import ExperimentConfig
from experiments.data.tokenizers import base as tokenizer
from experiments.errors import UserError
from flaxformer_checkpoints.exports import to_ctranslate2
from flaxformer_checkpoints.exports.trained import Trained
from flaxformer_lite.config import builder
from flaxformer_lite.config.schema import FOLDERS, ModelConfig
from parallel_grammar.source import Grammar

SIZES = dict(d_model=24, num_layers=1, decoder__num_layers=2, num_heads=2, d_ff=40)
LONGEST = 41
# All sizes differ, so that none can be confused with another.
UNEQUAL = dict(d_k=6, d_v=6, num_heads=4, num_kv_heads=2)
UNEQUAL |= dict(decoder__num_heads=6, decoder__num_kv_heads=3, decoder__d_k=8)
UNEQUAL |= dict(decoder__d_v=8, decoder__d_ff=28, cross__num_kv_heads=2)
UNEQUAL |= dict(cross__d_k=4, cross__d_v=4)
PRE_NORM = dict(residual='pre_norm')
CASES = {
    'paper': dict(),
    'pre_norm': dict(feed_forward='gelu', tie='none', **PRE_NORM),
    'learned': dict(positions='learned(max_length=70)', norm_embeddings=True),
    'biases': dict(
        attention_bias=True,
        output_bias=True,
        feed_forward='geglu(tanh=True)',
        scale_embeddings=False,
        positions='sinusoidal(scaled_down=True)',
    ),
    'rotary': dict(positions='rotary(max_wavelength=500.0)', **UNEQUAL),
    'no_scale': dict(
        attention='softmax(scale=False)',
        attention_bias=True,
        positions='none',
        decoder__positions='rotary',
        scale_logits=True,
        **PRE_NORM,
        **UNEQUAL,
    ),
    'offset': dict(norm='rms(offset=1.0)', decoder__feed_forward='silu', **PRE_NORM),
    'query_key_norm': dict(
        attention='softmax(query_key_norm=True, query_key_offset=1.0)',
        cross__attention='softmax',
        norm='rms',
        positions='rotary',
        feed_forward='swiglu',
        **PRE_NORM,
        **UNEQUAL,
    ),
    # Distances in the sentences exceed these.
    't5': dict(positions='t5(buckets=8, max_distance=16)', decoder__num_heads=3)
    | dict(decoder__d_k=8, decoder__d_v=8),
    'shaw': dict(positions='shaw(max_distance=5)', num_kv_heads=1),
    'widths': dict(decoder__d_model=36, tie='decoder', norm_embeddings=True)
    | dict(init='mu_p(base=16)', attention='softmax(scale=0.3)'),
}


def config_with(fields):
    return ModelConfig().with_values(tiny.dotted(SIZES | fields))


@pytest.mark.parametrize(
    ('field', 'value'),
    [
        ('attention', 'cosine'),
        ('attention', 'softmax(query_key_norm=True)'),
        ('positions', 't5(per_layer=True)'),
        ('decoder.positions', 'alibi'),
        ('cross.positions', 'rotary'),
        ('merged_attention', True),
        ('projections', False),
        ('architecture', 'recurrent'),
        ('logit_cap', 30.0),
    ],
)
def test_unsupported_fields_are_rejected(field, value):
    config = config_with({field: value})
    problem = re.escape(f'--to=ctranslate2: model.{field}={value}: ')
    with pytest.raises(UserError, match=f'^{problem}'):
        to_ctranslate2.check_model(config)


def test_supported_fields_are_accepted():
    for fields in CASES.values():
        to_ctranslate2.check_model(config_with(fields))


def test_the_guide_lists_the_supported_components():
    page = Path('docs/packages/flaxformer_checkpoints/export.md').read_text('utf-8')
    rows = dict(re.findall(r'^\| `(\w+)` \| (.*) \|$', page, flags=re.M))
    assert {'positions', 'attention', 'norm'} < rows.keys()
    for field, cell in rows.items():
        components = {*re.findall(r'`(\w+)`', cell)} & {*FOLDERS[field].names()}
        assert components == set(to_ctranslate2.SUPPORTED[field]), field


@pytest.fixture(scope='module')
def vocabulary(tmp_path_factory):
    pairs = Grammar(pairs=200)
    return small_runs.train_tokenizer(pairs, 200, tmp_path_factory.mktemp('cache'))


def trained_model(vocabulary, **fields):
    config = config_with(fields)
    model = builder.build(config, vocabulary.vocab_size)
    # Larger than at first, so that logits differ clearly.
    variables = jax.tree.map(lambda x: 1.2 * x, tiny.all_variables(model))
    if config.output_bias:  # of tokens that must never be chosen
        bias_V = variables['params']['output_bias']
        variables['params']['output_bias'] = bias_V.at[jnp.array([0, 2])].set(9.0)
    return Trained(ExperimentConfig(model=config), vocabulary, model, variables)


def export(ours, folder, quantization=None):
    """Returns the exported model, opened by CTranslate2."""
    package = pytest.importorskip('ctranslate2')
    folder.mkdir()
    to_ctranslate2.write(ours, folder, quantization)
    return package.Translator(str(folder), device='cpu', intra_threads=1)


def sentences(vocabulary, lengths):
    draw = np.random.default_rng(sum(lengths)).integers
    return [draw(4, vocabulary.vocab_size, length).tolist() for length in lengths]


def log_probabilities(ours, source, target):
    """Returns log-probabilities of the targets and the end, BT, over allowed tokens."""
    inputs = tiny.padded([[tokenizer.BOS, *row] for row in target], LONGEST)
    labels = tiny.padded([[*row, tokenizer.EOS] for row in target], LONGEST)
    rows = tiny.padded([[*row, tokenizer.EOS] for row in source])
    logits = tiny.apply(ours.model, ours.variables, rows, inputs)
    never = jnp.array([tokenizer.PAD, tokenizer.BOS])
    logits = jax.nn.log_softmax(logits.at[..., never].set(-jnp.inf))
    log_p = np.take_along_axis(np.asarray(logits), np.asarray(labels)[..., None], -1)
    return log_p[..., 0]


def scores(theirs, vocabulary, source, target):
    pieces = [[vocabulary.pieces(row) for row in side] for side in (source, target)]
    return [np.array(result.log_probs) for result in theirs.score_batch(*pieces)]


@pytest.mark.slow
@pytest.mark.parametrize('name', CASES)
def test_ctranslate2_gives_our_scores_and_greedy_tokens(tmp_path, vocabulary, name):
    ours = trained_model(vocabulary, **CASES[name])
    theirs = export(ours, tmp_path / 'out')
    source = sentences(vocabulary, [3, 44, 17, 1])
    target = sentences(vocabulary, [5, 1, 40, 9])
    expected = log_probabilities(ours, source, target)
    their_scores = scores(theirs, vocabulary, source, target)
    for log_p, row in zip(their_scores, expected, strict=True):
        np.testing.assert_allclose(log_p, row[: len(log_p)], atol=5e-5)

    rows = [[*row, tokenizer.EOS] for row in source]
    greedy = flaxformer_lite.decoding.Greedy()
    tokens = flaxformer_lite.generate(
        ours.model, ours.variables, rows, greedy, max_length=24
    ).tokens[:, 0]
    target = [row[: row.index(tokenizer.EOS)] for row in np.asarray(tokens).tolist()]
    results = theirs.translate_batch(
        [vocabulary.pieces(row) for row in source],
        beam_size=1,
        max_decoding_length=23,
        min_decoding_length=0,
        length_penalty=0,
        return_scores=True,
    )
    hypotheses = [result.hypotheses[0] for result in results]
    assert hypotheses == [vocabulary.pieces(row) for row in target]
    expected = log_probabilities(ours, source, target)
    for result, row, ids in zip(results, expected, target, strict=True):
        # At the length limit we end a sentence, and CTranslate2 breaks off.
        length = len(ids) + (len(ids) < 23)
        np.testing.assert_allclose(result.scores[0], row[:length].sum(), atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ('fields', 'problem'),
    [
        (dict(cross__d_k=4), 'MatMul'),
        (dict(decoder__norm='layer(epsilon=0.1)'), 'differ by 0'),
    ],
    ids=str,
)
def test_models_that_score_differently_are_rejected(
    tmp_path, vocabulary, fields, problem
):
    with pytest.raises(UserError, match=problem):
        export(trained_model(vocabulary, **fields), tmp_path / 'out')


@pytest.mark.slow
# Without tables of positions, which are not rounded, and most of so small a model.
def test_int8_is_accurate_and_small_and_has_the_tokenizer(tmp_path, vocabulary):
    ours = trained_model(vocabulary, **CASES['rotary'])
    exact = export(ours, tmp_path / 'float32')
    rounded = export(ours, tmp_path / 'int8', 'int8')
    assert (exact.compute_type, rounded.compute_type) == ('float32', 'int8_float32')
    sizes = [(tmp_path / x / 'model.bin').stat().st_size for x in ('int8', 'float32')]
    assert sizes[0] < 0.4 * sizes[1]
    model = str(tmp_path / 'int8' / 'tokenizer.model')
    text = ' The  red\tcat\r'
    pieces = sentencepiece.SentencePieceProcessor(model)
    assert pieces.encode(text) == vocabulary.encode([text])[0]

    source = sentences(vocabulary, [3, 44, 17, 1])
    target = sentences(vocabulary, [5, 1, 40, 9])
    log_p, expected = (
        np.concatenate(scores(x, vocabulary, source, target)) for x in (rounded, exact)
    )
    # Log-probabilities of tokens have a deviation of some 3.
    assert 1e-4 < np.abs(log_p - expected).mean() < 0.2
