"""Damaged files of the cache, or of a run's tokenizer, are named and made again."""

import shutil
import subprocess

import numpy as np
import pytest

from experiments.data import checksums, corpus, tokenizer
from experiments.errors import UserError
from tests.test_tokenizer import Words

DATA = Words(40)


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def empty(path):
    path.write_bytes(b'')


def delete(path):
    path.unlink()


every_damage = pytest.mark.parametrize('harm', [flip, cut, empty, delete])


@pytest.fixture(scope='module')
def cache(tmp_path_factory):
    """One tokenizer and one corpus, as they are kept."""
    folder = tmp_path_factory.mktemp('cache')
    corpus.prepare(DATA, tokenizer.train(DATA, 60, folder), folder)
    return folder


@pytest.fixture
def copy(cache, tmp_path):
    return shutil.copytree(cache, tmp_path / 'cache')


def content(folder):
    return {
        path.relative_to(folder): path.read_bytes()
        for path in folder.rglob('*')
        if path.is_file()
    }


@every_damage
@pytest.mark.parametrize(
    'file',
    [
        *('corpus-*/source.tokens', 'corpus-*/source.offsets', 'corpus-*/corpus.json'),
        *('corpus-*/target.tokens', 'corpus-*/target.offsets', 'corpus-*/SHA256SUMS'),
        *('tokenizer-*/tokenizer.model', 'tokenizer-*/SHA256SUMS'),
    ],
)
def test_each_file_of_the_cache_is_mended_and_named(cache, copy, file, harm, capsys):
    (path,) = copy.glob(file)
    harm(path)
    words = tokenizer.train(DATA, 60, copy)
    stored = corpus.prepare(DATA, words, copy)
    said = capsys.readouterr().err
    assert str(path.parent) in said and said.count('\n') == 1
    assert path.name in said or path.name == 'SHA256SUMS'
    assert content(copy) == content(cache)
    wanted = corpus.tokenize(DATA.pairs, words)
    for side in ('source', 'target'):
        for part in ('tokens', 'offsets'):
            got = getattr(getattr(stored, side), part)
            assert np.array_equal(got, getattr(getattr(wanted, side), part))


def test_what_is_whole_is_neither_named_nor_read_again(copy, capsys):
    data = Words(40)
    corpus.prepare(data, tokenizer.train(data, 60, copy), copy)
    assert data.reads == 0
    assert capsys.readouterr() == ('', '')


def test_sums_are_those_of_sha256sum(cache):
    for folder in cache.iterdir():
        subprocess.run(
            ['sha256sum', '--check', '--strict', '--quiet', checksums.SUMS],
            cwd=folder,
            check=True,
        )


def test_what_cannot_be_read_is_not_removed(copy):
    (path,) = copy.glob('corpus-*/source.tokens')
    path.unlink()
    path.mkdir()  # reading it fails for everybody, as without permission
    words = tokenizer.train(DATA, 60, copy)
    with pytest.raises(UserError, match=r'cannot read .*source\.tokens: Is a dir'):
        corpus.prepare(DATA, words, copy)
    assert path.is_dir() and path.with_name('target.tokens').exists()


def test_a_disk_that_keeps_nothing_as_it_is_written_is_told(tmp_path):
    def make(draft):
        (draft / 'a').write_bytes(b'a')

    folder = tmp_path / 'folder'
    with pytest.raises(UserError, match=r'does not stay .*FLAXFORMER_LITE_CACHE'):
        checksums.keep(folder, ['a', 'never'], make)


@every_damage
def test_a_run_s_damaged_tokenizer_is_named(cache, tmp_path, harm):
    path = tmp_path / 'tokenizer.model'
    tokenizer.train(DATA, 60, cache).save(path)
    harm(path)
    message = rf'{path} is damaged .*same command and training text'
    with pytest.raises(UserError, match=message):
        tokenizer.load(path)


@every_damage
@pytest.mark.parametrize('name', ['tokenizer.model', 'tokenizer.model.sha256'])
def test_the_same_text_mends_a_run_s_tokenizer(cache, tmp_path, name, harm, capsys):
    path = tmp_path / 'tokenizer.model'
    words = tokenizer.train(DATA, 60, cache)
    tokenizer.check_same(words, path)  # a run that begins
    words.save(path)
    tokenizer.check_same(words, path)
    before = content(tmp_path)
    assert capsys.readouterr() == ('', '')
    harm(tmp_path / name)
    tokenizer.check_same(words, path)
    said = capsys.readouterr().err
    # Without a sum there is nothing to compare with: so older runs are.
    assert ('written anew' in said) == (tokenizer.damage(path) != '')
    assert said.count('\n') <= 1
    words.save(path)
    assert content(tmp_path) == before


@pytest.mark.parametrize('harm', [None, *every_damage.args[1]])
def test_other_text_is_refused_whether_or_not_the_file_is_damaged(
    cache, tmp_path, harm
):
    path = tmp_path / 'tokenizer.model'
    tokenizer.train(DATA, 60, cache).save(path)
    if harm:
        harm(path)
    other = tokenizer.train(DATA, 50, cache)
    with pytest.raises(UserError, match='not what .* was begun with'):
        tokenizer.check_same(other, path)


def test_a_tokenizer_without_a_sum_is_read_as_it_is(cache, tmp_path):
    path = tmp_path / 'tokenizer.model'
    words = tokenizer.train(DATA, 60, cache)
    words.save(path)
    (tmp_path / 'tokenizer.model.sha256').unlink()
    assert tokenizer.load(path) == words


def test_progress_is_told_of_every_chunk(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, '_CHUNK', 16)
    monkeypatch.setattr(tokenizer, '_COUNTED', 16)
    read, tokenized = [], []
    words = tokenizer.train(DATA, 60, tmp_path, read.append)
    corpus.prepare(DATA, words, tmp_path, tokenized.append)
    assert read == tokenized == [16, 32, 40]
    corpus.prepare(DATA, words, tmp_path, tokenized.append)
    assert len(tokenized) == 3  # what is kept is not tokenised again
