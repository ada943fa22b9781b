"""Tests of a report's files, figures and tables."""

import csv
import html.parser
import io
import os
import re
import subprocess
import sys

import golden_report
import numpy as np
import pytest
from golden_report import HOSTILE
from made_runs import REFERENCES, make

import experiments.report
from experiments.errors import UserError
from experiments.reports import arms, figures, page, tables
from experiments.reports.figures import Figure
from experiments.reports.tables import Difference, Interval, PValue, Table
from experiments.runs.reading import read_run
from experiments.sweeps import analysis
from experiments.sweeps.analysis import Spread
from flaxformer_explain import looking


@pytest.fixture(scope='module')
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp('golden')
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(figures, 'files', lambda figure: {})
        study = golden_report.make_study()
        for name in ('first', 'second'):
            page.write(study, folder / name, golden_report.NOTES)
    return folder / 'first'


class Reader(html.parser.HTMLParser):
    """Collects the tags, attributes and text of a page."""

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


def read_table(report, name):
    text = (report / f'tables/{name}.csv').read_text('utf-8')
    return list(csv.DictReader(io.StringIO(text)))


def test_report_is_the_golden_page(report):
    text = (report / 'report.md').read_text('utf-8')
    assert text == golden_report.GOLDEN.read_text('utf-8')


def test_equal_runs_give_equal_files(report):
    again = report.with_name('second')
    files = [x.relative_to(report) for x in report.rglob('*') if x.is_file()]
    assert {'index.html', 'report.md', 'answer.json'} <= set(map(str, files))
    for file in files:
        assert (again / file).read_bytes() == (report / file).read_bytes(), file


def test_each_table_is_a_csv_and_a_latex_file(report):
    names = {file.stem for file in (report / 'tables').glob('*.csv')}
    assert names - {'runs'} == {x.stem for x in (report / 'tables').glob('*.tex')}
    assert {'answer', 'answer_loss', 'arms', 'over_sentences', 'scores'} <= names
    first, *_ = read_table(report, 'runs')
    assert list(first)[:3] == ['arm', 'seed', 'score']
    assert (first['score'], first['test loss']) == ('30.0', '3.0')
    assert first['train_cpu_seconds'] == '7.0'
    verdicts = [read_table(report, x)[0]['verdict'] for x in ('answer', 'answer_loss')]
    assert verdicts == ['better', 'worse']


def test_html_in_sentences_and_notes_is_text(report):
    reader = Reader((report / 'index.html').read_text('utf-8'))
    assert reader.tags.count('script') == 4
    assert 'b' not in reader.tags and 'i' not in reader.tags
    assert HOSTILE in reader.text and golden_report.NOTES[0] in reader.text
    assert '<script>' not in (report / 'report.md').read_text('utf-8')


def test_the_page_is_small_and_needs_no_other_file(report):
    text = (report / 'index.html').read_text('utf-8')
    assert len(text) < 1_200_000  # the script has 900,000
    links = [v for name, v in Reader(text).attributes if name in ('src', 'href')]
    assert links and all(link.startswith(('#', 'data:')) for link in links)


def test_curves_are_means_over_seeds_within_the_range(tmp_path):
    rows = [
        [(step, 'train', {'loss': loss}) for step, loss in losses]
        for losses in ([(5, 4.0), (10, 3.0)], [(5, 5.0), (10, 2.0), (15, 1.0)])
    ]
    paths = [
        make(tmp_path / str(seed), 30.0, rows=rows[seed], train__seed=seed)
        for seed in (0, 1)
    ]
    study = arms.study([read_run(path) for path in paths], None)
    (figure,) = figures.curves(study)
    ((line,),) = figure.spec()['datasets'].values()
    assert (line['x'], line['y']) == ([5, 10], [4.5, 2.5])
    assert (line['low'], line['high']) == ([4, 2], [5, 3])
    assert '(band: range over seeds)' in str(figure.spec())
    assert figures.curves(study, 'tokens') == []  # these rows have none


def test_curve_of_one_point_is_a_mark(tmp_path):
    marks = {}
    for number in (1, 2):
        rows = [(step, 'train', {'loss': 4.0}) for step in range(1, number + 1)]
        path = make(tmp_path / str(number), 30.0, rows=rows)
        (figure,) = figures.curves(arms.study([read_run(path)], None))
        svg = figures.files(figure)['svg'].decode()
        marks[number] = len(re.findall('<path [^>]*opacity="1"', svg))
        assert 'band:' not in svg
    assert marks[1] > marks[2]


def test_long_curves_are_thinned_and_keep_their_last_point():
    points = [figures.Point(step, 1 / 3, 0, 1) for step in range(9_999)]
    chart = figures.line_chart({'a': points, 'b': points[:5]}, 'steps', 'loss')
    (lines,) = chart.to_dict()['datasets'].values()
    assert [len(line['x']) for line in lines] == [2_000, 5]
    assert lines[0]['x'][-1] == 9_998
    assert lines[0]['y'][-1] == 0.333333


def test_a_figure_shows_control_characters_as_escapes():
    lines = {'a\x1b\ufffe\n': [figures.over_seeds(1, [1.0, 2.0])]}
    chart = figures.line_chart(lines, 'x', 'y\x9b')
    text = figures.files(Figure('name', 'Title', chart))['svg'].decode()
    assert r'>a\x1b\ufffe\n<' in text and r'>y\x9b<' in text


def test_names_in_figures_are_escaped_text():
    lines = {f'arm {i}': [figures.Point(10.0 * i, i, 0.5, 2.5)] for i in range(9)}
    chart = figures.line_chart(lines, 'cost', HOSTILE)
    files = figures.files(Figure('points', 'a', chart))
    assert all(f'>arm {i}<' in files['svg'].decode() for i in range(9))
    assert HOSTILE not in files['svg'].decode()
    assert files['pdf'].startswith(b'%PDF')
    maps = looking.weights_map(np.array([[0.2, 0.8]]), ['x'], ['a', 'a'])
    svg = figures.files(Figure('maps', 'a', maps))['svg'].decode()
    assert len(re.findall('>a<', svg)) == 2  # equal names stay apart


def test_the_forest_plot_has_each_interval_in_the_order_of_the_table():
    values = {'z': (0.2, 1.5, 2), 'b': (0, 1, 2.5), 'c': (9, 10, 11), 'd': (20, 21, 23)}
    scores = {arm: dict(enumerate(of_arm)) for arm, of_arm in values.items()}
    contrasts = analysis.compare(scores, base='b')
    figure = figures.forest(contrasts, 'test bleu')
    spec = figure.spec()
    (rows,) = [x for x in spec['datasets'].values() if 'arm' in x[0]]
    for row, contrast in zip(rows, contrasts, strict=True):
        assert row['arm'] == contrast.arm
        found = (row['low'], row['difference'], row['high'])
        assert found == (contrast.low, contrast.effect, contrast.high)
        assert (row['verdict'] == 'significant') == contrast.significant
    assert {row['verdict'] for row in rows} == {'significant', 'not significant'}
    svg = figures.files(figure)['svg'].decode()
    assert svg.index('>z<') < svg.index('>c<') < svg.index('>d<')
    assert '>b<' not in svg
    alone = analysis.compare({'a': {0: 1.0}, 'b': {0: 2.0}}, base='a')
    assert figures.forest(alone, 'test bleu') is None


def test_letters_of_a_forest_plot_are_large_enough_to_print():
    name = 'RMSNorm, SwiGLU, rotary, QK norm'
    scores = {name: {0: 1.0, 1: 2.0}, 'base': {0: 3.0, 1: 5.0}}
    contrasts = analysis.compare(scores, base='base')
    svg = figures.files(figures.forest(contrasts, 'test bleu'))['svg'].decode()
    width = int(re.search(r'width="(\d+)"', svg)[1])
    sizes = [float(size) for size in re.findall(r'font-size="([\d.]+)px"', svg)]
    text_width = 468  # points between the margins of a US letter
    assert min(sizes) * min(1, text_width / width) > 9


def test_the_forest_plot_groups_rows_by_data_set():
    scores = {
        f'{data}, {arm}': {seed: score + seed for seed in range(3)}
        for data, arm, score in (('copy', 'x', 1.0), ('copy', 'base', 5.0))
        + (('sort', 'x', 2.0), ('sort', 'base', 3.0))
    }
    scores['copy, x'][1] = scores['sort, x'][1] = 9.0
    pairs = [(f'{data}, x', f'{data}, base') for data in ('copy', 'sort')]
    data = {arm: arm.partition(', ')[0] for arm in scores}
    names = {arm: arm.partition(', ')[2] for arm in scores}
    contrasts = analysis.compare(scores, contrasts=pairs, data=data)
    score = figures.axis_title('exact_match', 'longer')
    figure = figures.forest(contrasts, score, names, data)
    svg = figures.files(figure)['svg'].decode()
    labels = re.findall(r'>(copy|sort|x)<', svg)
    assert labels == ['copy', 'x', 'sort', 'x']
    assert re.search('font-weight="bold"[^>]*>copy<', svg)
    assert '>Exact match (%) on longer:<' in svg
    assert '>difference from base<' in svg
    assert '>(bars: 95% CI)<' in svg


def test_scores_are_drawn_over_their_cost_with_both_deviations(tmp_path):
    paths = [
        make(
            tmp_path / str(seed),
            score,
            result={'flops_per_token': flops, 'step': 10},
            train__seed=seed,
            batch__tokens=100,
        )
        for seed, (score, flops) in enumerate([(30.0, 5.0), (34.0, 7.0)])
    ]
    study = arms.study([read_run(path) for path in paths], None)
    (arm,) = study.arms
    spread = arm.spread(study.measure)
    spreads = {arm.name: (arm.cost('training_flops'), spread)}
    figure = figures.score_by_cost(spreads, study.measure)
    ((row,),) = figure.spec()['datasets'].values()
    assert [row['x'], row['y']] == [6000.0, 32.0]
    sd_x, sd_y = np.std([5000, 7000], ddof=1), np.std([30, 34], ddof=1)
    assert [row['x_low'], row['x_high']] == pytest.approx([6000 - sd_x, 6000 + sd_x])
    assert [row['y_low'], row['y_high']] == pytest.approx([32 - sd_y, 32 + sd_y])
    assert figures.score_by_cost({arm.name: (None, spread)}, study.measure) is None


MARKUP = '<b>a</b> & | *b* `c` [d](e) \\ $f$ 100% _'
TABLE = Table(
    'a',
    'A table',
    ('arm', 'bleu', 'difference', '95 %', 'p', 'seeds'),
    (
        ('one', Spread(30.126, 0.5, 3), Difference(-1.5))
        + (Interval(-2.0, 0.25), PValue(0.0004), 3),
        (MARKUP, Spread(31.0, None, 1), None, None, None, None),
    ),
    dict.fromkeys(('bleu', 'difference', '95 %'), 2),
)


@pytest.mark.parametrize(
    ('value', 'text'),
    [
        (PValue(0.0004), '< 0.001'),
        (PValue(0.04321), '0.043'),
        (Spread(201.61, 7.619, 3), '201.6 ± 7.6'),
        (Spread(992640.0, 0.0, 3), '992,640'),
        (Spread(5.7, 0.0549, 3), '5.700 ± 0.055'),
        (Spread(5.7049, 0.0161, 3), '5.705 ± 0.016'),
        (Spread(201.61, 34.2, 3), '202 ± 34'),
        (1.49862e12, '1.5 × 10¹²'),
        (0.00001, '1 × 10⁻⁵'),
    ],
)
def test_cells_have_as_many_digits_as_their_error(value, text):
    assert tables.format_cell(value) == text


def test_table_shows_differences_and_intervals_with_a_minus_sign():
    one, other = TABLE.cells()
    assert one == ['one', '30.13 ± 0.50', '−1.50', '−2.00 to 0.25', '< 0.001', '3']
    assert other[1:] == ['31.00', '-', '-', '-', '-']


def test_a_reader_sees_gigabytes_and_csv_has_bytes():
    table = Table('a', 'A', ('arm', 'memory, bytes'), [('one', 894_123_456)])
    assert 'arm  memory\n' in re.sub(' +memory', '  memory', tables.text(table))
    assert table.cells() == [['one', '0.89 GB']]
    assert tables.as_csv(table) == 'arm,"memory, bytes"\none,894123456\n'


def test_cells_of_a_column_have_equally_many_decimals():
    rows = [(Spread(5.7, 0.055, 3), 98.31), (Spread(5.705, 0.016, 3), 201.0)]
    table = Table('a', 'A', ('loss', 'seconds'), rows)
    decimals = tables.column_decimals(table.columns, rows)
    assert decimals == {'loss': 3, 'seconds': 1}
    assert table._replace(decimals=decimals).cells() == [
        ['5.700 ± 0.055', '98.3'],
        ['5.705 ± 0.016', '201.0'],
    ]
    whole = [(Spread(1000.0, 0.0, 2),), (12,), (None,), ('a',)]
    assert tables.column_decimals(['parameters'], whole) == {'parameters': 0}


def test_csv_holds_the_numbers_themselves():
    one, other = csv.DictReader(io.StringIO(tables.as_csv(TABLE)))
    assert one == {
        **{'arm': 'one', 'bleu': '30.126', 'bleu sd': '0.5', 'bleu seeds': '3'},
        **{'difference': '-1.5', '95 % low': '-2.0', '95 % high': '0.25'},
        **{'p': '0.0004', 'seeds': '3'},
    }
    assert other['arm'] == MARKUP
    assert other['bleu sd'] == ''


def test_latex_uses_booktabs_and_escapes():
    text = tables.latex(TABLE)
    assert r'\toprule' in text
    assert r'30.13 $\pm$ 0.50' in text
    assert r'$-$1.50' in text
    assert r'100\%' in text and r'\$f\$' in text and r'\& |' in text
    first, rest = text.split('\n', 1)
    assert first == r'% In the preamble: \usepackage{booktabs}'
    assert not re.search(r'[^\\]%', rest)
    names = ('arm', 'test bleu', 'dev chrf', 'bleuet')
    head = tables.latex(Table('a', 'A', names, [('a', 1, 2, 3)]))
    assert 'arm & test BLEU & dev chrF & bleuet' in re.sub(' +', ' ', head)
    text = tables.latex(Table('a', 'A', ('x',), [(1.5e12,), (1e-5,), ('μP²',)]))
    assert r'1.5 $\times$ 10$^{12}$' in text
    assert r'1 $\times$ 10$^{-5}$' in text and r'$\mu$P$^{2}$' in text


def test_markdown_shows_markup_as_text():
    row = tables.markdown(TABLE).splitlines()[-1]
    assert '&lt;b&gt;a&lt;/b&gt; &amp; \\| \\*b\\* \\`c\\` \\[d\\](e)' in row
    assert len(re.findall(r'(?<!\\)\|', row)) == len(TABLE.columns) + 1


def run_in_process(*arguments, code='pass'):
    text = f'import sys; {code}; sys.argv[1:] = {list(map(str, arguments))!r}\n'
    text += 'from experiments import report\n'
    text += 'report.flags.main(report.main)\n'
    text += "assert 'jax' not in sys.modules\n"
    text += "assert not any('.grammar' in name for name in sys.modules)\n"
    command = [sys.executable, '-c', text]
    return subprocess.run(command, capture_output=True, text=True)


def test_command_writes_a_report_without_loading_jax_or_a_grammar(tmp_path):
    run = make(tmp_path / 'run', 30.0, outputs=REFERENCES)
    done = run_in_process(run, f'--out={tmp_path / "out"}')
    assert done.returncode == 0, done.stderr
    assert (tmp_path / 'out/index.html').exists()


def test_table_of_runs_needs_no_package_of_a_report(tmp_path):
    paths = [
        make(tmp_path / f'{seed}', 30.0 + seed, train__seed=seed) for seed in (0, 2)
    ]
    without = 'import importlib.util as u; find = u.find_spec; '
    without += 'missing = ("scipy", "altair", "vl_convert", "jinja2"); '
    without += 'u.find_spec = lambda name: None if name in missing else find(name); '
    without += 'sys.modules.update(dict.fromkeys(missing))'
    done = run_in_process(*paths, code=without)
    assert done.returncode == 0, done.stderr
    assert '31.00 ± 1.41' in done.stdout
    done = run_in_process(*paths, f'--out={tmp_path / "out"}', code=without)
    assert done.returncode == 2
    assert all(x in done.stderr for x in ('--out', 'altair', '.[report]'))


@pytest.mark.parametrize(
    'arguments',
    [
        ['--out=RUN'],
        ['--out=FILE'],
        ['--base=x', '--out=NEW'],
        ['--measure=x', '--out=NEW'],
        ['--against=x', '--out=NEW'],
        ['--base=x'],
    ],
)
def test_invalid_flags_are_refused_before_anything_is_written(
    tmp_path, command, arguments
):
    run = make(tmp_path / 'run', 30.0)
    (tmp_path / 'file').write_text('')
    places = {'RUN': run, 'FILE': tmp_path / 'file', 'NEW': tmp_path / 'new'}
    flag, _, value = arguments[0].partition('=')
    for name, place in places.items():
        arguments = [argument.replace(name, str(place)) for argument in arguments]
    field = str(places.get(value, flag))
    with pytest.raises(UserError) as error:
        command(experiments.report, run, *arguments)
    assert field in str(error.value) and '\n' not in str(error.value)
    assert sorted(os.listdir(tmp_path)) == ['file', 'run']
