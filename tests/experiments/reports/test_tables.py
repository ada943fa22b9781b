"""Tests of a report's tables as text, CSV, LaTeX and Markdown."""

import csv
import io
import re

import pytest

from experiments.reports import tables
from experiments.reports.tables import Interval, PValue, Table
from experiments.sweeps.analysis import Spread

MARKUP = '<b>a</b> & | *b* `c` [d](e) \\ $f$ 100% _'
TABLE = Table(
    'a',
    'A table',
    ('arm', 'bleu', 'difference', '95 %', 'p', 'seeds'),
    (
        ('one', Spread(30.126, 0.5, 3), -1.5)
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
        (Spread(5.7049, 0.0161, 3), '5.705 ± 0.016'),
        (Spread(201.61, 34.2, 3), '202 ± 34'),
        (Spread(-42.5, 0.25, 3), '−42.50 ± 0.25'),
        (Spread(-42.5, None, 1), '−42.5'),
        (1.49862e12, '1.5 × 10¹²'),
        (0.00001, '1 × 10⁻⁵'),
    ],
)
def test_cells_have_as_many_digits_as_their_error(value, text):
    assert tables.format_cell(value) == text


def test_cells_of_a_column_have_equally_many_decimals():
    rows = [(Spread(5.7, 0.055, 3), 98.31), (Spread(5.705, 0.016, 3), 201.0)]
    table = Table('a', 'A', ('loss', 'seconds'), rows)
    decimals = tables.column_decimals(table.columns, rows)
    assert decimals == {'loss': 3, 'seconds': 1}
    assert table._replace(decimals=decimals).cells() == [
        ['5.700 ± 0.055', '98.3'],
        ['5.705 ± 0.016', '201.0'],
    ]
    one, other = TABLE.cells()
    assert one == ['one', '30.13 ± 0.50', '−1.50', '−2.00 to 0.25', '< 0.001', '3']
    assert other[1:] == ['31.00', '-', '-', '-', '-']


def test_text_has_gigabytes_and_csv_has_bytes():
    table = Table('a', 'A', ('arm', 'memory, bytes'), [('one', 894_123_456)])
    assert tables.text(table).split()[:2] == ['arm', 'memory']
    assert table.cells() == [['one', '0.89 GB']]
    assert tables.as_csv(table) == 'arm,"memory, bytes"\none,894123456\n'


def test_csv_has_the_numbers_themselves():
    one, other = csv.DictReader(io.StringIO(tables.as_csv(TABLE)))
    assert one == {
        **{'arm': 'one', 'bleu': '30.126', 'bleu sd': '0.5', 'bleu seeds': '3'},
        **{'difference': '-1.5', '95 % low': '-2.0', '95 % high': '0.25'},
        **{'p': '0.0004', 'seeds': '3'},
    }
    assert other['arm'] == MARKUP
    assert other['bleu sd'] == ''


def test_latex_uses_booktabs_and_escapes_special_characters():
    first, text = tables.latex(TABLE).split('\n', 1)
    assert first == r'% In the preamble: \usepackage{booktabs}'
    for part in (r'\toprule', r'30.13 $\pm$ 0.50', r'$-$1.50', r'100\%', r'\$f\$'):
        assert part in text
    assert r'\& |' in text and not re.search(r'[^\\]%', text)
    names = ('arm', 'test bleu', 'dev chrf', 'bleuet')
    head = tables.latex(Table('a', 'A', names, [('a', 1, 2, 3)]))
    assert 'arm & test BLEU & dev chrF & bleuet' in re.sub(' +', ' ', head)
    text = tables.latex(Table('a', 'A', ('x',), [(1.5e12,), (1e-5,), ('μP²',)]))
    for part in (r'1.5 $\times$ 10$^{12}$', r'1 $\times$ 10$^{-5}$', r'$\mu$P$^{2}$'):
        assert part in text


def test_markdown_escapes_markup():
    row = tables.markdown(TABLE).splitlines()[-1]
    assert '&lt;b&gt;a&lt;/b&gt; &amp; \\| \\*b\\* \\`c\\` \\[d\\](e)' in row
    assert len(re.findall(r'(?<!\\)\|', row)) == len(TABLE.columns) + 1
