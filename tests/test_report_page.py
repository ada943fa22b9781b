"""A report as files: complete, escaped, without JAX where it is not asked for."""

import html.parser
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from made_runs import REFERENCES, SOURCES, fail, make, translate

from experiments.reports import arms, page
from experiments.reports.display import paper
from experiments.reports.inside.gradients import FirstGradients
from experiments.reports.inside.heads import STATS, Attended, Importance, Inspection
from experiments.runs.reading import read_run as read

HOSTILE = '<script>document.title = "taken"</script> & <b>bold</b> </script> {{ 1 }}'
ROWS = [
    row
    for step in (5, 10, 15, 20)
    for row in (
        (
            step,
            'train',
            dict(loss=9.0 - step / 5, learning_rate=0.1, gradient_norm=1.0),
        ),
        (step, 'eval', dict(set='test', loss=8.0 - step / 5, bleu=float(step))),
    )
]


def runs(folder):
    """Two arms of three seeds, whose sentences hold HTML, and a run that diverged."""
    paths = []
    for number, first in ((4, 30.0), (8, 35.0)):
        for seed in range(3):
            path = folder / f'run,heads={number},train.seed={seed}'
            fields = {'model__num_heads': number, 'train__seed': seed, 'data': HOSTILE}
            paths.append(make(path, first + seed, rows=ROWS, **fields))
            outputs = [f'{REFERENCES[0]} {HOSTILE}', *REFERENCES[1:]]
            sources = [HOSTILE, *SOURCES[1:]]
            translate(
                path, outputs[: 3 - (number == 8)] + ['x'] * (number == 8), sources
            )
    paths.append(fail(make(folder / 'bad', rows=ROWS[:2], train__seed=9, data=HOSTILE)))
    return paths


def inspection():
    """Two heads in each of two layers, and a sentence of them."""
    weights = [[[[0.25, 0.75], [1.0, 0.0]]] * 2] * 2
    pieces = ['▁a', HOSTILE]
    kinds = ('encoder', 'decoder cross')
    axes = dict.fromkeys(kinds, pieces)
    sentence = Attended(HOSTILE, 'out', axes, axes, dict.fromkeys(kinds, weights))
    grid = [[0.1, 0.2], [0.3, 0.4]]
    stats = {'encoder': dict.fromkeys(STATS, grid)}
    importance = Importance({'encoder': grid}, {'encoder': grid})
    return Inspection(Path('run'), [20], [sentence], stats, importance, 1.0, 3, '')


def first_gradients():
    return [FirstGradients('h=4', {'decoder': [[1.0, 2.0], [1.5, 2.5]]})]


@pytest.fixture(scope='module')
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp('runs')
    return arms.study([read(path) for path in runs(folder)], None)


@pytest.fixture(scope='module')
def report(study, tmp_path_factory):
    folder = tmp_path_factory.mktemp('report')
    left_out = ['left out: <i>nothing</i>']
    with pytest.MonkeyPatch.context() as patch:
        # To embed fonts as the others of a paper's takes half of the time of drawing;
        # that figures do is for test_report_display to see.
        patch.setitem(paper._STYLE, 'pdf.fonttype', 3)
        page.write(study, folder, inspection(), first_gradients(), left_out)
    return folder


class Reader(html.parser.HTMLParser):
    """The tags of a page, and its text outside of scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.tags = []
        self.attributes = []
        self.text = ''
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        if self.tags[-1:] not in (['script'], ['style']):
            self.text += data


def test_everything_is_there(report):
    names = {str(path.relative_to(report)) for path in report.rglob('*.*')}
    assert {'index.html', 'report.md'} <= names
    names_of_tables = ('answer', 'bootstrap', 'compared', 'cost', 'scores', 'heads')
    for table in (*names_of_tables, 'first_gradients'):
        assert {f'tables/{table}.csv', f'tables/{table}.tex'} <= names
    figures = ['by_num_heads', 'heads_importance', 'attention_1_encoder']
    figures += ['first_gradients_decoder', 'attention_1_decoder_cross']
    figures += ['alignment_1_mean_of_all_layers', 'alignment_1_layer_1']
    figures += [
        f'{curve}_by_{axis}'
        for curve in ('loss', 'dev_loss', 'dev_bleu', 'learning_rate', 'gradient_norm')
        for axis in ('steps', 'tokens', 'time')
    ]
    for figure in figures:
        assert {f'figures/{figure}.svg', f'figures/{figure}.pdf'} <= names


def test_what_a_sentence_holds_is_text(report):
    reader = Reader((report / 'index.html').read_text('utf-8'))
    assert reader.tags.count('script') == 5
    assert 'b' not in reader.tags and 'i' not in reader.tags
    assert HOSTILE in reader.text
    assert 'left out: <i>nothing</i>' in reader.text


def test_the_page_needs_no_other_file(report):
    reader = Reader((report / 'index.html').read_text('utf-8'))
    links = [v for name, v in reader.attributes if name in ('src', 'href')]
    assert links and all(link.startswith(('#', 'data:')) for link in links)


def test_markdown_tells_the_same(report):
    text = (report / 'report.md').read_text('utf-8')
    assert 'Best by test bleu: num\\_heads=8, 36.00 ± 1.00 (3 seeds).' in text
    assert 'seed 9 diverged' in text
    assert '<script>' not in text
    figures = [path.name for path in (report / 'figures').glob('*.svg')]
    for name in figures:
        assert f'](figures/{name})' in text


def test_the_same_runs_give_the_same_page(study, report, tmp_path, monkeypatch):
    monkeypatch.setattr(page.paper, 'draw', lambda figure: {})
    page.write(
        study, tmp_path, inspection(), first_gradients(), ['left out: <i>nothing</i>']
    )
    for name in ('index.html', 'report.md', 'tables/heads.csv'):
        assert (tmp_path / name).read_bytes() == (report / name).read_bytes()


def command(*arguments, code='pass', **options):
    text = f'import sys; {code}; sys.argv[1:] = {list(map(str, arguments))!r}\n'
    text += 'from experiments import report\n'
    text += 'report.flags.main(report.main)\n'
    text += "assert 'jax' not in sys.modules\n"
    return subprocess.run(
        [sys.executable, '-c', text], capture_output=True, text=True, **options
    )


def test_without_attention_a_report_loads_no_jax(tmp_path):
    run = make(tmp_path / 'run', 30.0, outputs=REFERENCES)
    done = command(run, f'--out={tmp_path / "out"}', '--attention=0')
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f'{tmp_path}/out/ (index.html')
    assert (tmp_path / 'out' / 'index.html').exists()


def test_the_table_needs_no_package_of_a_report(tmp_path):
    paths = runs(tmp_path)
    without = 'import importlib.util as u; find = u.find_spec; '
    without += 'missing = ("scipy", "matplotlib", "plotly", "jinja2"); '
    without += 'u.find_spec = lambda name: None if name in missing else find(name); '
    without += 'sys.modules.update(dict.fromkeys(missing))'
    done = command(*paths, code=without)
    assert done.returncode == 0, done.stderr
    assert '31.00 ± 1.00' in done.stdout
    done = command(*paths, f'--out={tmp_path / "out"}', code=without)
    assert done.returncode == 2
    assert done.stderr == (
        'error: --out needs scipy, matplotlib, plotly, jinja2: pip install -e '
        '".[report]"; without --out the table needs none of them\n'
    )


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (['--out=RUN'], 'is the directory of a run: give another'),
        (['--out=FILE'], 'is not a folder: give another'),
        (['--out=NEW', '--base=x'], '--base=x: there is no such arm; there is run'),
        (['--out=NEW', '--measure=x'], '--measure=.x. must be a set and a score'),
        (['--out=NEW', '--attention=-1'], "'-1' must be a whole number from 0"),
        (['--base=x'], '--base is for a report: give --out=DIR too'),
    ],
)
def test_what_cannot_be_is_one_line_and_nothing_is_written(
    tmp_path, arguments, message
):
    run = make(tmp_path / 'run', 30.0)
    (tmp_path / 'file').write_text('')
    places = {'RUN': run, 'FILE': tmp_path / 'file', 'NEW': tmp_path / 'new'}
    for name, place in places.items():
        arguments = [argument.replace(name, str(place)) for argument in arguments]
    done = command(run, *arguments)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert re.search(message, line)
    assert sorted(os.listdir(tmp_path)) == ['file', 'run']


def test_attention_that_cannot_be_read_is_a_line_of_the_report(tmp_path):
    run = make(tmp_path / 'run', 30.0, outputs=REFERENCES)
    out = tmp_path / 'out'
    done = subprocess.run(
        [sys.executable, '-m', 'experiments.report', run, f'--out={out}'],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert 'Attention is not shown: ' in (out / 'report.md').read_text('utf-8')
