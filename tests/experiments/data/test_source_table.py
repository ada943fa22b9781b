"""Tests of the source `table`."""

import csv
import gzip
import itertools
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


def test_in_tsv_a_quotation_mark_is_a_character_and_a_blank_line_a_blank_row(tmp_path):
    file = tmp_path / 'a.tsv'
    file.write_text('\ufeffid\tword\tsounds\r\n1\t"so\t\'x\r\n\n2\tb\u2028c\ty')
    expected = [('"so', "'x"), ('', ''), ('b\u2028c', 'y')]
    assert list(load(file).train()) == expected


def test_columns_without_names_may_be_several(tmp_path):
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


def test_blocks_of_a_document_are_examples_and_evaluation_has_sentences(tmp_path):
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
    with pytest.raises(UserError, match='window of sentences, which mix does not'):
        sources.load(f'mix(sources=[\'{mixed}, document="id", window=2)\'])')


@pytest.mark.parametrize(
    ('names', 'words'),
    [
        (['a', 'b', 'a'], "b.csv, row 3: id is 'a' again, after other documents"),
        (['a', 'a', ' '], 'b.csv, row 3: id is blank. Name the document'),
        (['', 'a', 'a'], 'b.csv, row 1: id is blank'),
    ],
)
def test_rows_of_a_document_must_be_consecutive(names, words, tmp_path):
    rows = [{'id': name, 'word': 'w', 'sounds': 's'} for name in names]
    good = write(tmp_path / 'a.csv', [row | {'id': 'a'} for row in rows])
    bad = write(tmp_path / 'b.csv', rows)
    with pytest.raises(UserError, match=words):
        list(load(bad, good, ', document="id", window=2').train())
    with pytest.raises(UserError, match=words):
        load(good, bad, ', document="id"').documents('val')


@pytest.mark.parametrize(
    ('more', 'words'),
    [
        ('document="doc", window=3', "a.csv has no column 'doc' in row 1. It has id, "),
        ('document="id", window=0', 'window must be at least 1'),
        ('window=3', 'window=3 needs the column of documents. Set document.'),
        ('document="id", window=2', 'a sentence contains <sep>, which separates'),
    ],
)
def test_windows_that_cannot_be_made_are_refused(more, words, tmp_path):
    rows = [{'id': 'a', 'word': x, 'sounds': 's'} for x in ('w', 'a <sep> b')]
    file = write(tmp_path / 'a.csv', rows)
    with pytest.raises(UserError, match=words) as error:
        list(load(file, more=f', {more}').train())
    assert '\n' not in str(error.value)


def test_an_evaluation_set_that_is_the_training_table_is_refused(tmp_path):
    file = write(tmp_path / 'a.csv', ROWS)
    copy = write(tmp_path / 'copy.csv', ROWS)
    other = write(tmp_path / 'b.csv', ROWS[:1])
    cases = [load(file, file), load(file, copy)]
    cases.append(load(file, other, f', sets={{"test": "{copy}"}}'))
    for found, name in zip(cases, ('val', 'val', 'test'), strict=True):
        for read in (found.train, found.evaluation):
            with pytest.raises(UserError, match=rf"^data: the set '{name}', .*csv, is"):
                read()


def test_the_digest_follows_the_training_file_and_the_columns(tmp_path):
    file = write(tmp_path / 'a.csv', ROWS)
    other = write(tmp_path / 'b.csv', ROWS[:1])
    first = load(file).digest()
    assert load(file, other).digest() == first
    text = f'table(train="{file}", val="{file}", source="id", target="sounds")'
    assert sources.load(text).digest() != first
    write(file, ROWS[:2])
    assert load(file).digest() != first


@pytest.mark.parametrize('kind', ['csv', 'jsonl'])
def test_memory_does_not_grow_with_the_file(kind, tmp_path):
    peaks = []
    for size in (5_000, 20_000):
        rows = [ROWS[0] | {'id': str(i), 'word': f'{i:0100d}'} for i in range(size)]
        stream = load(write(tmp_path / f'{size}.{kind}', rows)).train()
        next(stream)
        tracemalloc.start()
        assert sum(1 for _ in stream) == size - 1
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0] + 100_000


@pytest.mark.parametrize(
    ('name', 'text', 'message'),
    [
        (
            'a.tsv',
            'id\twort\tsounds\n1\t2\t3\n',
            "no column 'word'.* id, wort, sounds.$",
        ),
        ('a.jsonl', '{"wort": "x"}\n', "no column 'word' in row 1. It has wort.$"),
        (
            'a.tsv',
            'word\tsounds\na\tb\nc\n',
            'row 2, has 1 cells, but the header has 2',
        ),
        ('a.csv', 'word,sounds\na,"b\nc,d\n', 'below row 0: unexpected end of data'),
        (
            'a.csv',
            f'word,sounds\na,"{"b" * 150_000}\n',
            'each quotation mark, or write .*jsonl.$',
        ),
        ('a.jsonl', '{"word": 3, "sounds": "x"}\n', 'row 1: word must be text, not 3'),
        (
            'a.jsonl',
            '{"word": "a", "sounds": "b"}\n{"word": "\\ud83d!", "sounds": "x"}\n',
            r"row 2: word is '\\ud83d!', which has an unpaired surrogate",
        ),
        ('a.csv', 'word,sounds,sounds\na,b,c\n', "line 1: several columns .* 'sounds'"),
        ('a.tsv', 'word\tword\tsounds\na\tb\tc\n', "line 1: several .* called 'word'"),
        (
            'a.jsonl',
            '{"word": "a", "sounds": "b", "word": "c"}\n',
            "line 1: several columns are called 'word'. Rename them.$",
        ),
        ('a.jsonl', '[1]\n', 'line 1, is not a JSON object'),
        ('a.jsonl', '{"word": \n', 'line 1: Expecting value'),
        ('a.jsonl', '[' * 10**5, 'line 1: maximum recursion depth exceeded'),
        ('a.tsv', 'word\tsounds\n', 'a.tsv has no rows'),
        ('a.tsv', '', 'a.tsv has no rows'),
    ],
)
def test_what_is_no_such_table_is_one_line(name, text, message, tmp_path):
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        list(load(file).train())
    assert str(caught.value).startswith('data: ')


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        ('train="no.tsv", val="no.tsv", source="a", target="b"', 'no.tsv is missing'),
        ('train="a.txt", val="a.txt", source="a", target="b"', 'end with .tsv, .csv'),
        ('train="a.tsv", val="a.tsv", source="a", target="a"', 'Name two'),
        ('train=3, val="a.tsv", source="a", target="b"', 'train must be of type str'),
        (
            'train="a.tsv", val="b.tsv", source="a", target="b", sets={"val": "c.tsv"}',
            "sets: 'val' is the set of the argument val",
        ),
        ('train="a.tsv"', 'table needs val, source, target, such as table'),
    ],
)
def test_bad_arguments_are_one_line(arguments, message):
    with pytest.raises(UserError, match=message) as caught:
        sources.load(f'table({arguments})')
    assert str(caught.value).startswith('data')


def test_bytes_that_are_not_utf_8_are_named_with_their_line(tmp_path):
    file = tmp_path / 'a.tsv'
    file.write_bytes(b'word\tsounds\na\tb\nc\t\xff\n')
    pairs = load(file).train()
    assert list(itertools.islice(pairs, 1)) == [('a', 'b')]
    with pytest.raises(UserError, match='a.tsv, line 3, is not UTF-8'):
        next(pairs)
