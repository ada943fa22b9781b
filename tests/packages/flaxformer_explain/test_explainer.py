"""Tests that the demo's explanation of a translation matches the library."""

import functools
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

import flaxformer_lite
from experiments.config.decoding import decoding_options
from experiments.config.schema import EvaluationConfig
from experiments.data.tokenizers.base import Tokenizer
from experiments.errors import UserError
from flaxformer_explain import edits, explainer, explanations
from flaxformer_explain.explainer import Explainer
from flaxformer_lite import interventions
from flaxformer_lite.generation import as_strategy
from flaxformer_lite.interventions.context import with_separate_layers
from flaxformer_lite.special_tokens import SpecialTokens

TEXT = 'abcdb'
EXTRA = 6  # tokens that a translation may be longer
HEAD = 'decoder/layer_1/self_attention/z'
CASES = {
    'transformer': {},
    'scanned': {'scan_layers': True},
    'shared': {'share_layers': 1},
    'merged': {'merged_attention': True},
    'blockwise': {'attention': 'blockwise'},
    'learned': {'positions': 'learned(max_length=12)'},
    'decoder_only': {'architecture': 'decoder_only'},
    'recurrent': {'architecture': 'recurrent'},
}
PIECES = '_/^?abcdefghijklmnopqrstuvwxyz'  # padding, end, start, and letters


class Letters(Tokenizer):
    special_tokens = SpecialTokens()
    source_eos = special_tokens.eos

    def encode(self, texts):
        return [[PIECES.index(x) for x in text if x != ' '] for text in texts]

    def decode(self, ids):
        return [''.join(self.pieces(row)) for row in ids]

    def pieces(self, ids):
        return [PIECES[i] for i in ids]


def explainer_of(**config):
    model = tiny.model(dropout=0.0, **config)
    run: Any = SimpleNamespace(
        path='runs/tiny',
        tokenizer=Letters(),
        model=model,
        variables=tiny.all_variables(model),
        decoding=decoding_options(EvaluationConfig(extra_length=EXTRA)),
    )
    return Explainer(run)


@pytest.fixture(
    scope='module',
    params=[
        name if name == 'transformer' else pytest.param(name, marks=pytest.mark.slow)
        for name in CASES
    ],
)
def case(request):
    """Returns a model with separate layers, its variables and its explainer."""
    explained = explainer_of(**CASES[request.param])
    run = explained.run
    return *with_separate_layers(run.model, run.variables), explained


def source_of(text):
    tokenizer = Letters()
    return tokenizer.with_end(tokenizer.encode([text])[0])


def target_of(answer):
    return Letters().encode([''.join(x['piece'] for x in answer['tokens'])])[0]


def generate(model, variables, strategy, functions=None):
    """Returns the tokens and the score of each result."""
    source = source_of(TEXT)
    length = len(source) - 1 + EXTRA
    results = flaxformer_lite.generate(
        model,
        variables,
        [source],
        strategy,
        max_length=length,
        interventions=functions,
    )
    return results.of_row(1, 0)


@pytest.mark.ci
@pytest.mark.parametrize('beams', [pytest.param(1, marks=pytest.mark.slow), 4])
def test_results_match_generate(case, beams):
    model, variables, explained = case
    strategy = explained.strategy(beams)
    answer = explained.explain(TEXT, strategy)
    tree = answer['tree']
    expected = generate(model, variables, strategy)
    for text, node, (tokens, score) in zip(
        answer['texts'], answer['nodes'], expected, strict=True
    ):
        assert tree[node]['score'] == pytest.approx(score, abs=1e-4)
        assert tree[node]['ended']
        path = ''
        while node:
            path = tree[node]['piece'] + path
            assert tree[node]['parent'] < node
            node = tree[node]['parent']
        assert text == path == ''.join(Letters().pieces(tokens))


@pytest.mark.ci
def test_scores_of_the_beam_tree_are_log_probabilities(case):
    model, variables, explained = case
    tree = explained.explain(TEXT, explained.strategy(4))['tree']
    paths = ['']
    for node in tree[1:]:
        paths.append(paths[node['parent']] + node['piece'])
    assert len(set(paths)) == len(tree)
    targets = [ids for ids in Letters().encode(paths) if ids]
    batch = flaxformer_lite.make_batch([source_of(TEXT)] * len(targets), targets)
    log_p = np.asarray(tiny.log_probs(model, variables, batch).log_p.sum(1))
    for node, total, target in zip(tree[1:], log_p, targets, strict=True):
        penalty = ((5 + len(target)) / 6) ** 0.6 if node['ended'] else 1
        assert node['score'] == pytest.approx(total / penalty, abs=1e-3)


@pytest.mark.ci
def test_attention_lens_and_probabilities_match_the_model(case):
    model, variables, explained = case
    answer = explained.explain(TEXT, explained.strategy(4), rank=1)
    target = target_of(answer)
    pieces = Letters().pieces
    assert answer['texts'][1] == ''.join(pieces(target))
    batch = flaxformer_lite.make_batch([source_of(TEXT)], [target])

    @jax.jit
    def expected_values(variables, batch):
        seen = flaxformer_lite.record(model, variables, batch, missing_ok=True)
        logits = model.apply(variables, batch['source'], batch['inputs'])
        lens = []
        if explained.switches:
            lens = explanations.logit_lens(model, variables, batch)
        return seen.weights, logits, lens

    weights, logits_BTV, lens_LBTV = expected_values(variables, batch)
    for layer, logits in zip(answer['lens'], lens_LBTV, strict=True):
        p_TV = np.asarray(jax.nn.softmax(logits[0]))
        assert [piece for piece, _ in layer] == pieces(p_TV.argmax(-1))
        np.testing.assert_allclose([p for _, p in layer], p_TV.max(-1), atol=1e-5)
    # Rows are output tokens, columns input tokens.
    written = [token['piece'] for token in answer['tokens']]
    decoder = answer['attention']['decoder']
    assert decoder['queries'][-len(written) :] == written
    inputs = [*pieces([model.special_tokens.bos]), *written[:-1]]
    assert decoder['keys'][-len(written) :] == inputs
    cross = answer['attention'].get('decoder cross')
    assert cross is None or cross['queries'] == written
    assert answer['attention'].keys() == weights.keys()
    for kind, layers in weights.items():
        shown = answer['attention'][kind]
        shape = len(shown['queries']), len(shown['keys'])
        for weights_HTS, expected_BHTS in zip(shown['weights'], layers, strict=True):
            assert np.shape(weights_HTS)[1:] == shape
            thousandths = np.array(weights_HTS)
            np.testing.assert_allclose(thousandths / 1000, expected_BHTS[0], atol=6e-4)
    p_TV = np.asarray(jax.nn.softmax(logits_BTV[0]))
    for token, label, p_V in zip(answer['tokens'], target, p_TV, strict=True):
        assert token['p'] == pytest.approx(p_V[label], abs=1e-5)
        order = np.argsort(-p_V, kind='stable')[: explainer.ALTERNATIVES]
        assert [piece for piece, _ in token['likeliest']] == pieces(order.tolist())
        likeliest = [p for _, p in token['likeliest']]
        np.testing.assert_allclose(likeliest, p_V[order], atol=1e-5)


def needs_switches(explained):
    if not explained.switches:
        pytest.skip('a recurrent model has no switches')


@pytest.mark.ci
@pytest.mark.parametrize(
    ('choices', 'functions'),
    [
        ({f'{HEAD}/1': 0}, {HEAD: interventions.scale(0.0, heads=[1])}),
        ({f'{HEAD}/1': '-2.5'}, {HEAD: interventions.scale(-2.5, heads=[1])}),
        ({'decoder/layer_1': 0}, {'decoder/layer_1/*_out': interventions.set_to(0.0)}),
    ],
    ids=['head off', 'head scaled', 'layer off'],
)
def test_edits_are_interventions(case, choices, functions):
    model, variables, explained = case
    needs_switches(explained)
    strategy = explained.strategy(4)
    answer = explained.explain(TEXT, strategy, choices)
    scores = [answer['tree'][node]['score'] for node in answer['nodes']]
    expected = generate(model, variables, strategy, functions)
    np.testing.assert_allclose(scores, [score for _, score in expected], atol=1e-4)

    batch = flaxformer_lite.make_batch([source_of(TEXT)], [target_of(answer)])

    @jax.jit
    def log_probs(variables):
        with flaxformer_lite.intervene(functions):
            return flaxformer_lite.log_probs(model, variables, batch).log_p[0]

    p_T = np.exp(log_probs(variables))
    np.testing.assert_allclose([x['p'] for x in answer['tokens']], p_T, atol=1e-5)
    assert answer['tree'] != explained.explain(TEXT, strategy)['tree']


@pytest.mark.ci
def test_factors_of_1_change_no_bit_and_compile_nothing(case):
    *_, explained = case
    strategy = explained.strategy(4)
    whole = explained.explain(TEXT, strategy)
    programs = [explained._inspect, *explained._searches.values()]
    compiled = [len(program._programs) for program in programs]
    ones = dict.fromkeys(explained.switches, 1)
    assert explained.explain(TEXT, strategy, ones) == whole
    assert [len(program._programs) for program in programs] == compiled
    # The program without interventions gives the same bits.
    functions = explained._functions({}, None)
    traces = [
        explained._trace(x, strategy, source_of(TEXT), None) for x in (functions, None)
    ]
    jax.tree.map(np.testing.assert_array_equal, *traces)


@pytest.mark.ci
def test_a_patch_takes_the_tokens_of_the_other_sentence():
    heads, network = 'encoder/layer_0/self_attention/z', 'decoder/layer_1/mlp_out'
    model = tiny.model(dropout=0.0)
    variables = tiny.all_variables(model)
    batch = flaxformer_lite.make_batch([source_of(TEXT)], [[7, 8, 9, 1]], length=8)
    # As in the demo, the other sentence has more padding.
    other = flaxformer_lite.make_batch([source_of('cad')], [[5, 1]], length=16)
    editor = edits.Editor(model, variables, batch)
    values = jax.jit(edits.record, static_argnums=0)(model, variables, other)
    donor = edits.Donor(values, {'encoder': np.int32(4), 'decoder': np.int32(2)})
    choices = {f'{heads}/1': 'patch', network: 'patch'}
    editor.check(choices)

    def replace(name, is_patched, value, where):
        return jnp.where(is_patched, values[name][:, :8], value)

    head, token = jnp.arange(2), jnp.arange(8)
    in_source = (head == 1)[None, None, :, None] & (token < 4)[None, :, None, None]
    in_target = (token < 2)[None, :, None]
    expected_functions = {
        heads: functools.partial(replace, heads, in_source),
        network: functools.partial(replace, network, in_target),
    }

    @jax.jit
    def all_logits():
        logits = []
        for functions in editor.functions(choices, donor), expected_functions, {}:
            with flaxformer_lite.intervene(functions):
                logits.append(model.apply(variables, batch['source'], batch['inputs']))
        return logits

    logits, expected, unpatched = all_logits()
    np.testing.assert_array_equal(logits, expected)
    assert abs(logits - unpatched).max() > 1e-3


@pytest.mark.parametrize(
    ('choices', 'field'),
    [
        ({f'{HEAD}/2': 0}, "edits: .*/z/2'"),
        ({f'{HEAD}/0': 'much'}, "factor: 'much'"),
        ({f'{HEAD}/0': None}, "factor: 'None'"),
        ({f'{HEAD}/0': float('nan')}, "factor: 'nan'"),
        ({f'{HEAD}/0': 10**400}, "factor: '1000"),
        ({'decoder/layer_0': 0.5}, 'edits: decoder/layer_0 '),
        ({'decoder/layer_0': 'patch'}, 'edits: decoder/layer_0 '),
        ({f'{HEAD}/0': 'patch'}, 'sentence to patch from: '),
    ],
)
def test_invalid_edits_are_rejected(case, choices, field):
    *_, explained = case
    needs_switches(explained)
    with pytest.raises(UserError, match=f'^{field}'):
        explained.explain(TEXT, explained.strategy(4), choices)


def test_every_head_sublayer_and_layer_has_a_switch():
    explained = explainer_of(decoder__num_layers=1)
    heads, sublayers, layers = (2 + 2) * 2, 2 * 2 + 3, 2 + 1
    assert len(explained.switches) == heads + sublayers + layers
    assert not explainer_of(architecture='recurrent').switches


def test_blank_and_long_sentences_and_vectors_are_rejected():
    explained = explainer_of()
    for text, problem in ((' \t', 'blank'), ('a' * explainer.MOST_TOKENS, '65 tokens')):
        with pytest.raises(UserError, match=problem):
            explained.explain(text, as_strategy('greedy'))
    vectors: Any = SimpleNamespace(reads_vectors=True)
    with pytest.raises(UserError, match='runs/x: .*vectors'):
        Explainer(SimpleNamespace(path='runs/x', tokenizer=vectors))


def test_padded_lengths_are_few_powers_of_two():
    lengths = {tokens: explainer._padded_length(tokens) for tokens in range(1, 129)}
    assert {*lengths.values()} == {32, 64, 128}
    assert all(length >= tokens for tokens, length in lengths.items())


@pytest.mark.parametrize(
    ('words', 'expected'), [([-1, -1, 1, 1], 2), ([0, 1], 0), ([-1], 0)]
)
def test_first_word_is_after_tokens_without_letters(case, monkeypatch, words, expected):
    monkeypatch.setattr(explainer, 'word_of_piece', lambda *_: words)
    *_, explained = case
    answer = explained.explain(TEXT, explained.strategy(4))
    assert answer['first_word'] == expected
