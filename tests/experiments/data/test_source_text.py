"""Tests of the source `text`."""

import errno
import gzip
import unicodedata
from pathlib import Path

import pytest

from experiments.contracts import source_findings
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


def test_every_set_in_both_languages_is_read(folder):
    write(folder, test_en='d\n', test_de='w\n', alone_en='e\n', train_fr='f\n')
    write(folder, **{'news.2014_en': 'g\n', 'news.2014_de': 'v\n'})
    text = make(folder)
    assert list(text.train()) == [('a', 'x'), ('b', 'y')]
    sets = text.evaluation()
    assert list(sets) == ['val', 'news.2014', 'test']
    assert sets['val'] == [('c', ('z',))] and sets['news.2014'] == [('g', ('v',))]
    assert list(make(folder, 'de', 'en').train()) == [('x', 'a'), ('y', 'b')]
    (folder / 'train.en').unlink()
    (folder / 'train.en.gz').write_bytes(gzip.compress('a\nü\n'.encode()))
    assert list(make(folder).train()) == [('a', 'x'), ('ü', 'y')]


def test_an_evaluation_set_may_have_further_references(folder):
    write(folder, test_en='c\nd\n', test_de='x\ny\n')
    (folder / 'test.de.1').write_text('x1\n\n')
    (folder / 'test.de.2.gz').write_bytes(gzip.compress(b'x2\ny2\n'))
    sets = make(folder).evaluation()
    assert list(sets) == ['val', 'test']
    assert sets['test'] == [('c', ('x', 'x1', 'x2')), ('d', ('y', 'y2'))]


def test_further_references_may_have_any_numbers(folder):
    for number in ('10', '0', '3'):
        (folder / f'val.de.{number}').write_text(f'z{number}\n')
    (folder / 'val.de.old').write_text('no reference\n')
    assert make(folder).evaluation()['val'] == [('c', ('z', 'z0', 'z3', 'z10'))]


def test_a_set_with_numbered_references_alone_is_refused(folder):
    write(folder, test_en='d\n')
    (folder / 'test.de.0').write_text('w\n')
    with pytest.raises(UserError, match='test.de.0 .*test.de'):
        make(folder).evaluation()


def test_contracts_check_every_reference(folder):
    (folder / 'val.de.1').write_text('z1\n')
    assert not [found for found in source_findings(make(folder)) if not found.holds]
    write(folder, val_en='b\n')
    (folder / 'val.de.1').write_text('y\n')
    broken = [found for found in source_findings(make(folder)) if not found.holds]
    assert [found.contract for found in broken] == [
        'evaluation sets and training do not overlap'
    ]


def test_the_home_directory_may_be_a_tilde(folder, monkeypatch):
    monkeypatch.setenv('HOME', str(folder.parent))
    assert list(Text(f'~/{folder.name}', 'en', 'de').train()) == [
        ('a', 'x'),
        ('b', 'y'),
    ]


def test_only_a_line_feed_ends_a_line(folder):
    strange = 'a\u2028b\u0085c\x0bd\x1ce\rf'
    write(folder, train_en=f'{strange}\r\nlast', train_de='x\n\n')
    assert list(make(folder).train()) == [(strange, 'x'), ('last', '')]


def test_compatibility_characters_are_not_normalized(folder):
    # NFKC would turn them into x2, fi and 1/2.
    write(folder, train_en='x²\nﬁ\n', train_de='½\n１\n')
    assert list(make(folder).train()) == [('x²', '½'), ('ﬁ', '１')]


def test_text_becomes_nfc_and_loses_a_byte_order_mark(folder):
    apart = unicodedata.normalize('NFD', 'schön')
    # The second mark is that of a file that was appended.
    write(folder, train_en=b'\xef\xbb\xbfa\nb\n', train_de=f'{apart}\n\ufeffy\n')
    assert list(make(folder).train()) == [('a', 'schön'), ('b', 'y')]


@pytest.mark.parametrize(
    'forbidden',
    [(Path, 'iterdir'), (Path, 'open')],
    ids=['iterdir', 'open'],
)
def test_a_folder_or_file_without_permission_is_named(folder, monkeypatch, forbidden):
    # Tests may run as root, for whom no file is unreadable.
    def refuse(self, *_):
        raise PermissionError(errno.EACCES, 'Permission denied', str(self))

    def read():
        text = make(folder)
        text.digest()
        text.evaluation()

    read()
    monkeypatch.setattr(*forbidden, refuse)
    with pytest.raises(UserError, match=str(folder)):
        read()
