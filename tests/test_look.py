"""`experiments.look`, and the object that notebooks look into a run with."""

import os
import re
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import small_runs
import tiny
from terminals import Terminal
from test_report_page import Reader, drawn

from experiments import look
from experiments.data.tokenizers.base import Tokenizer
from experiments.errors import UserError
from experiments.evaluation import opened_run
from experiments.reports import looking, pictures
from experiments.reports.looking import Attended, Inspection
from flaxformer_lite import introspection
from flaxformer_lite.special_tokens import SpecialTokens
from flaxformer_lite.training.loss import loss_sums

TEXT = 'The <b>cat</b> sleeps here.'
TARGET = 'Die Katze schläft hier.'

pytestmark = pytest.mark.usefixtures('cache')


@pytest.fixture(scope='module')
def trained(tmp_path_factory, cache):
    """The directory of a run of two layers."""
    text = small_runs.write_text(tmp_path_factory.mktemp('text'), val=4, test=6)
    fields = small_runs.FIELDS | {'data': small_runs.source(text), 'train.steps': 4}
    fields |= {'evaluation.decode': 'greedy'}  # which is compiled sooner
    path = tmp_path_factory.mktemp('runs') / 'run'
    small_runs.train(path, *small_runs.flags(fields, model__num_layers=2))
    return path


@pytest.fixture(scope='module')
def run(trained):
    return looking.open_run(trained)


def command(*arguments):
    """Runs the command in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, 'argv', ['look', *map(str, arguments)])
        look.main()


@pytest.fixture(scope='module')
def page(trained, tmp_path_factory):
    out = tmp_path_factory.mktemp('out') / 'folder' / 'page.html'
    texts = [f'--text={TEXT}', '--text=A dog.', '--target=', f'--target={TARGET}']
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, 'stderr', Terminal())
        command(f'--workdir={trained}', *texts, f'--out={out}')
        assert re.search(r'looking inside.* \d+/6 layers', sys.stderr.getvalue())
    assert os.listdir(out.parent) == ['page.html']
    return out.read_text('utf-8')


@pytest.mark.slow
def test_the_page_has_all_that_is_known_of_the_run(page, trained):
    reader = Reader(page)
    titles = re.findall('<h2>(.*)</h2>', page[: page.index('<script')])
    assert titles == ['Translations', 'Attention', 'Heads', 'Scores', 'Curves']
    assert str(trained) in reader.text
    assert TEXT in reader.text and TARGET in reader.text
    assert 'b' not in reader.tags
    figures = drawn(page)
    for kind in ('encoder', 'decoder', 'decoder_cross'):
        assert {f'attention_1_{kind}', f'attention_2_{kind}'} <= figures.keys()
    for layer in ('mean_of_all_layers', 'layer_0', 'layer_1'):
        assert f'alignment_2_{layer}' in figures
    assert {'heads_importance', 'heads_entropy'} <= figures.keys()
    for curve in ('loss', 'dev_bleu', 'learning_rate', 'gradient_norm'):
        assert f'{curve}_by_steps' in figures


@pytest.mark.slow
def test_an_alignment_is_the_mean_over_heads_of_the_weights_that_write_a_piece(run):
    tokenizer = run.trained.tokenizer
    batch = opened_run.pairs_batch(tokenizer, [(TEXT, TARGET)])
    record = jax.jit(introspection.record, static_argnums=0)
    seen = record(run.trained.model, run.variables, batch).weights['decoder cross']
    layers_LTS = np.stack([np.asarray(layer, np.float64)[0].mean(0) for layer in seen])
    (sentence,) = run.attend([(TEXT, TARGET)])
    found = pictures.alignments(sentence)
    assert list(found) == ['mean of all layers', 'layer 0', 'layer 1']
    for weights_TS, wanted in zip(
        found.values(), [layers_LTS.mean(0), *layers_LTS], strict=True
    ):
        np.testing.assert_allclose(weights_TS, wanted, atol=1e-5)
    figure = str(run.alignment(TEXT, TARGET)['layer 0'].to_dict())
    written = tokenizer.pieces(tokenizer.encode([TARGET])[0])
    assert all(piece in figure for piece in [*written, '</s>'])


def test_the_mark_is_the_first_of_the_largest_weights():
    queries, keys = {'decoder cross': ['<s>', 'x']}, {'decoder cross': ['a', 'b', 'c']}
    two_heads = [[[0.2, 0.8, 0], [1, 0, 0]], [[0.6, 0.2, 0.2], [0.4, 0.1, 0.5]]]
    weights = {'decoder cross': [np.array(two_heads)]}
    sentence = Attended('s', queries, keys, weights)
    ((name, figure),) = pictures.alignment_figures(sentence, 1).items()
    assert name == 'layer 0'
    text = str(figure.spec())
    assert "'weight': [[400, 500, 100], [700, 50, 250]]" in text
    assert 'datum.key == [1, 0][datum.query]' in text
    assert '["x", "</s>"][datum.value]' in text


@pytest.mark.slow
def test_a_notebook_has_each_figure_as_a_chart(run):
    assert isinstance(run.translate(TEXT), str)
    charts = [*run.attention(TEXT).values(), *run.alignment(TEXT).values()]
    charts += [run.importance(), run.entropy()]
    charts.append(run.curves()['loss']['steps'])
    assert list(run.attention(TEXT)) == list(pictures.KINDS.values())
    assert all('$schema' in chart.to_dict() for chart in charts)


@pytest.mark.slow
def test_what_is_given_is_what_the_decoder_writes(run):
    (sentence,) = run.attend([(TEXT, TARGET)])
    tokenizer = run.trained.tokenizer
    pieces = tokenizer.pieces(tokenizer.encode([TARGET])[0])
    assert sentence.queries['decoder'] == ['<s>', *pieces]


@pytest.mark.slow
def test_a_run_without_pairs_shows_the_rest(trained):
    bare = looking.open_run(trained, pairs=0)
    assert bare.importance() is None and bare.entropy() is None
    attention, of_heads = pictures.sections(bare.inspect([('a', 'b')]))
    assert attention.choices
    assert not of_heads.choices
    assert 'has no pairs of an evaluation set' in of_heads.text[0]


def test_a_head_that_is_switched_off_is_one_whose_projection_is_zero():
    model = tiny.model(dropout=0.0)
    batch = tiny.batch([[pair] for pair in tiny.PAIRS])
    variables = tiny.all_variables(model)
    found = looking.head_importance(model, variables, batch, lambda *counts: None)

    @jax.jit
    def loss(variables):
        sums = loss_sums(
            model, variables, batch, loss='cross_entropy(label_smoothing=0)'
        )
        return sums.loss / sums.tokens

    with_all = float(loss(variables))
    assert found.keys() == pictures.KINDS.keys()
    for kind, grid in found.items():
        stack, _, cross = kind.partition(' ')
        attention = 'cross_attention' if cross else 'self_attention'
        for (layer, head), rise in np.ndenumerate(grid):
            changed = jax.tree.map(lambda x: x, variables)
            block = changed['params'][stack][f'layer_{layer}'][attention]
            kernel = block['out_proj']['kernel']
            block['out_proj']['kernel'] = kernel.at[head].set(0.0)
            assert rise == pytest.approx(float(loss(changed)) - with_all, abs=1e-5)


class Letters(Tokenizer):
    """A tokenizer whose tokens are letters from a to i."""

    special_tokens = SpecialTokens()
    source_end = special_tokens.end

    def encode(self, texts):
        return [[ord(letter) - ord('a') + 4 for letter in text] for text in texts]

    encode_target = encode

    def pieces(self, ids):
        return [chr(i - 4 + ord('a')) if i > 3 else '<s>' for i in ids]


@pytest.mark.parametrize('architecture', ['encoder_decoder', 'decoder_only'])
def test_padding_is_on_no_axis(architecture):
    model = tiny.model(dropout=0.0, architecture=architecture)
    variables = tiny.all_variables(model)
    letters: Any = Letters()
    found = looking.attended(model, variables, letters, [('abc', 'd'), ('e', 'fgh')])
    for sentence, output in zip(found, ('d', 'fgh'), strict=True):
        read = [*sentence.source, '<s>']  # as the end is written here
        written = ['<s>', *output]
        own = {'encoder': read, 'decoder': written, 'decoder cross': written}
        if architecture == 'decoder_only':
            own = {'decoder': read + written}
        assert sentence.queries == own
        for kind, layers in sentence.weights.items():
            keys = read if kind == 'decoder cross' else own[kind]
            assert sentence.keys[kind] == keys
            for layer_HTS in layers:
                assert layer_HTS.shape == (2, len(own[kind]), len(keys))
                np.testing.assert_allclose(layer_HTS.sum(-1), 1, rtol=1e-5)


SOFTMAX = {'decoder_attention': 'softmax', 'cross_attention': 'softmax'}
NEVER = {
    'attention=blockwise': (
        {'attention': 'blockwise', **SOFTMAX},
        {'decoder', 'decoder cross'},
    ),
    'cross_attention=blockwise': (
        {'cross_attention': 'blockwise'},
        {'encoder', 'decoder'},
    ),
    'decoder_only': ({'architecture': 'decoder_only'}, {'decoder'}),
    'recurrent': ({'architecture': 'recurrent'}, {'decoder cross'}),
}


@pytest.mark.parametrize(
    'case',
    [
        pytest.param(name, marks=pytest.mark.slow if name == 'recurrent' else [])
        for name in NEVER
    ],
)
def test_what_holds_no_weights_is_left_out_and_the_rest_is_shown(case):
    config, there = NEVER[case]
    model = tiny.model(dropout=0.0, **config)
    batch = tiny.batch([[pair] for pair in tiny.PAIRS])
    entropy = looking.head_entropy(model, tiny.all_variables(model), batch)
    assert entropy.keys() == there
    pieces = {kind: ['a'] for kind in there}
    weights = {kind: [np.ones((1, 1, 1))] for kind in there}
    sentence = Attended('s', pieces, pieces, weights)
    inspection = Inspection(Path('run'), [1], [sentence], entropy, {})
    attention, of_heads = pictures.sections(inspection)
    assert len(attention.choices) == (2 if 'decoder cross' in there else 1)
    assert of_heads.choices


WRONG = [
    (['--text= '], "--text=' ' is blank: give a sentence"),
    (['--text=a', '--text=b', '--target=c'], '--target is given 1 times and --text 2'),
    (['--text=a', '--out=FOLDER'], r'--out=.* must end in .html: it is a page'),
    (['--text=a', '--out=FOLDER/a.html/b.html'], r'a.html is not a directory'),
    (['--text=a', '--workdir=FOLDER'], 'is not the directory of a run|no such|is no'),
    (['--text=a', '--pairs=x'], "'x' must be a whole number from 0"),
    ([f'--text={"long " * 200}'], r'--text=.* has \d+ tokens with its end'),
    (['--text=a', f'--target={"x " * 200}'], "--target='x x .* more than the 128"),
    (['--text=\udce4'], 'is not UTF-8: give it in that encoding'),
]


@pytest.mark.slow
@pytest.mark.parametrize(('arguments', 'message'), WRONG, ids=lambda x: str(x)[:40])
def test_what_cannot_be_is_one_line_before_anything_is_computed(
    trained, tmp_path, arguments, message, monkeypatch
):
    (tmp_path / 'a.html').write_text('', encoding='utf-8')
    given = {'--workdir': trained, '--out': tmp_path / 'new.html'}
    arguments = [x.replace('FOLDER', str(tmp_path)) for x in arguments]
    named = {argument.split('=')[0] for argument in arguments}
    arguments += [f'{name}={x}' for name, x in given.items() if name not in named]
    monkeypatch.setattr(looking.Look, 'translate_all', None)
    monkeypatch.setattr(looking.Look, 'inspect', None)
    with pytest.raises(UserError, match=message):
        command(*arguments)
    assert os.listdir(tmp_path) == ['a.html']
