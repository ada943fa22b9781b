"""Tests of the source `table`."""

import csv
import gzip
import json
import tracemalloc
import unicodedata

import pytest

from experiments.data import sources
from experiments.errors import UserError

ROWS = [
    {'id': 'a', 'word': 'schön', 'sounds': 'ʃ ø ː n'},
    {'id': 'b', 'word': 'say "so", or\tnot', 'sounds': 'x'},
    {'id': 'c', 'word': 'two\nlines', 'sounds': ''},
]
PAIRS = [('schön', 'ʃ ø ː n'), ('say "so", or\tnot', 'x'), ('two lines', '')]


def write(path, rows):
    apart = [{k: unicodedata.normalize('NFD', v) for k, v in r.items()} for r in rows]
    if '.csv' in path.suffixes:
        opened = gzip.open if path.suffix == '.gz' else open
        with opened(path, 'wt', encoding='utf-8', newline='') as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(apart)
    else:
        lines = ''.join(json.dumps(row) + '\n' for row in apart)
        path.write_text(lines.replace('""', 'null'), 'utf-8')
    return path


def load(train, val=None, more=''):
    if val is None:
        val = train.parent / 'dev.tsv'
        val.write_text('id\tword\tsounds\n1\tdev\td\n')
    return sources.load(
        f'table(train="{train}", val="{val}", source="word", target="sounds"{more})'
    )


@pytest.mark.parametrize('kind', ['csv', 'csv.gz', 'jsonl'])
def test_pairs_are_the_cells_of_two_columns(kind, tmp_path):
    file = write(tmp_path / f'a.{kind}', ROWS)
    other = write(tmp_path / f'b.{kind}', ROWS[:1])
    third = write(tmp_path / f'c.{kind}', ROWS[1:])
    found = load(file, other, f', sets={{"test": "{third}"}}')
    assert list(found.train()) == list(found.train()) == PAIRS
    expected = [(source, (target,)) for source, target in PAIRS]
    assert found.evaluation() == {'val': expected[:1], 'test': expected[1:]}
    assert (found.source, found.target) == ('word', 'sounds')


@pytest.mark.parametrize(
    ('name', 'text', 'expected'),
    [
        (
            'a.tsv',  # has no quotes; a blank line is a blank row
            '\ufeffid\tword\tsounds\r\n1\t"so\t\'x\r\n\n2\tb\u2028c\ty',
            [('"so', "'x"), ('', ''), ('b\u2028c', 'y')],
        ),
        ('a.csv', 'word,sounds,,\nw,x,1,2\n', [('w', 'x')]),  # unnamed columns
    ],
)
def test_quotes_blank_lines_and_unnamed_columns(name, text, expected, tmp_path):
    (tmp_path / name).write_text(text)
    assert list(load(tmp_path / name).train()) == expected


def test_further_columns_may_be_references(tmp_path):
    file = tmp_path / 'a.tsv'
    file.write_text('word\tsounds\tmore\nw\tx\ty\nv\tz\t \n')
    train = write(tmp_path / 'a.jsonl', ROWS)
    found = load(train, file, ', references=["more"]')
    assert found.evaluation()['val'] == [('w', ('x', 'y')), ('v', ('z',))]
    assert list(found.train()) == PAIRS


def test_windows_join_sentences_of_a_document_only_for_training(tmp_path):
    ids = 'a a a a b c c d'.split()
    rows = [{'id': x, 'word': f'w{i}', 'sounds': f's{i}'} for i, x in enumerate(ids)]
    rows[5]['sounds'] = ''
    train = write(tmp_path / 'a.csv', rows)
    val = write(tmp_path / 'b.csv', rows[:5])
    found = load(train, val, ', document="id", window=3')
    assert list(found.train()) == [
        ('w0 <sep> w1 <sep> w2', 's0 <sep> s1 <sep> s2'),
        ('w3', 's3'),
        ('w4', 's4'),
        ('w6', 's6'),  # its document has a blank row, which training skips
        ('w7', 's7'),
    ]
    assert found.evaluation() == load(train, val).evaluation()
    assert found.documents('val') == [[3, 1], [1]]
    assert found.digest() != load(train, val).digest()
    by_sentence = load(train, val, ', document="id"')
    assert by_sentence.documents('val') == [[1, 1, 1, 1], [1]]
    assert by_sentence.digest() == load(train, val).digest()
    mixed = f'table(train="{train}", val="{val}", source="word", target="sounds"'
    with pytest.raises(UserError, match='window'):
        sources.load(f'mix(sources=[\'{mixed}, document="id", window=2)\'])')


@pytest.mark.parametrize(
    ('names', 'words', 'place'),
    [
        (['a', 'b', 'a'], ['w'] * 3, "row 3: id .*'a'"),
        (['a', 'a', ' '], ['w'] * 3, 'row 3: id'),
        (['a', 'a'], ['w', 'w <sep> v'], '<sep>'),
    ],
)
def test_invalid_rows_of_documents_are_named(names, words, place, tmp_path):
    rows = [
        {'id': name, 'word': word, 'sounds': 's'}
        for name, word in zip(names, words, strict=True)
    ]
    file = write(tmp_path / 'a.csv', rows)
    other = write(tmp_path / 'b.csv', [{'id': 'a', 'word': 'w', 'sounds': 's'}])
    with pytest.raises(UserError, match=place):
        list(load(file, other, ', document="id", window=2').train())
    if 'id' in place:
        with pytest.raises(UserError, match=f'a.csv, {place}'):
            load(other, file, ', document="id"').documents('val')
    with pytest.raises(UserError, match="'doc'"):
        list(load(file, other, ', document="doc", window=2').train())


@pytest.mark.parametrize('kind', ['csv', 'jsonl'])
def test_memory_is_independent_of_the_file_size(kind, tmp_path):
    peaks = []
    for size in (1_000, 4_000):
        rows = [ROWS[0] | {'id': str(i), 'word': f'{i:0100d}'} for i in range(size)]
        stream = load(write(tmp_path / f'{size}.{kind}', rows)).train()
        next(stream)
        tracemalloc.start()
        assert sum(1 for _ in stream) == size - 1
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0] + 100_000
