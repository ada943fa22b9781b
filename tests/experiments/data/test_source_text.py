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


def test_every_set_in_both_languages_is_read(folder, monkeypatch):
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
    monkeypatch.setenv('HOME', str(folder.parent))
    assert list(make(f'~/{folder.name}').train()) == [('a', 'x'), ('ü', 'y')]


def test_evaluation_sets_may_have_numbered_references(folder):
    write(folder, test_en='c\nd\n', test_de='x\ny\n')
    (folder / 'test.de.1').write_text('x1\n\n')
    (folder / 'test.de.2.gz').write_bytes(gzip.compress(b'x2\ny2\n'))
    for number in ('10', '0', '3'):
        (folder / f'val.de.{number}').write_text(f'z{number}\n')
    (folder / 'val.de.old').write_text('no reference\n')
    assert make(folder).evaluation() == {
        'val': [('c', ('z', 'z0', 'z3', 'z10'))],
        'test': [('c', ('x', 'x1', 'x2')), ('d', ('y', 'y2'))],
    }
    write(folder, news_en='d\n')
    (folder / 'news.de.0').write_text('w\n')
    with pytest.raises(UserError, match='news.de.0 .*news.de'):
        make(folder).evaluation()


def test_contracts_check_every_reference(folder):
    (folder / 'val.de.1').write_text('z1\n')
    assert all(found.holds for found in source_findings(make(folder)))
    write(folder, val_en='b\n')
    (folder / 'val.de.1').write_text('y\n')
    (broken,) = [found for found in source_findings(make(folder)) if not found.holds]
    assert broken.contract == 'evaluation sets and training do not overlap'


def test_only_line_feeds_end_lines(folder):
    odd = 'a\u2028b\u0085c\x0bd\x1ce\rf'
    write(folder, train_en=f'{odd}\r\nlast', train_de='x\n\n')
    assert list(make(folder).train()) == [(odd, 'x'), ('last', '')]


def test_text_is_normalized_to_nfc_and_loses_byte_order_marks(folder):
    # NFKC would change x², ﬁ and ½.
    apart = unicodedata.normalize('NFD', 'schön x²')
    # The second mark begins a file that was appended.
    write(folder, train_en=b'\xef\xbb\xbfa\nb\n', train_de=f'{apart}\n\ufeffﬁ ½\n')
    assert list(make(folder).train()) == [('a', 'schön x²'), ('b', 'ﬁ ½')]


@pytest.mark.parametrize('method', ['iterdir', 'open'])
def test_folder_or_file_without_permission_is_named(folder, monkeypatch, method):
    # Tests may run as root, which may read every file.
    def refuse(self, *_):
        raise PermissionError(errno.EACCES, 'Permission denied', str(self))

    def read():
        text = make(folder)
        text.digest()
        text.evaluation()

    read()
    monkeypatch.setattr(Path, method, refuse)
    with pytest.raises(UserError, match=str(folder)):
        read()
