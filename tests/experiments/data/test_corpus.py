"""Tests of tokenized text in memory-mapped files."""

import hashlib

import numpy as np
import pytest
from small_runs import train_tokenizer

from experiments.data import corpus
from experiments.data.sources.base import Source
from experiments.data.tokenizers.sentencepiece import SentencePiece
from experiments.errors import UserError

WORDS = (
    "der Hund schläft nicht, weil die Katze „laut“ singt: 12,5 % größer! a man's dog’s"
).split()


class Words(Source):
    """Pairs of random words; `reads` counts the passes."""

    def __init__(self, pairs=400, extra=(), seed=0):
        rng = np.random.default_rng(seed)

        def draw():
            return ' '.join(rng.choice(WORDS, rng.integers(1, 9)))

        self.pairs = [(draw(), draw()) for _ in range(pairs)] + list(extra)
        self.reads = 0

    def train(self):
        self.reads += 1
        yield from self.pairs

    def digest(self):
        return hashlib.sha256(repr(self.pairs).encode()).hexdigest()


def entries(cache):
    return list(cache.glob('[!.]*'))


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    return train_tokenizer(Words(), 120, tmp_path_factory.mktemp('cache'))


def test_tokenizing_includes_blank_lines(trained):
    stored = corpus.tokenize([('der Hund', 'a man'), ('', 'dog’s'), ('', '')], trained)
    assert len(stored) == 3 and stored.skipped == 0
    assert stored.source.lengths().tolist()[1:] == [0, 0]
    rows = [stored.source[0], stored.target[0], stored.target[1]]
    texts = trained.decode([row.tolist() for row in rows])
    assert texts == ['der Hund', 'a man', 'dog’s']


def test_stored_pairs_have_text_on_both_sides(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, '_CHUNK', 64)
    data = Words(300, [('der', ' '), ('', ''), ('die', 'a')])
    stored = corpus.prepare(data, trained, tmp_path)
    pairs = [pair for pair in data.pairs if pair[0].strip() and pair[1].strip()]
    expected = corpus.tokenize(pairs, trained)
    assert stored.skipped == 2 and len(stored) == 301
    for side in ('source', 'target'):
        found, rows = getattr(stored, side), getattr(expected, side)
        assert found.tokens.dtype == rows.tokens.dtype == np.uint16
        assert np.array_equal(found.tokens, rows.tokens)
        assert np.array_equal(found.offsets, rows.offsets)


def test_corpus_is_cached_by_text_and_tokenizer(trained, tmp_path):
    data = Words()
    first = corpus.prepare(data, trained, tmp_path)
    assert corpus.prepare(data, trained, tmp_path).digest == first.digest
    assert data.reads == 1
    other = train_tokenizer(data, 90, tmp_path / 'tokenizers')
    assert corpus.prepare(data, other, tmp_path).digest != first.digest


def test_interrupted_preparation_starts_again_and_writes_the_same_files(
    trained, tmp_path, monkeypatch
):
    monkeypatch.setattr(corpus, '_CHUNK', 64)
    progress = []

    def kill(done):
        progress.append(done)
        if done > 200:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        corpus.prepare(Words(), trained, tmp_path, kill)
    assert progress == [64, 128, 192, 256] and entries(tmp_path) == []
    expected = corpus.prepare(Words(), trained, tmp_path / 'other').digest
    assert corpus.prepare(Words(), trained, tmp_path).digest == expected


def test_failing_text_leaves_no_files(trained, tmp_path):
    class Failing(Words):
        def train(self):
            yield from super().train()
            raise UserError('line 7 is not UTF-8')

    with pytest.raises(UserError, match='line 7'):
        corpus.prepare(Failing(), trained, tmp_path)
    with pytest.raises(UserError, match='no training pair'):
        corpus.prepare(Words(0, [('', 'a'), ('b', ' ')]), trained, tmp_path)
    assert entries(tmp_path) == []


def test_ids_beyond_uint16_are_stored_as_uint32(trained, tmp_path):
    class Large(SentencePiece):
        def encode(self, texts):
            return [[66_000 + i for i in row] for row in super().encode(texts)]

    large = Large(vocab_size=70_000, model=trained.model)
    stored = corpus.prepare(Words(), large, tmp_path)
    assert stored.source.tokens.dtype == np.uint32
    assert stored.source.tokens.min() > 66_000
