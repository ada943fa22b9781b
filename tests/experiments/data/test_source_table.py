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
EXPECTED = [
    ('schön', 'ʃ ø ː n'),
    ('say "so", or\tnot', 'x'),
    ('two lines', ''),
]


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
    assert list(found.train()) == list(found.train()) == EXPECTED
    expected = [(source, (target,)) for source, target in EXPECTED]
    assert found.evaluation() == {'val': expected[:1], 'test': expected[1:]}
    assert (found.source, found.target) == ('word', 'sounds')


def test_tsv_has_no_quotes_and_blank_lines_are_blank_rows(tmp_path):
    file = tmp_path / 'a.tsv'
    file.write_text('\ufeffid\tword\tsounds\r\n1\t"so\t\'x\r\n\n2\tb\u2028c\ty')
    expected = [('"so', "'x"), ('', ''), ('b\u2028c', 'y')]
    assert list(load(file).train()) == expected


def test_several_columns_may_lack_a_name(tmp_path):
    file = tmp_path / 'a.csv'
    file.write_text('word,sounds,,\nw,x,1,2\n')
    assert list(load(file).train()) == [('w', 'x')]


def test_further_references_are_cells_of_more_columns(tmp_path):
    file = tmp_path / 'a.tsv'
    file.write_text('word\tsounds\tmore\nw\tx\ty\nv\tz\t \n')
    train = write(tmp_path / 'a.jsonl', ROWS)
    found = load(train, file, ', references=["more"]')
    assert found.evaluation()['val'] == [('w', ('x', 'y')), ('v', ('z',))]
    assert list(found.train()) == EXPECTED


def test_windows_join_sentences_of_a_document_for_training_alone(tmp_path):
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
        (['', 'a', 'a'], ['w'] * 3, 'row 1: id'),
        (['a', 'a'], ['w', 'w <sep> v'], '<sep>'),
    ],
)
def test_documents_of_invalid_rows_are_refused(names, words, place, tmp_path):
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
def test_memory_does_not_grow_with_the_file(kind, tmp_path):
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
