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
def told(request):
    found = explainer_of(**CASES[request.param])
    return *with_separate_layers(found.run.model, found.run.variables), found


def source_of(text):
    tokenizer = Letters()
    return tokenizer.with_end(tokenizer.encode([text])[0])


def ids_of(answer):
    return Letters().encode([''.join(x['piece'] for x in answer['tokens'])])[0]


@pytest.mark.parametrize('beams', [pytest.param(1, marks=pytest.mark.slow), 4])
def test_results_are_those_of_generate(told, beams):
    model, variables, found = told
    strategy = found.strategy(beams)
    answer = found.explain(TEXT, strategy)
    source = source_of(TEXT)
    wanted = flaxformer_lite.generate(
        model, variables, [source], strategy, max_length=len(source) - 1 + EXTRA
    ).of_row(1, 0)
    assert len(answer['nodes']) == len(wanted)
    tree = answer['tree']
    for text, node, (tokens, score) in zip(
        answer['texts'], answer['nodes'], wanted, strict=True
    ):
        assert tree[node]['score'] == pytest.approx(score, abs=1e-4)
        assert tree[node]['ended']
        pieces = []
        while node:
            pieces.append(tree[node]['piece'])
            assert tree[node]['parent'] < node
            node = tree[node]['parent']
        assert text == ''.join(reversed(pieces))
        assert text == ''.join(Letters().pieces(tokens))


def test_scores_of_the_beam_tree_are_those_of_the_model(told):
    model, variables, found = told
    tree = found.explain(TEXT, found.strategy(4))['tree']
    paths = {0: ''}
    for number, node in enumerate(tree[1:], start=1):
        paths[number] = paths[node['parent']] + node['piece']
    assert len(set(paths.values())) == len(tree)
    targets = [ids for ids in Letters().encode(list(paths.values())) if ids]
    sources = [source_of(TEXT)] * len(targets)
    batch = flaxformer_lite.make_batch(sources, targets)
    score = jax.jit(flaxformer_lite.log_probs, static_argnums=0)
    log_p = np.asarray(score(model, variables, batch).log_p.sum(1))
    for node, total, target in zip(tree[1:], log_p, targets, strict=True):
        penalty = ((5 + len(target)) / 6) ** 0.6 if node['ended'] else 1
        assert node['score'] == pytest.approx(total / penalty, abs=1e-3)


def test_weights_and_probabilities_are_those_of_the_pair_alone(told):
    model, variables, found = told
    answer = found.explain(TEXT, found.strategy(4), rank=1)
    source, target = source_of(TEXT), ids_of(answer)
    assert answer['texts'][1] == ''.join(Letters().pieces(target))
    batch = flaxformer_lite.make_batch([source], [target])

    @jax.jit
    def recorded(variables, batch):
        seen = flaxformer_lite.record(model, variables, batch, missing_ok=True)
        logits = model.apply(variables, batch['source'], batch['inputs'])
        lens = (
            explanations.logit_lens(model, variables, batch) if found.switches else []
        )
        return seen.weights, logits, lens

    weights, logits_BTV, lens_LBTV = recorded(variables, batch)
    assert len(answer['lens']) == len(lens_LBTV)
    for layer, logits in zip(answer['lens'], lens_LBTV, strict=True):
        p_TV = np.asarray(jax.nn.softmax(logits[0]))
        assert [piece for piece, _ in layer] == Letters().pieces(p_TV.argmax(-1))
        np.testing.assert_allclose([p for _, p in layer], p_TV.max(-1), atol=1e-5)
    assert answer['attention'].keys() == weights.keys()
    # Rows are output tokens, columns input tokens.
    written = [token['piece'] for token in answer['tokens']]
    start = Letters().pieces([model.special_tokens.bos])
    of_decoder = answer['attention']['decoder']
    assert of_decoder['queries'][-len(written) :] == written
    assert of_decoder['keys'][-len(written) :] == start + written[:-1]
    cross = answer['attention'].get('decoder cross')
    assert cross is None or cross['queries'] == written
    for kind, layers in weights.items():
        shown = answer['attention'][kind]
        for weights_HTS, wanted_BHTS in zip(shown['weights'], layers, strict=True):
            assert np.shape(weights_HTS)[1:] == (
                len(shown['queries']),
                len(shown['keys']),
            )
            np.testing.assert_allclose(
                np.array(weights_HTS) / 1000, wanted_BHTS[0], atol=6e-4
            )
    p_TV = np.asarray(jax.nn.softmax(logits_BTV[0]))
    for token, label, p_V in zip(answer['tokens'], target, p_TV, strict=True):
        assert token['p'] == pytest.approx(p_V[label], abs=1e-5)
        order = np.argsort(-p_V, kind='stable')[: explainer.ALTERNATIVES]
        pieces = Letters().pieces(order.tolist())
        assert [piece for piece, _ in token['likeliest']] == pieces
        np.testing.assert_allclose(
            [p for _, p in token['likeliest']], p_V[order], atol=1e-5
        )


def needs_switches(found):
    if not found.switches:
        pytest.skip('a recurrent model has no switches')


def check_answer(answer, model, variables, interventions=None):
    """Compares an answer with the library's search and forward pass."""
    source, target = source_of(TEXT), ids_of(answer)
    wanted = flaxformer_lite.generate(
        model,
        variables,
        [source],
        'beam(beams=4, alpha=0.6)',
        max_length=len(source) - 1 + EXTRA,
        interventions=interventions,
    ).of_row(1, 0)
    scores = [answer['tree'][node]['score'] for node in answer['nodes']]
    np.testing.assert_allclose(scores, [score for _, score in wanted], atol=1e-4)
    batch = flaxformer_lite.make_batch([source], [target])

    @jax.jit
    def probabilities(variables, interventions):
        with flaxformer_lite.intervene(interventions or {}):
            logits = model.apply(variables, batch['source'], batch['inputs'])
        return jax.nn.softmax(logits[0])

    p_TV = probabilities(variables, interventions)
    p_T = jnp.take_along_axis(p_TV, batch['labels'][0][:, None], 1)[:, 0]
    np.testing.assert_allclose([x['p'] for x in answer['tokens']], p_T, atol=1e-5)


@pytest.mark.parametrize('factor', [0, '-2.5'])
def test_a_scaled_head_is_the_intervention(told, factor):
    model, variables, found = told
    needs_switches(found)
    strategy = found.strategy(4)
    answer = found.explain(TEXT, strategy, {f'{HEAD}/1': factor})
    scale = flaxformer_lite.interventions.scale(float(factor), heads=[1])
    check_answer(answer, model, variables, {HEAD: scale})
    assert answer['tree'] != found.explain(TEXT, strategy)['tree']


def test_layer_switched_off_has_sublayers_that_return_zeros(told):
    model, variables, found = told
    needs_switches(found)
    strategy = found.strategy(4)
    answer = found.explain(TEXT, strategy, {'decoder/layer_1': 0})
    zeros = flaxformer_lite.interventions.set_to(0.0)
    check_answer(answer, model, variables, {'decoder/layer_1/*_out': zeros})
    assert answer['tree'] != found.explain(TEXT, strategy)['tree']


def test_factors_of_1_change_no_bit_and_compile_nothing(told):
    *_, found = told
    strategy = found.strategy(4)
    whole = found.explain(TEXT, strategy)
    programs = [found._inspect, *found._searches.values()]
    compiled = [len(program._programs) for program in programs]
    assert found.explain(TEXT, strategy, dict.fromkeys(found.switches, 1)) == whole
    assert [len(program._programs) for program in programs] == compiled
    # Also next to the program without interventions.
    source = source_of(TEXT)
    functions = found._functions({}, None)
    traces = [found._trace(x, strategy, source, None) for x in (functions, None)]
    jax.tree.map(np.testing.assert_array_equal, *traces)


PATCHED = 'encoder/layer_0/self_attention/z', 'decoder/layer_1/mlp_out'


def test_a_patch_takes_the_tokens_of_the_other_sentence():
    model = tiny.model(dropout=0.0)
    variables = tiny.all_variables(model)
    pair = [source_of(TEXT)], [[7, 8, 9, 1]]
    batch = flaxformer_lite.make_batch(*pair, length=8)
    # Padded further, as the demo's are.
    other = flaxformer_lite.make_batch([source_of('cad')], [[5, 1]], length=16)
    editor = edits.Editor(model, variables, batch)
    values = jax.jit(edits.record, static_argnums=0)(model, variables, other)
    donor = edits.Donor(values, {'encoder': np.int32(4), 'decoder': np.int32(2)})
    chosen = {f'{PATCHED[0]}/1': 'patch', PATCHED[1]: 'patch'}
    editor.check(chosen)
    functions = editor.functions(chosen, donor)
    heads, tokens = jnp.arange(2), jnp.arange(8)

    def replace(name, is_chosen, value, where):
        return jnp.where(is_chosen, values[name][:, :8], value)

    in_source = (heads == 1)[None, None, :, None] & (tokens < 4)[None, :, None, None]
    in_target = (tokens < 2)[None, :, None]
    wanted = {
        PATCHED[0]: functools.partial(replace, PATCHED[0], in_source),
        PATCHED[1]: functools.partial(replace, PATCHED[1], in_target),
    }

    def all_logits():
        for changes in functions, wanted, {}:
            with flaxformer_lite.intervene(changes):
                yield model.apply(variables, batch['source'], batch['inputs'])

    found, wanted, plain = jax.jit(lambda: [*all_logits()])()
    np.testing.assert_array_equal(found, wanted)
    assert abs(found - plain).max() > 1e-3


@pytest.mark.slow
def test_a_sentence_patched_from_itself_is_unchanged():
    found = explainer_of()
    strategy = found.strategy(1)
    chosen = dict.fromkeys(found.switches[4:], 'patch')
    whole = found.explain(TEXT, strategy)
    assert found.explain(TEXT, strategy, chosen, TEXT) == whole
    assert found.explain(TEXT, strategy, chosen, 'cad') != whole


@pytest.mark.parametrize(
    ('chosen', 'message'),
    [
        ({f'{HEAD}/2': 0}, "^edits: .*/z/2'"),
        ({f'{HEAD}/0': 'much'}, "^factor: 'much'"),
        ({f'{HEAD}/0': None}, "^factor: 'None'"),
        ({f'{HEAD}/0': float('nan')}, "^factor: 'nan'"),
        ({f'{HEAD}/0': 10**400}, "^factor: '1000"),
        ({'decoder/layer_0': 0.5}, '^edits: decoder/layer_0 .*0[.]5'),
        ({'decoder/layer_0': 'patch'}, '^edits: decoder/layer_0 '),
        ({f'{HEAD}/0': 'patch'}, '^sentence to patch from: '),
    ],
)
def test_invalid_edits_are_refused(told, chosen, message):
    *_, found = told
    needs_switches(found)
    with pytest.raises(UserError, match=message):
        found.explain(TEXT, found.strategy(4), chosen)


def test_every_head_sublayer_and_layer_has_a_name():
    found = explainer_of(decoder__num_layers=1)
    heads, sublayers, layers = (2 + 2) * 2, 2 * 2 + 3, 2 + 1
    assert len(found.switches) == heads + sublayers + layers
    assert not explainer_of(architecture='recurrent').switches


@pytest.mark.slow
def test_attention_without_stored_weights_is_left_out_of_explanations():
    found = explainer_of(attention='blockwise', cross__attention='softmax')
    answer = found.explain(TEXT, found.strategy(1))
    assert 'encoder' not in answer['attention']
    assert 'decoder cross' in answer['attention']


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        (' \t', 'is blank'),
        ('a' * explainer.MOST_TOKENS, '65 tokens.* 64'),
    ],
)
def test_blank_and_long_sentences_are_refused(text, message):
    found = explainer_of()
    with pytest.raises(UserError, match=message):
        found.explain(text, as_strategy('greedy'))


def test_sources_of_vectors_are_refused():
    run: Any = SimpleNamespace(
        path='runs/x', tokenizer=SimpleNamespace(reads_vectors=True)
    )
    with pytest.raises(UserError, match='runs/x: the sources are vectors'):
        Explainer(run)


def test_sentences_are_padded_to_few_lengths():
    rooms = {explainer._padded_length(tokens) for tokens in range(1, 129)}
    assert rooms == {32, 64, 128}
    assert all(explainer._padded_length(x) >= x for x in range(1, 129))


def test_the_first_word_is_after_tokens_without_letters(monkeypatch):
    found = explainer_of()
    answer = found.explain(TEXT, found.strategy(1))
    pieces = [token['piece'] for token in answer['tokens']]
    words = [i for i, piece in enumerate(pieces) if piece.isalpha()]
    assert answer['first_word'] == (words or [0])[0]
    monkeypatch.setattr(explainer, 'word_of_piece', lambda *_: [-1, -1, 1, 1])
    assert found.explain(TEXT, found.strategy(1))['first_word'] == 2
    monkeypatch.setattr(explainer, 'word_of_piece', lambda *_: [-1])
    assert found.explain(TEXT, found.strategy(1))['first_word'] == 0
