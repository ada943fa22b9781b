"""Tests of the source `text`, and of errors for files that do not match."""

import errno
import gzip
import unicodedata
from pathlib import Path

import pytest

from experiments.contracts import source_findings
from experiments.data import sources
from experiments.data.sources.text import Text
from experiments.errors import UserError


def write(folder, **files):
    r"""Writes files: `train_en='a\n'` creates train.en."""
    for name, content in files.items():
        content = content.encode() if isinstance(content, str) else content
        (folder / name.replace('_', '.', 1)).write_bytes(content)


@pytest.fixture
def folder(tmp_path):
    write(tmp_path, train_en='a\nb\n', train_de='x\ny\n', val_en='c\n', val_de='z\n')
    return tmp_path


def make(folder, source='en', target='de'):
    return Text(str(folder), source, target)


def test_reads_pairs_and_every_set_that_has_both_languages(folder):
    write(folder, test_en='d\n', test_de='w\n', alone_en='e\n', train_fr='f\n')
    write(folder, **{'news.2014_en': 'g\n', 'news.2014_de': 'v\n'})
    text = make(folder)
    assert list(text.train()) == [('a', 'x'), ('b', 'y')]
    sets = text.evaluation()
    assert list(sets) == ['val', 'news.2014', 'test']
    assert sets['val'] == [('c', ('z',))] and sets['news.2014'] == [('g', ('v',))]
    assert list(make(folder, 'de', 'en').train()) == [('x', 'a'), ('y', 'b')]


def test_an_evaluation_set_may_have_further_references(folder):
    write(folder, test_en='c\nd\n', test_de='x\ny\n')
    (folder / 'test.de.1').write_text('x1\n\n')
    (folder / 'test.de.2.gz').write_bytes(gzip.compress(b'x2\ny2\n'))
    sets = make(folder).evaluation()
    assert list(sets) == ['val', 'test']
    assert sets['test'] == [('c', ('x', 'x1', 'x2')), ('d', ('y', 'y2'))]
    (folder / 'test.de.1').write_text('x1\n')
    with pytest.raises(UserError, match='test.de.1 has 1 lines and the set 2. Line n'):
        make(folder).evaluation()


def test_further_references_may_have_any_numbers(folder):
    for number in ('10', '0', '3'):
        (folder / f'val.de.{number}').write_text(f'z{number}\n')
    (folder / 'val.de.old').write_text('no reference\n')
    assert make(folder).evaluation()['val'] == [('c', ('z', 'z0', 'z3', 'z10'))]


def test_a_set_with_numbered_references_alone_is_refused(folder):
    write(folder, test_en='d\n')
    (folder / 'test.de.0').write_text('w\n')
    with pytest.raises(
        UserError, match='de.0 .*Rename the first reference to test.de.$'
    ):
        make(folder).evaluation()


def test_a_set_that_is_the_training_text_is_refused(folder):
    write(folder, test_en='a\nb\n', test_de='x\nz\n')
    assert list(make(folder).evaluation()) == ['val', 'test']
    (folder / 'test.de').unlink()
    (folder / 'test.de').symlink_to(folder / 'train.de')
    for read in (make(folder).train, make(folder).evaluation):
        with pytest.raises(UserError, match="^data: the set 'test' of .* is the train"):
            read()


def test_the_contracts_look_at_every_reference(folder):
    (folder / 'val.de.1').write_text('z1\n')
    assert not [found for found in source_findings(make(folder)) if not found.holds]
    write(folder, val_en='b\n')
    (folder / 'val.de.1').write_text('y\n')
    broken = [found for found in source_findings(make(folder)) if not found.holds]
    assert [found.contract for found in broken] == [
        'evaluation sets and training do not overlap'
    ]


def test_a_spec_makes_it(folder):
    text = sources.load(f'text(path="{folder}", source="en", target="de")')
    assert list(text.train()) == list(make(folder).train())


def test_the_home_directory_may_be_a_tilde(folder, monkeypatch):
    monkeypatch.setenv('HOME', str(folder.parent))
    assert list(Text(f'~/{folder.name}', 'en', 'de').train()) == [
        ('a', 'x'),
        ('b', 'y'),
    ]


def test_reads_gz(folder):
    (folder / 'train.en').unlink()
    (folder / 'train.en.gz').write_bytes(gzip.compress('a\nü\n'.encode()))
    assert list(make(folder).train()) == [('a', 'x'), ('ü', 'y')]


def test_only_a_line_feed_ends_a_line(folder):
    strange = 'a\u2028b\u0085c\x0bd\x1ce\rf'
    write(folder, train_en=f'{strange}\r\nlast', train_de='x\n\n')
    assert list(make(folder).train()) == [(strange, 'x'), ('last', '')]


def test_compatibility_characters_are_kept(folder):
    # NFKC would turn them into x2, fi and 1/2.
    write(folder, train_en='x²\nﬁ\n', train_de='½\n１\n')
    assert list(make(folder).train()) == [('x²', '½'), ('ﬁ', '１')]


def test_text_becomes_nfc_and_loses_a_byte_order_mark(folder):
    apart = unicodedata.normalize('NFD', 'schön')
    # A second mark, as in two files that were joined.
    write(folder, train_en=b'\xef\xbb\xbfa\nb\n', train_de=f'{apart}\n\ufeffy\n')
    assert list(make(folder).train()) == [('a', 'schön'), ('b', 'y')]


@pytest.mark.parametrize(
    ('content', 'message'),
    [
        (b'a\rb\r', r"has line ends of CR alone. Convert them, .* tr '\\r' '\\n'.$"),
        ('a\nb'.encode('utf-16-le'), r'is not UTF-8 \(zero bytes, as UTF-16 has\)'),
    ],
)
def test_other_line_ends_and_utf16_without_a_mark_are_refused(content, message, folder):
    lines = content.count(b'\n') + 1
    write(folder, train_en=content, train_de='x\n' * lines)
    with pytest.raises(UserError, match=rf'train\.en, line 1, {message}'):
        list(make(folder).train())


def test_digest_follows_the_training_text_alone(folder, tmp_path_factory):
    copy = tmp_path_factory.mktemp('copy')
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    first = make(folder).digest()
    assert make(copy).digest() == first
    write(copy, val_en='other\n')
    assert make(copy).digest() == first
    assert make(copy, 'de', 'en').digest() != first
    original = (copy / 'train.de').read_bytes()
    write(copy, train_de=original + b'x\n')
    assert make(copy).digest() != first
    (copy / 'train.de').write_bytes(original)
    assert make(copy).digest() == first
    write(copy, train_en='a\nB\n')
    assert make(copy).digest() != first


@pytest.mark.parametrize(
    'arguments, message',
    [
        ('path="/no/such", source="en", target="de"', '/no/such is not a folder'),
        ('path=5, source="en", target="de"', 'path must be of type str, not 5'),
        ('path=".", source="en", target="en"', "are both 'en'. Name two"),
        ('path="~nosuchuser/x", source="en", target="de"', 'home directory'),
        (f'path="{"x" * 5000}", source="en", target="de"', 'File name too long'),
        (
            'path="x"',
            'text needs source, target, such as '
            r'text\(path="corpus", source="en", target="de"\)$',
        ),
        ('path="x", sorce="en"', "unknown argument 'sorce'; text takes path, source"),
    ],
)
def test_bad_arguments_are_one_line_of_the_field(arguments, message):
    with pytest.raises(UserError, match=message) as raised:
        sources.load(f'text({arguments})')
    assert str(raised.value).startswith('data') and str(raised.value).isprintable()


@pytest.mark.parametrize(
    'forbidden',
    [(Path, 'iterdir'), (Path, 'open')],
    ids=['iterdir', 'open'],
)
def test_a_folder_or_file_without_permission_is_named(folder, monkeypatch, forbidden):
    # As the system refuses it; the owner of the tests may be allowed everything.
    def refuse(self, *_):
        raise PermissionError(errno.EACCES, 'Permission denied', str(self))

    def read():
        text = make(folder)
        text.digest()
        text.evaluation()

    read()
    monkeypatch.setattr(*forbidden, refuse)
    with pytest.raises(UserError, match=rf'{folder}.*: Permission denied$'):
        read()


@pytest.mark.parametrize('missing', ['train.en', 'train.de', 'val.en', 'val.de'])
def test_missing_file_is_named_with_what_is_there(folder, missing):
    (folder / missing).unlink()
    there = 'val' if missing.startswith('train') else 'train'
    with pytest.raises(
        UserError, match=rf'{missing} \(or .*gz\) is missing.*found: {there}.$'
    ):
        make(folder)


def test_unequal_lengths_are_told_before_any_pair(folder):
    write(folder, train_en='a\n' * 1200, train_de='x\n' * 1199)
    with pytest.raises(
        UserError, match=r'train\.en has 1,200 lines and .*train\.de has 1,199'
    ):
        next(make(folder).train())
    write(folder, train_en='a\n', train_de='x\n', val_de='z\nz\n')
    with pytest.raises(UserError, match=r'val\.en has 1 lines and .*val\.de has 2'):
        make(folder).evaluation()


def test_empty_files(folder):
    write(folder, train_en='', train_de='')
    with pytest.raises(UserError, match=r'train\.en and .*train\.de are empty'):
        next(make(folder).train())


@pytest.mark.parametrize('content', [b'a\ngr\xfc\xdfe\n', 'aü'.encode('utf-16')])
def test_not_utf8_names_file_and_line(folder, content):
    lines = content.count(b'\n') or 1
    write(folder, train_en=content, train_de='x\n' * lines)
    line = 2 if content.startswith(b'a') else 1
    with pytest.raises(
        UserError, match=rf'train\.en, line {line}, is not UTF-8.*iconv'
    ):
        list(make(folder).train())


@pytest.mark.parametrize('cut', [slice(0, 30), slice(2, None)])
def test_damaged_gz_is_named(folder, cut):
    (folder / 'train.en').unlink()
    (folder / 'train.en.gz').write_bytes(gzip.compress(bytes(range(200)) * 9)[cut])
    with pytest.raises(UserError, match=r'train\.en\.gz cannot be read'):
        next(make(folder).train())


@pytest.mark.parametrize(
    'spec, message',
    [
        ('tekst', r"^data: 'tekst' is not one of .*text"),
        ('text(', r"^data: 'text\(' is not a spec"),
    ],
)
def test_wrong_specs_are_errors_of_the_field(spec, message):
    with pytest.raises(UserError, match=message):
        sources.load(spec)
