"""Tables in each of their forms, and figures by both libraries."""

import csv
import io
import json
import re
import xml.etree.ElementTree

import pytest

from experiments.reports.display import interactive, paper, tables
from experiments.reports.display.charts import Chart, Heatmap, Heatmaps, Line, look
from experiments.reports.display.tables import Interval, PValue, Table
from experiments.reports.statistics import Difference, Spread

HOSTILE = '<b>a</b> & | *b* `c` [d](e) \\ $f$ 100% _'
TABLE = Table(
    'a',
    'A table',
    ('arm', 'bleu', 'difference', '95 %', 'p', 'seeds'),
    (
        ('one', Spread(30.126, 0.5, 3), Difference(-1.5, None, None, None))
        + (Interval(-2.0, 0.25), PValue(0.0004), 3),
        (HOSTILE, Spread(31.0, None, 1), None, None, None, None),
    ),
    frozenset(('bleu', 'difference', '95 %')),
)


def test_values_are_shown_as_papers_print_them():
    assert TABLE.cells()[0] == [
        *('one', '30.13 ± 0.50', '−1.50', '−2.00 to +0.25', '< 0.001', '3')
    ]
    assert TABLE.cells()[1][1:] == ['31.00', '-', '-', '-', '-']
    assert tables.shown(PValue(0.04321)) == '0.043'


def test_csv_holds_the_numbers_themselves():
    one, other = csv.DictReader(io.StringIO(tables.as_csv(TABLE)))
    assert one == {
        **{'arm': 'one', 'bleu': '30.126', 'bleu sd': '0.5', 'bleu seeds': '3'},
        **{'difference': '-1.5', '95 % low': '-2.0', '95 % high': '0.25'},
        **{'p': '0.0004', 'seeds': '3'},
    }
    assert other['arm'] == HOSTILE
    assert other['bleu sd'] == ''


def test_latex_uses_booktabs_and_escapes():
    text = tables.latex(TABLE)
    for rule in ('toprule', 'midrule', 'bottomrule'):
        assert rf'\{rule}' in text
    assert r'30.13 $\pm$ 0.50' in text
    assert r'$-$1.50' in text
    assert r'100\%' in text and r'\$f\$' in text and r'\& |' in text
    assert not re.search(r'[^\\]%', text)


def test_markdown_shows_markup_as_text():
    row = tables.markdown(TABLE).splitlines()[-1]
    assert '&lt;b&gt;a&lt;/b&gt; &amp; \\| \\*b\\* \\`c\\` \\[d\\](e)' in row
    assert len(re.findall(r'(?<!\\)\|', row)) == len(TABLE.columns) + 1


CHARTS = [
    Chart('band', HOSTILE, 'x', 'y', (Line(HOSTILE, [1, 2], [3, 4], [2, 3], [4, 5]),)),
    Chart('bars', 'a', 'x', 'y', (Line('one', ['1–5', '6–10'], [3, 4]),), style='bars'),
    Chart(
        *('points', 'a', 'x', 'y'),
        tuple(Line(f'arm {i}', [10.0**i], [i], [i - 1], [i + 1]) for i in range(9)),
        style='points',
        log_x=True,
    ),
    Heatmaps(
        *('maps', 'a', 'to', 'from'),
        ((Heatmap(HOSTILE, ['a', 'a'], ['b', '<i>'], [[0.1, 0.2], [0.3, -0.4]]),),),
        diverging=True,
    ),
]
every_chart = pytest.mark.parametrize('chart', CHARTS, ids=lambda chart: chart.name)


@every_chart
def test_a_figure_for_a_paper_is_svg_and_pdf_and_the_same_each_time(chart):
    drawn = paper.draw(chart)
    assert drawn.keys() == {'svg', 'pdf'}
    root = xml.etree.ElementTree.fromstring(drawn['svg'])
    assert root.tag.endswith('svg')
    assert drawn['pdf'].startswith(b'%PDF')
    assert b'/FontFile2' in drawn['pdf']  # TrueType, which journals ask for
    assert paper.draw(chart) == drawn


def test_the_names_of_lines_are_text_in_the_svg():
    svg = paper.draw(CHARTS[2])['svg'].decode()
    words = [
        ''.join(e.itertext()) for e in xml.etree.ElementTree.fromstring(svg).iter()
    ]
    assert {f'arm {i}' for i in range(9)} <= set(words)


@every_chart
def test_a_figure_for_a_browser_is_json_without_markup(chart):
    figure = json.loads(json.dumps(interactive.draw(chart)))
    assert figure['data']
    texts = json.dumps(figure)
    for markup in ('<b>a', '<i>'):
        assert markup not in texts


def test_both_libraries_draw_the_same_numbers():
    (band, line) = interactive.draw(CHARTS[0])['data']
    assert (line['x'], line['y']) == ([1, 2], [3, 4])
    assert (band['x'], band['y']) == ([1, 2, 2, 1], [4, 5, 3, 2])
    (points, *_) = interactive.draw(CHARTS[2])['data']
    assert points['error_y']['array'] == points['error_y']['arrayminus'] == [1]


def test_equal_names_on_an_axis_stay_apart():
    (trace,) = interactive.draw(CHARTS[3])['data']
    assert len(set(trace['y'])) == 2
    assert [name.strip('\u200b') for name in trace['y']] == ['a', 'a']
    assert trace['x'] == ['b', '&lt;i&gt;']


def test_colours_part_at_zero_where_they_should():
    assert CHARTS[3].limits() == (-0.4, 0.4)
    plain = Heatmaps('a', 'a', 'x', 'y', ((Heatmap('', ['a'], ['b'], [[0.0]]),),))
    assert plain.limits() == (0.0, 1.0)


def test_many_lines_look_different():
    assert len({look(i) for i in range(21)}) == 21
