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
from flaxformer_lite.config import build
from flaxformer_lite.config.schema import FOLDERS, ModelConfig
from parallel_grammar.source import Grammar

SIZES = dict(d_model=24, num_layers=1, decoder__num_layers=2, num_heads=2, d_ff=40)
LONGEST = 41
# All sizes differ, so that none can be confused with another.
UNEQUAL = dict(
    d_k=6,
    d_v=6,
    num_heads=4,
    num_kv_heads=2,
    decoder__num_heads=6,
    decoder__num_kv_heads=3,
    decoder__d_k=8,
    decoder__d_v=8,
    decoder__d_ff=28,
    cross__num_kv_heads=2,
    cross__d_k=4,
    cross__d_v=4,
)
CASES = {
    'post_norm': dict(),
    'pre_norm': dict(residual='pre_norm', feed_forward='gelu', tie='none'),
    'learned': dict(positions='learned(max_length=70)', norm_embeddings=True),
    'rms': dict(norm='rms(epsilon=1e-05)', residual='pre_norm', feed_forward='swiglu'),
    'biases': dict(
        attention_bias=True,
        output_bias=True,
        feed_forward='geglu(tanh=True)',
        scale_embeddings=False,
        positions='sinusoidal(scaled_down=True)',
    ),
    'unequal': dict(attention_bias=True, **UNEQUAL),
    'rotary': dict(positions='rotary(max_wavelength=500.0)', **UNEQUAL),
    'no_scale': dict(
        positions='none',
        residual='pre_norm',
        attention='softmax(scale=False)',
        scale_logits=True,
        **UNEQUAL,
    ),
    'each_its_own': dict(positions='none', decoder__positions='rotary'),
    'offset': dict(
        norm='rms(offset=1.0)', residual='pre_norm', decoder__feed_forward='silu'
    ),
    'query_key_norm': dict(
        attention='softmax(query_key_norm=True, query_key_offset=1.0)',
        cross__attention='softmax',
        norm='rms',
        residual='pre_norm',
        positions='rotary',
        feed_forward='swiglu',
        **UNEQUAL,
    ),
    'query_key_norm_in_decoder': dict(
        decoder__attention='softmax(query_key_norm=True)',
        cross__num_heads=1,
        cross__d_k=12,
        cross__d_v=12,
        decoder__num_heads=1,
    ),
    # Distances in the sentences reach beyond these.
    't5': dict(
        positions='t5(buckets=8, max_distance=16)',
        residual='pre_norm',
        decoder__num_heads=3,
        decoder__d_k=8,
        decoder__d_v=8,
    ),
    'shaw': dict(positions='shaw(max_distance=5)', num_kv_heads=1),
    'multi_query': dict(num_kv_heads=1, attention='softmax(scale=0.3)'),
    'widths': dict(
        decoder__d_model=36,
        tie='decoder',
        norm_embeddings=True,
        init='mu_p(base=16)',
    ),
}


def config_with(fields):
    return ModelConfig().with_values(tiny.dotted(SIZES | fields))


@pytest.mark.parametrize(
    ('field', 'value'),
    [
        ('attention', 'cosine'),
        ('attention', 'softmax(cap=3.0)'),
        ('attention', 'softmax(query_key_norm=True)'),
        ('positions', 't5(per_layer=True)'),
        ('decoder.positions', 'alibi'),
        ('cross.positions', 'rotary'),
        ('continuous_positions', True),
        ('norm', 'batch'),
        ('merged_attention', True),
        ('block', 'parallel'),
        ('projections', False),
        ('architecture', 'recurrent'),
        ('logit_cap', 30.0),
    ],
)
def test_unsupported_fields_are_refused(field, value):
    config = config_with({}).with_values({field: value})
    with pytest.raises(UserError) as caught:
        to_ctranslate2.check_model(config)
    message = str(caught.value)
    assert message.startswith(f'--to=ctranslate2: model.{field}={value}: '), message


@pytest.mark.parametrize('name', CASES)
def test_supported_fields_are_accepted(name):
    to_ctranslate2.check_model(config_with(CASES[name]))


def test_the_guide_lists_the_supported_components():
    page = Path('docs/packages/flaxformer_checkpoints/export.md').read_text('utf-8')
    rows = re.findall(r'^\| `(\w+)` \| (.*) \|$', page, flags=re.M)
    for field, cell in rows:
        known = FOLDERS[field].names()
        named = set(re.findall(r'`(\w+)`', cell)).intersection(known)
        assert named == set(to_ctranslate2.SUPPORTED[field]), field
    assert {'positions', 'attention', 'norm'} < dict(rows).keys()


@pytest.fixture(scope='module')
def vocabulary(tmp_path_factory):
    pairs = Grammar(pairs=200)
    return small_runs.train_tokenizer(pairs, 200, tmp_path_factory.mktemp('cache'))


def trained(vocabulary, **given):
    config = config_with(given)
    built = build.model(config, vocabulary.vocab_size)
    # Larger than at first: the logits are far apart.
    variables = jax.tree.map(lambda x: 1.2 * x, tiny.all_variables(built))
    if config.output_bias:  # of tokens that are never to be chosen
        bias_V = variables['params']['output_bias']
        variables['params']['output_bias'] = bias_V.at[jnp.array([0, 2])].set(9.0)
    return Trained(ExperimentConfig(model=config), vocabulary, built, variables)


def opened(package, ours, folder, quantization=None):
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
    return np.take_along_axis(np.asarray(logits), np.asarray(labels)[..., None], -1)[
        ..., 0
    ]


def scored(theirs, vocabulary, source, target):
    pieces = [[vocabulary.pieces(row) for row in side] for side in (source, target)]
    return [np.array(found.log_probs) for found in theirs.score_batch(*pieces)]


@pytest.mark.slow
@pytest.mark.parametrize('name', CASES)
def test_scores_and_greedy_tokens_are_ours(tmp_path, vocabulary, name):
    package = pytest.importorskip('ctranslate2')
    ours = trained(vocabulary, **CASES[name])
    theirs = opened(package, ours, tmp_path / 'out')
    source = sentences(vocabulary, [3, 44, 17, 1])
    target = sentences(vocabulary, [5, 1, 40, 9])
    expected = log_probabilities(ours, source, target)
    for found, row in zip(
        scored(theirs, vocabulary, source, target), expected, strict=True
    ):
        np.testing.assert_allclose(found, row[: len(found)], atol=5e-5)

    rows = [[*row, tokenizer.EOS] for row in source]
    tokens = flaxformer_lite.generate(
        ours.model, ours.variables, rows, 'greedy', max_length=24
    ).tokens_BNL[:, 0]
    target = [row[: row.index(tokenizer.EOS)] for row in np.asarray(tokens).tolist()]
    results = theirs.translate_batch(
        [vocabulary.pieces(row) for row in source],
        beam_size=1,
        max_decoding_length=23,
        min_decoding_length=0,
        length_penalty=0,
        return_scores=True,
    )
    chosen = [result.hypotheses[0] for result in results]
    assert chosen == [vocabulary.pieces(row) for row in target]
    expected = log_probabilities(ours, source, target)
    for result, row, ids in zip(results, expected, target, strict=True):
        # At the most tokens we end a sentence, and CTranslate2 breaks off.
        length = len(ids) + (len(ids) < 23)
        np.testing.assert_allclose(result.scores[0], row[:length].sum(), atol=1e-3)


@pytest.mark.slow
def test_the_tokenizer_normalizes_as_the_run_does(tmp_path, vocabulary):
    package = pytest.importorskip('ctranslate2')
    opened(package, trained(vocabulary), tmp_path / 'out')
    model = tmp_path / 'out' / 'tokenizer.model'
    pieces = sentencepiece.SentencePieceProcessor(str(model))
    text = ' The  red\tcat\r'
    assert pieces.encode(text) == vocabulary.encode([text])[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ('fields', 'reason'),
    [
        (dict(cross__d_k=4), 'MatMul'),
        (dict(cross__num_heads=4, cross__d_k=12, cross__d_v=12), 'differ by 0'),
        (dict(decoder__norm='layer(epsilon=0.1)'), 'differ by 0'),
    ],
    ids=str,
)
def test_models_that_score_differently_are_refused(
    tmp_path, vocabulary, fields, reason
):
    package = pytest.importorskip('ctranslate2')
    ours = trained(vocabulary, **fields)
    with pytest.raises(UserError, match=reason):
        opened(package, ours, tmp_path / 'out')


@pytest.mark.slow
# Without tables of positions, which are not rounded, and most of so small a model.
def test_int8_is_near_and_small(tmp_path, vocabulary):
    package = pytest.importorskip('ctranslate2')
    ours = trained(vocabulary, **CASES['rotary'])
    exact = opened(package, ours, tmp_path / 'float32')
    theirs = opened(package, ours, tmp_path / 'int8', 'int8')
    assert (exact.compute_type, theirs.compute_type) == ('float32', 'int8_float32')
    sizes = [(tmp_path / x / 'model.bin').stat().st_size for x in ('int8', 'float32')]
    assert sizes[0] < 0.4 * sizes[1]

    source = sentences(vocabulary, [3, 44, 17, 1])
    target = sentences(vocabulary, [5, 1, 40, 9])
    found = scored(theirs, vocabulary, source, target)
    expected = scored(exact, vocabulary, source, target)
    difference = np.concatenate(found) - np.concatenate(expected)
    # Rounded, and near: the deviations of tokens' log-probabilities are some 3.
    assert 1e-4 < np.abs(difference).mean() < 0.2
