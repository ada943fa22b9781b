"""Tests that the demo's explanation of a translation matches the library."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

import flaxformer_lite
from experiments.config import search
from experiments.config.schema import EvaluationConfig
from experiments.data.tokenizers.base import Tokenizer
from experiments.errors import UserError
from experiments.evaluation import explainer
from experiments.evaluation.explainer import Explainer
from flaxformer_lite.generation import as_strategy
from flaxformer_lite.layers.scanned_stack import unstack_layers
from flaxformer_lite.special_tokens import SpecialTokens

TEXT = 'abcdb'
EXTRA = 6  # tokens that a translation may be longer
HEAD = ('decoder', 'layer_1', 'cross_attention', 'heads')
LAYER = ('encoder', 'layer_drop_0', 'keep')
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
        decoding=search.make(EvaluationConfig(extra_length=EXTRA)),
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
    model = found.run.model.with_separate_layers()
    return model, unstack_layers(found.run.variables), found


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


def test_all_that_a_beam_search_kept_is_scored_by_the_model(told):
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
        return seen.weights, model.apply(variables, batch['source'], batch['inputs'])

    weights, logits_BTV = recorded(variables, batch)
    assert answer['attention'].keys() == weights.keys()
    # A row is named by the piece that is written there, a column by what is read.
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


@pytest.mark.parametrize('path', [HEAD, LAYER], ids=['head', 'layer'])
def test_what_is_switched_off_is_what_the_library_masks(path):
    found = explainer_of()
    model, variables = found.run.model, found.run.variables
    masks = flaxformer_lite.ablation_masks(model)
    at = masks
    for name in path[:-1]:
        at = at[name]
    at[path[-1]] = at[path[-1]].ravel().at[0].set(0).reshape(at[path[-1]].shape)
    ablated = variables | {'ablation_masks': masks}
    source = source_of(TEXT)
    strategy = found.strategy(4)
    answer = found.explain(TEXT, strategy, ['/'.join([*path, '0'])])
    wanted = flaxformer_lite.generate(
        model, ablated, [source], strategy, max_length=len(source) - 1 + EXTRA
    ).of_row(1, 0)
    scores = [answer['tree'][node]['score'] for node in answer['nodes']]
    np.testing.assert_allclose(scores, [score for _, score in wanted], atol=1e-4)
    batch = flaxformer_lite.make_batch([source], [ids_of(answer)])
    apply = jax.jit(model.apply)
    p_TV = jax.nn.softmax(apply(ablated, batch['source'], batch['inputs'])[0])
    whole_TV = jax.nn.softmax(apply(variables, batch['source'], batch['inputs'])[0])
    p_T = jnp.take_along_axis(p_TV, batch['labels'][0][:, None], 1)[:, 0]
    np.testing.assert_allclose([x['p'] for x in answer['tokens']], p_T, atol=1e-5)
    assert abs(p_TV - whole_TV).max() > 1e-3
    # The next question finds all switched on.
    again = found.explain(TEXT, strategy)
    assert again['tree'] != answer['tree']


def test_every_head_and_layer_has_a_switch():
    found = explainer_of(decoder__num_layers=1)
    assert len(found.switches) == (2 + 2 * 2) + (1 + 2 * 2)
    assert not explainer_of(architecture='recurrent').switches
    with pytest.raises(UserError, match="no head or layer 'encoder"):
        found.explain(TEXT, found.strategy(1), ['encoder/layer_0/x'])


def test_what_keeps_no_weights_is_left_out_and_the_rest_is_told():
    found = explainer_of(attention='blockwise', cross__attention='softmax')
    answer = found.explain(TEXT, found.strategy(1))
    assert 'encoder' not in answer['attention']
    assert 'decoder cross' in answer['attention']


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        (' \t', 'is blank'),
        (
            'a' * explainer.MOST_TOKENS,
            'has 65 tokens, including the end token. Shorten it to 64',
        ),
    ],
)
def test_what_is_no_sentence_to_show_is_refused(text, message):
    found = explainer_of()
    with pytest.raises(UserError, match=message):
        found.explain(text, as_strategy('greedy'))


def test_sources_of_vectors_are_refused():
    run: Any = SimpleNamespace(
        path='runs/x', tokenizer=SimpleNamespace(reads_vectors=True)
    )
    with pytest.raises(UserError, match='runs/x: the sources are vectors'):
        Explainer(run)


def test_sentences_of_many_lengths_are_of_few_shapes():
    rooms = {explainer._room(tokens) for tokens in range(1, 129)}
    assert rooms == {32, 64, 128}
    assert all(explainer._room(x) >= x for x in range(1, 129))
