"""`experiments.look`, and the object that notebooks look into a run with."""

import json
import os
import re
import sys

import jax
import numpy as np
import pytest
import small_runs
import tiny
from test_report_page import Reader

from experiments import look
from experiments.errors import UserError
from experiments.reports.display import interactive
from experiments.reports.display.charts import Chart, Heatmaps
from experiments.reports.inside import (
    alignment,
    attended,
    heads,
    looking,
    pictures,
    sections,
)
from experiments.reports.inside.attended import Attended
from experiments.reports.inside.heads import Importance, Inspection
from flaxformer_lite import introspection

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
    command(f'--workdir={trained}', *texts, f'--out={out}')
    assert os.listdir(out.parent) == ['page.html']
    return out.read_text('utf-8')


@pytest.mark.slow
def test_the_page_has_all_that_is_known_of_the_run(page, trained):
    reader = Reader(page)
    titles = re.findall('<h2>(.*)</h2>', page)
    assert titles == ['Translations', 'Attention', 'Heads', 'Scores', 'Curves']
    assert str(trained) in reader.text
    assert TEXT in reader.text and TARGET in reader.text
    assert 'b' not in reader.tags
    found = re.search('id="figures">(.*?)</script>', page)
    assert found is not None
    figures = json.loads(found[1])
    for kind in ('encoder', 'decoder', 'decoder_cross'):
        assert {f'attention_1_{kind}', f'attention_2_{kind}'} <= figures.keys()
    for layer in ('mean_of_all_layers', 'layer_0', 'layer_1'):
        assert f'alignment_2_{layer}' in figures
    assert {'heads_importance', 'heads_entropy'} <= figures.keys()
    for curve in ('loss', 'dev_bleu', 'learning_rate', 'gradient_norm'):
        assert f'{curve}_by_steps' in figures


@pytest.mark.slow
def test_the_page_needs_no_other_file(page):
    links = [v for name, v in Reader(page).attributes if name in ('src', 'href')]
    assert links and all(link.startswith(('#', 'data:')) for link in links)


@pytest.mark.slow
def test_an_alignment_is_the_mean_over_heads_of_the_weights_that_write_a_piece(run):
    tokenizer = run.trained.tokenizer
    batch = attended.pairs_batch(tokenizer, [(TEXT, TARGET)])
    record = jax.jit(introspection.record, static_argnums=0)
    seen = record(run.trained.model, run.variables, batch).weights['decoder cross']
    layers_LTS = np.stack([np.asarray(layer, np.float64)[0].mean(0) for layer in seen])
    found = run.alignment(TEXT, TARGET)
    wanted = {'mean of all layers': layers_LTS.mean(0)}
    wanted |= {f'layer {i}': layer for i, layer in enumerate(layers_LTS)}
    assert list(found) == list(wanted)
    written = tokenizer.pieces(tokenizer.encode([TARGET])[0])
    read = tokenizer.pieces(tokenizer.encode([TEXT])[0])
    for name, weights_TS in wanted.items():
        ((heatmap,),) = found[name].maps
        assert heatmap.rows == [*written, '</s>']
        assert heatmap.columns == [*read, '</s>']
        np.testing.assert_allclose(heatmap.values, weights_TS, atol=5.1e-4)
        # The program that shows them may round another way than the one here.
        largest_T = weights_TS[range(len(weights_TS)), heatmap.marks]
        np.testing.assert_allclose(largest_T, weights_TS.max(1), rtol=1e-4)


def test_the_mark_is_the_first_of_the_largest_weights():
    sentence = Attended('s', 'o', {}, {}, {})
    sentence.queries['decoder cross'] = ['<s>', 'x']
    sentence.keys['decoder cross'] = ['a', 'b', 'c']
    two_heads = [[[0.2, 0.8, 0], [1, 0, 0]], [[0.6, 0.2, 0.2], [0.4, 0.1, 0.5]]]
    sentence.weights['decoder cross'] = [two_heads]
    (only,) = alignment.align(sentence).items()
    assert only[0] == 'layer 0'
    assert only[1].written == ['x', '</s>']
    np.testing.assert_allclose(only[1].weights_TS, [[0.4, 0.5, 0.1], [0.7, 0.05, 0.25]])
    assert only[1].most_T.tolist() == [1, 0]


@pytest.mark.slow
def test_a_notebook_has_each_figure_as_plotlys(run):
    assert isinstance(run.translate(TEXT), str)
    attention = run.attention(TEXT)
    assert list(attention) == list(pictures.KINDS.values())
    large = attention['attention to the source'].one(1, 0)
    assert large.maps[0][0].title.endswith(': layer 1, head 0')
    assert isinstance(run.importance(), Heatmaps)
    assert len(run.heads()) == len(heads.STATS)
    loss = run.curves()['loss']['steps']
    assert isinstance(loss, Chart)
    for figure in (large, *run.alignment(TEXT).values(), run.importance(), loss):
        drawn = interactive.figure(figure)
        assert type(drawn).__module__.startswith('plotly.graph_objs')
        assert drawn.layout.template.layout.paper_bgcolor == '#ffffff'
    dark = interactive.figure(loss, dark=True)
    assert dark.layout.template.layout.paper_bgcolor != '#ffffff'


@pytest.mark.slow
def test_what_is_given_is_what_the_decoder_writes(run):
    decoder = run.attention(TEXT, TARGET)['decoder self-attention']
    tokenizer = run.trained.tokenizer
    pieces = tokenizer.pieces(tokenizer.encode([TARGET])[0])
    assert decoder.maps[0][0].rows == ['<s>', *pieces]


@pytest.mark.slow
def test_a_run_without_pairs_shows_the_rest(run, trained):
    bare = looking.open_run(trained, pairs=0)
    assert bare.importance() is None and bare.heads() == {}
    attention, of_heads = sections.of_run(bare.inspect([('a', 'b')]))
    assert attention.choices
    assert not of_heads.choices
    assert 'no pairs of an evaluation set' in of_heads.text[0]


SOFTMAX = {'decoder_attention': 'softmax', 'cross_attention': 'softmax'}
NEVER = {
    'attention=blockwise': (
        {'attention': 'blockwise', **SOFTMAX},
        ['encoder'],
        'The weights of encoder self-attention cannot be shown, for it never holds',
    ),
    'cross_attention=blockwise': (
        {'cross_attention': 'blockwise'},
        ['decoder cross'],
        'The weights of attention to the source cannot be shown',
    ),
    'decoder_only': (
        {'architecture': 'decoder_only'},
        [],
        'There is no alignment, for no decoder of the model attends to the source.',
    ),
    'recurrent': ({'architecture': 'recurrent'}, [], None),
}


@pytest.mark.parametrize(
    'case',
    [
        pytest.param(name, marks=pytest.mark.slow if name == 'recurrent' else [])
        for name in NEVER
    ],
)
def test_what_holds_no_weights_is_said_and_the_rest_is_shown(case):
    config, without, line = NEVER[case]
    model = tiny.model(dropout=0.0, **config)
    batch = tiny.batch([[pair] for pair in tiny.PAIRS])
    variables = tiny.all_variables(model)
    assert attended.without_weights(model, variables, batch) == without
    stats = heads.head_stats(model, variables, batch)
    assert stats and not set(without) & stats.keys()
    pieces = {kind: ['a'] for kind in stats}
    weights = {kind: [[[[1.0]]]] for kind in stats}
    inspection = Inspection(
        *('run', [1], [Attended('s', 'o', pieces, pieces, weights)], stats),
        *(Importance({}, {}), 1.0, 3, pictures.note(without)),
    )
    attention, of_heads = sections.of_run(inspection)
    assert len(attention.choices) == (2 if 'decoder cross' in stats else 1)
    assert of_heads.choices
    if line is not None:
        assert any(text.startswith(line) for text in attention.text)


WRONG = [
    (['--text= '], "--text=' ' is blank: give a sentence"),
    (['--text=a', '--text=b', '--target=c'], '--target is given 1 times and --text 2'),
    (['--text=a', '--out=FOLDER'], r'--out=.* must end in .html: it is a page'),
    (['--text=a', '--out=FOLDER/a.html/b.html'], r'a.html is not a directory'),
    (['--text=a', '--workdir=FOLDER'], 'is not the directory of a run|no such|is no'),
    (['--text=a', '--pairs=x'], "'x' must be a whole number from 0"),
    ([f'--text={"long " * 200}'], r"--text=.*…' has \d+ tokens with its end"),
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
