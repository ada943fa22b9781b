"""Tests of a report's files."""

import csv
import dataclasses
import html.parser
import io
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from made_runs import BLEU, REFERENCES, SOURCES, fail, heads, make, sweep, translate

import experiments.report
from experiments.errors import UserError
from experiments.evaluation.measure import Measure
from experiments.reports import arms, figures, page, tables
from experiments.reports.figures import Figure
from experiments.reports.tables import Difference, Interval, PValue, Table
from experiments.runs.reading import read_run
from experiments.sweeps import analysis
from experiments.sweeps.analysis import Spread
from flaxformer_explain import looking

HOSTILE = '<script>document.title = "taken"</script> & <b>bold</b> </script> {{ 1 }}'
DATA = f'parallel_text(train_source={HOSTILE!r})'
ROWS = [
    row
    for step in (5, 10, 15, 20)
    for row in (
        (
            *(step, 'train'),
            dict(loss=9.0 - step / 5, learning_rate=0.1, gradient_norm=1.0)
            | dict(tokens=50 * step, seconds=step / 2),
        ),
        (
            *(step, 'eval'),
            dict(set='test', loss=8.0 - step / 5, bleu=float(step))
            | dict(tokens=50 * step, seconds=step / 2),
        ),
    )
]


def runs(folder):
    """Creates two arms of three seeds with HTML in sentences, and a diverged run."""
    paths = []
    for number, first in ((4, 30.0), (8, 35.0)):
        for seed in range(3):
            path = folder / f'run,heads={number},train.seed={seed}'
            fields = {'model__num_heads': number, 'train__seed': seed, 'data': DATA}
            paths.append(make(path, first + seed * number / 4, rows=ROWS, **fields))
            outputs = [f'{REFERENCES[0]} {HOSTILE}', *REFERENCES[1:]]
            sources = [HOSTILE, *SOURCES[1:]]
            translate(
                path, outputs[: 3 - (number == 8)] + ['x'] * (number == 8), sources
            )
    paths.append(fail(make(folder / 'bad', rows=ROWS[:2], train__seed=9, data=DATA)))
    return paths


@pytest.fixture(scope='module')
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp('runs')
    return arms.study([read_run(path) for path in runs(folder)], None)


@pytest.fixture(scope='module')
def report(study, tmp_path_factory):
    folder = tmp_path_factory.mktemp('report')
    page.write(study, folder, ['left out: <i>nothing</i>'])
    return folder


class Reader(html.parser.HTMLParser):
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


def drawn(text):
    found = re.search('id="figures">(.*?)</script>', text)
    assert found is not None
    return json.loads(found[1])


def test_everything_is_there(report):
    names = {str(path.relative_to(report)) for path in report.rglob('*.*')}
    assert {'index.html', 'report.md'} <= names
    for table in ('answer', 'over_sentences', 'conditions', 'cost', 'scores'):
        assert {f'tables/{table}.csv', f'tables/{table}.tex'} <= names
    shown = {'loss', 'dev_loss', 'dev_bleu', 'learning_rate', 'gradient_norm'}
    for figure in shown:
        assert {f'figures/{figure}.svg', f'figures/{figure}.pdf'} <= names
    assert shown <= drawn((report / 'index.html').read_text('utf-8')).keys()


def test_what_a_sentence_holds_is_text(report):
    reader = Reader((report / 'index.html').read_text('utf-8'))
    assert reader.tags.count('script') == 4
    assert 'b' not in reader.tags and 'i' not in reader.tags
    assert HOSTILE in reader.text
    assert 'left out: <i>nothing</i>' in reader.text


def test_the_page_is_small_and_needs_no_other_file(report):
    text = (report / 'index.html').read_text('utf-8')
    assert len(text) < 1_200_000  # of which the script is 900,000
    links = [v for name, v in Reader(text).attributes if name in ('src', 'href')]
    assert links and all(link.startswith(('#', 'data:')) for link in links)


def test_markdown_tells_the_same(report):
    text = (report / 'report.md').read_text('utf-8')
    assert '| num\\_heads=8 | 1    |     3 | 37.00 ± 2.00 |' in text
    assert text.index('figures/differences.svg') < text.index('seed 9: diverged')
    assert 'seed 9: diverged' in text
    assert '<script>' not in text
    for path in (report / 'figures').glob('*.svg'):
        assert f'](figures/{path.name})' in text


def test_a_report_explains_its_measure_and_margin(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, 'files', lambda figure: {})
    paths = heads(tmp_path / 'runs', {4: (30.0, 31.0), 8: (32.0, 33.5)})
    measure = Measure('test', 'loss', higher_is_better=False)
    known = {'margin': 0.5, 'measure': measure, 'differs': '', 'source': ''}
    of_sweep = dataclasses.replace(sweep(tmp_path / 'runs'), **known)
    runs = [read_run(path) for path in paths]
    page.write(arms.study(runs, of_sweep), tmp_path / 'report')
    text = (tmp_path / 'report/report.md').read_text('utf-8')
    assert 'Measure: Loss (nats per token) on test; lower is better.' in text
    assert 'Equivalence margin: ± 0.5.' in text
    assert 'Lower is better: loss, perplexity.' in text
    assert 'ource:' not in text


def test_report_compares_further_measures_and_says_which_decides(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, 'files', lambda figure: {})
    paths = []
    for number, bleu in ((4, 30.0), (8, 35.0)):
        for seed in range(3):
            # The arm with the better BLEU has the worse loss.
            scores = {'direction': 'en-de', 'sentences': 3, 'bleu_signature': 'a'}
            scores |= {'loss': bleu / 10 + seed * number / 100, 'perplexity': 9.0}
            scores |= {'accuracy': None, 'bleu': bleu + seed * number / 16}
            paths.append(
                make(
                    tmp_path / f'runs/run,heads={number},train.seed={seed}',
                    bleu,
                    result={'evaluations': {'test': scores}, 'train_cpu_seconds': 7.0},
                    evaluation__metrics='bleu',
                    model__num_heads=number,
                    train__seed=seed,
                )
            )
    loss = Measure('test', 'loss', higher_is_better=False)
    known = {'measure': loss, 'further': (BLEU,), 'margin': 0.1}
    of_sweep = dataclasses.replace(sweep(tmp_path / 'runs'), **known)
    runs = [read_run(path) for path in paths]
    page.write(arms.study(runs, of_sweep), tmp_path / 'report')
    text = (tmp_path / 'report/report.md').read_text('utf-8')
    assert 'lower is better. It decides. Further measures: test bleu.' in text
    assert '### Arms, best first: test bleu' in text
    assert 'test loss decides; test bleu does not. ' in text

    def table(name):
        file = tmp_path / f'report/tables/{name}.csv'
        return list(csv.DictReader(io.StringIO(file.read_text('utf-8'))))

    verdicts = {
        name: [(row['arm'], row['verdict'], row.get('margin')) for row in table(name)]
        for name in ('answer', 'answer_bleu')
    }
    assert verdicts['answer'][:2] == [('few', 'base', '0.1'), ('many', 'worse', '0.1')]
    better = [('many', 'better', None), ('few', 'base', None)]
    assert verdicts['answer_bleu'][:2] == better
    columns = 'arm seed score loss perplexity bleu train_seconds train_cpu_seconds'
    first, *_ = table('runs')
    sets = ('loss', 'perplexity', 'bleu')
    assert set(first) == {
        *(f'test {x}' if x in sets else x for x in columns.split()),
        'parameters',
    }
    assert list(first)[:3] == ['arm', 'seed', 'score']
    assert first['score'] == first['test loss'] == '3.0'
    assert (first['test bleu'], first['train_cpu_seconds']) == ('30.0', '7.0')
    answer = json.loads((tmp_path / 'report/answer.json').read_text('utf-8'))
    assert answer['sweep'] == 'heads' and answer['measure']['score'] == 'loss'


def test_the_same_runs_give_the_same_page(study, report, tmp_path, monkeypatch):
    monkeypatch.setattr(figures, 'files', lambda figure: {})
    page.write(study, tmp_path, ['left out: <i>nothing</i>'])
    for name in ('index.html', 'report.md', 'tables/answer.csv'):
        assert (tmp_path / name).read_bytes() == (report / name).read_bytes()


def test_a_line_is_the_mean_over_seeds_in_a_band_from_least_to_most(tmp_path):
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


def test_a_line_of_one_point_is_seen(tmp_path):
    marks = {}
    for number in (1, 2):
        rows = [(step, 'train', {'loss': 4.0}) for step in range(1, number + 1)]
        path = make(tmp_path / str(number), 30.0, rows=rows)
        (figure,) = figures.curves(arms.study([read_run(path)], None))
        svg = figures.files(figure)['svg'].decode()
        marks[number] = len(re.findall('<path [^>]*opacity="1"', svg))
        assert 'band:' not in svg
    assert marks[1] > marks[2]


def test_of_many_points_so_many_are_drawn_and_the_last_is_among_them():
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


def test_a_file_has_room_for_wider_letters():
    point = figures.Point(1, 1, 1, 1)
    chart = figures.line_chart({'a': [point]}, 'steps', 'loss')
    bare = chart.properties(padding=0)
    widths = [
        int(re.search(rb'width="(\d+)"', figures.files(Figure('a', 'a', x))['svg'])[1])
        for x in (bare, chart)
    ]
    assert widths[1] >= widths[0] + 40


def test_names_and_weights_are_in_the_file_as_text_and_colours():
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


def in_own_process(*arguments, code='pass', **options):
    text = f'import sys; {code}; sys.argv[1:] = {list(map(str, arguments))!r}\n'
    text += 'from experiments import report\n'
    text += 'report.flags.main(report.main)\n'
    text += "assert 'jax' not in sys.modules\n"
    text += "assert not any('.grammar' in name for name in sys.modules)\n"
    return subprocess.run(
        [sys.executable, '-c', text], capture_output=True, text=True, **options
    )


def test_a_report_loads_no_jax_and_no_grammar(tmp_path):
    run = make(tmp_path / 'run', 30.0, outputs=REFERENCES)
    done = in_own_process(run, f'--out={tmp_path / "out"}')
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f'{tmp_path}/out/ (index.html')
    assert (tmp_path / 'out' / 'index.html').exists()


def test_the_table_needs_no_package_of_a_report(tmp_path):
    paths = runs(tmp_path)
    without = 'import importlib.util as u; find = u.find_spec; '
    without += 'missing = ("scipy", "altair", "vl_convert", "jinja2"); '
    without += 'u.find_spec = lambda name: None if name in missing else find(name); '
    without += 'sys.modules.update(dict.fromkeys(missing))'
    done = in_own_process(*paths, code=without)
    assert done.returncode == 0, done.stderr
    assert '31.00 ± 1.00' in done.stdout
    done = in_own_process(*paths, f'--out={tmp_path / "out"}', code=without)
    assert done.returncode == 2
    assert done.stderr == (
        'error: --out needs scipy, altair, vl_convert, jinja2: pip install -e '
        '".[report]"; or leave out --out\n'
    )


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (['--out=RUN'], 'directory of a run. Pass another'),
        (
            ['--out=FILE'],
            'file: cannot be written, it is not a directory. Pass another',
        ),
        (['--out=NEW', '--base=x'], '--base=x: unknown arm. Choose one of .*run'),
        (['--out=NEW', '--measure=x'], '--measure=.x.: unknown set or score'),
        (['--out=NEW', '--against=x'], "--against: invalid choice: 'x'"),
        (['--base=x'], '--base: has no effect without a report. Add --out=DIR'),
    ],
)
def test_what_cannot_be_is_one_line_and_nothing_is_written(
    tmp_path, command, arguments, message
):
    run = make(tmp_path / 'run', 30.0)
    (tmp_path / 'file').write_text('')
    places = {'RUN': run, 'FILE': tmp_path / 'file', 'NEW': tmp_path / 'new'}
    for name, place in places.items():
        arguments = [argument.replace(name, str(place)) for argument in arguments]
    with pytest.raises(UserError, match=message) as error:
        command(experiments.report, run, *arguments)
    assert '\n' not in str(error.value)
    assert sorted(os.listdir(tmp_path)) == ['file', 'run']


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


def test_values_are_shown_as_papers_print_them():
    assert TABLE.cells()[0] == [
        *('one', '30.13 ± 0.50', '−1.50', '−2.00 to 0.25', '< 0.001', '3')
    ]
    assert TABLE.cells()[1][1:] == ['31.00', '-', '-', '-', '-']
    assert tables.format_cell(PValue(0.04321)) == '0.043'
    assert tables.format_cell(Spread(201.61, 7.619, 3)) == '201.6 ± 7.6'
    assert tables.format_cell(Spread(992640.0, 0.0, 3)) == '992,640'
    assert tables.format_cell(1.49862e12) == '1.5 × 10¹²'
    assert tables.format_cell(0.00001) == '1 × 10⁻⁵'


def test_a_reader_sees_gigabytes_and_csv_has_bytes():
    table = Table('a', 'A', ('arm', 'memory, bytes'), [('one', 894_123_456)])
    assert 'arm  memory\n' in re.sub(' +memory', '  memory', tables.text(table))
    assert table.cells() == [['one', '0.89 GB']]
    assert tables.as_csv(table) == 'arm,"memory, bytes"\none,894123456\n'


def test_latex_writes_an_exponent_as_one_superscript():
    text = tables.latex(Table('a', 'A', ('x',), [(1.5e12,), (1e-5,), ('μP²',)]))
    assert r'1.5 $\times$ 10$^{12}$' in text
    assert r'1 $\times$ 10$^{-5}$' in text
    assert r'$\mu$P$^{2}$' in text


def test_a_mean_has_as_many_decimals_as_its_deviation():
    assert tables.format_cell(Spread(5.7, 0.0549, 3)) == '5.700 ± 0.055'
    assert tables.format_cell(Spread(5.7049, 0.0161, 3)) == '5.705 ± 0.016'
    assert tables.format_cell(Spread(201.61, 34.2, 3)) == '202 ± 34'


def test_the_cells_of_a_column_have_as_many_decimals():
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


def test_markdown_shows_markup_as_text():
    row = tables.markdown(TABLE).splitlines()[-1]
    assert '&lt;b&gt;a&lt;/b&gt; &amp; \\| \\*b\\* \\`c\\` \\[d\\](e)' in row
    assert len(re.findall(r'(?<!\\)\|', row)) == len(TABLE.columns) + 1


def score_by_cost(study):
    spreads = {
        arm.name: (arm.cost('training_flops'), arm.spread(study.measure))
        for arm in study.arms
    }
    return figures.score_by_cost(spreads, study.measure)


def test_scores_stand_over_their_cost_with_both_deviations(tmp_path):
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
    found = arms.study([read_run(path) for path in paths], None)
    figure = score_by_cost(found)
    drawn = figure.spec()
    ((row,),) = [*drawn['datasets'].values()]
    sd_x, sd_y = 1000 * 2**0.5, 2 * 2 / 2**0.5
    assert [row['x'], row['y']] == [6000.0, 32.0]
    assert row['x_low'] == pytest.approx(6000 - sd_x)
    assert row['x_high'] == pytest.approx(6000 + sd_x)
    assert row['y_low'] == pytest.approx(32 - sd_y)
    assert row['y_high'] == pytest.approx(32 + sd_y)
    unknown = arms.study([read_run(make(tmp_path / 'none', 30.0))], None)
    assert score_by_cost(unknown) is None
