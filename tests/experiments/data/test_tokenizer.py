"""Tests of the tokenizer."""

import hashlib
import subprocess
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from small_runs import train_tokenizer

from experiments.data import corpus, tokenizers
from experiments.data.sources.base import Source
from experiments.data.tokenizers.base import BOS, EOS, PAD, UNK
from experiments.data.tokenizers.sentencepiece import SentencePiece
from experiments.errors import UserError

ROOT = Path(__file__).parents[3]
WORDS = (
    "der Hund schläft nicht, weil die Katze „laut“ singt: 12,5 % größer! a man's dog’s"
).split()


class Words(Source):
    def __init__(self, pairs=400, extra=(), seed=0):
        rng = np.random.default_rng(seed)
        draw = lambda: ' '.join(rng.choice(WORDS, rng.integers(1, 9)))  # noqa: E731
        self.pairs = [(draw(), draw()) for _ in range(pairs)] + list(extra)
        self.reads = 0

    def train(self):
        self.reads += 1
        yield from self.pairs

    def digest(self):
        return hashlib.sha256(repr(self.pairs).encode()).hexdigest()


def there(cache):
    return list(cache.glob('[!.]*'))


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    return train_tokenizer(Words(), 120, tmp_path_factory.mktemp('cache'))


def test_special_ids_are_sentencepieces_own(trained):
    processor = sentencepiece.SentencePieceProcessor(model_proto=trained.model)
    assert (PAD, EOS, BOS, UNK) == (0, 1, 2, 3)
    assert processor.pad_id() == PAD and processor.eos_id() == EOS
    assert processor.bos_id() == BOS and processor.unk_id() == UNK
    assert trained.vocab_size == processor.vocab_size() == 120


@pytest.mark.parametrize(
    'text, back',
    [
        ('', ''),
        (' \t ', ''),
        ('  der   Hund ', 'der Hund'),
        ('der\tHund\u00a0a\u2028a\u3000a', 'der Hund a a a'),
        (unicodedata.normalize('NFD', 'größer'), 'größer'),
        ('der 🐕 Hund', 'der ⁇ Hund'),
        ('der▁Hund', 'der⁇Hund'),
        ('a' * 5000, 'a' * 5000),
    ],
)
def test_odd_text_comes_back_up_to_white_space_and_unknown_characters(
    trained, text, back
):
    ids = trained.encode([text])
    assert trained.decode(ids) == [back]
    assert (UNK in ids[0]) == ('⁇' in back)


def test_names_of_special_ids_in_text_are_text(trained):
    ids = trained.encode(['<pad> </s> <s> <unk>'])[0]
    assert not {PAD, EOS, BOS} & set(ids)


@pytest.mark.parametrize('model_type', ['bpe', 'unigram'])
def test_names_of_special_ids_in_training_text_are_learnt_as_text(model_type):
    names = '<unk> <s> </s> <pad> <0x41> a<s>b'
    texts = [f'{word} {names}' for word in WORDS] * 10
    untrained = SentencePiece(vocab_size=120, model_type=model_type)
    found = untrained.opened(untrained.train(texts))
    ids = found.encode([names])
    assert not {PAD, EOS, BOS, UNK} & set(ids[0])
    assert found.decode(ids) == [names]


def test_a_text_with_a_character_that_sentencepiece_skips_is_learnt_from():
    untrained = SentencePiece(vocab_size=120)
    found = untrained.opened(untrained.train([f'{w} \u2585' for w in WORDS]))
    assert found.decode(found.encode([' '.join(WORDS)])) == [' '.join(WORDS)]


def test_decode_stops_at_the_first_end_and_ignores_padding(trained):
    a, b = trained.encode(['der Hund', 'die Katze'])
    rows = [[BOS, *a, EOS, *b, EOS, PAD], [PAD, *b], [EOS, *a], []]
    assert trained.decode(rows) == ['der Hund', 'die Katze', '', '']
    assert trained.decode(np.array([[*a, EOS, PAD]])) == ['der Hund']


def test_equal_text_gives_equal_bytes_in_any_process(trained, tmp_path):
    program = (
        'import sys; from pathlib import Path;'
        'sys.path.extend(["tests", "tests/experiments/data"]);'
        'from test_tokenizer import Words, train_tokenizer;'
        'print(train_tokenizer(Words(), 120, Path(sys.argv[1])).digest)'
    )
    command = [sys.executable, '-c', program, str(tmp_path)]
    out = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert out.stdout.strip() == trained.digest
    assert out.stderr == ''


def test_tokenizer_cache_depends_on_the_training_text(tmp_path):
    data = Words()
    first = train_tokenizer(data, 120, tmp_path)
    assert train_tokenizer(data, 120, tmp_path) == first and data.reads == 1
    assert train_tokenizer(data, 90, tmp_path).vocab_size == 90
    assert train_tokenizer(Words(seed=1), 120, tmp_path) != first
    assert len(there(tmp_path)) == 3


def test_a_vocabulary_smaller_than_the_characters_is_an_error_that_says_how_many(
    tmp_path,
):
    data = Words()
    characters = {c for pair in data.pairs for text in pair for c in text}
    needed = len(characters) + 4
    message = (
        rf'tokenizer: vocab_size=9 .* {len(characters)} characters.*at least {needed}.$'
    )
    with pytest.raises(UserError, match=message):
        train_tokenizer(data, 9, tmp_path)
    assert there(tmp_path) == []
    assert train_tokenizer(data, needed, tmp_path).vocab_size == needed


def test_blank_training_text_is_an_error(tmp_path):
    with pytest.raises(UserError, match='blank'):
        train_tokenizer(Words(0, [(' ', '')]), 100, tmp_path)


def test_invalid_tokenizer_files_are_named(tmp_path):
    with pytest.raises(UserError, match='nothing.model'):
        tokenizers.open_saved('sentencepiece', tmp_path / 'nothing.model')
    (tmp_path / 'bad.model').write_bytes(b'no model')
    with pytest.raises(UserError, match='bad.model'):
        tokenizers.open_saved('sentencepiece', tmp_path / 'bad.model')


@pytest.mark.parametrize('count, kept', [(5, 5), (10, 10), (11, 6), (100, 7)])
def test_samples_are_spread_evenly_and_bounded(count, kept):
    sample = tokenizers._sample(((i, i) for i in range(count)), 10)
    assert len(sample) == kept
    assert len(set(np.diff([i for i, _ in sample]))) == 1


def test_tokenize_keeps_every_line(trained):
    stored = corpus.tokenize([('der Hund', 'a man'), ('', 'dog’s'), ('', '')], trained)
    assert len(stored) == 3 and stored.skipped == 0
    assert stored.source.lengths().tolist()[1:] == [0, 0]
    rows = [
        stored.source[0].tolist(),
        stored.target[0].tolist(),
        stored.target[1].tolist(),
    ]
    assert trained.decode(rows) == ['der Hund', 'a man', 'dog’s']


def test_prepare_stores_all_pairs_with_text_on_both_sides(
    trained, tmp_path, monkeypatch
):
    monkeypatch.setattr(corpus, '_CHUNK', 64)
    data = Words(300, [('der', ' '), ('', ''), ('die', 'a')])
    stored = corpus.prepare(data, trained, tmp_path)
    expected = corpus.tokenize(
        [p for p in data.pairs if p[0].strip() and p[1].strip()], trained
    )
    assert stored.skipped == 2 and len(stored) == 301
    for side in ('source', 'target'):
        found, wanted = getattr(stored, side), getattr(expected, side)
        assert found.tokens.dtype == wanted.tokens.dtype == np.uint16
        assert np.array_equal(found.tokens, wanted.tokens)
        assert np.array_equal(found.offsets, wanted.offsets)


def test_prepare_is_cached_by_text_and_tokenizer(trained, tmp_path):
    data = Words()
    first = corpus.prepare(data, trained, tmp_path)
    assert corpus.prepare(data, trained, tmp_path).digest == first.digest
    assert data.reads == 1
    other = train_tokenizer(data, 90, tmp_path / 'tokenizers')
    assert corpus.prepare(data, other, tmp_path).digest != first.digest


def test_a_start_after_a_kill_makes_the_same_files(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, '_CHUNK', 64)
    told = []

    def kill(done):
        told.append(done)
        if done > 200:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        corpus.prepare(Words(), trained, tmp_path, kill)
    assert told == [64, 128, 192, 256] and there(tmp_path) == []
    expected = corpus.prepare(Words(), trained, tmp_path / 'other').digest
    assert corpus.prepare(Words(), trained, tmp_path).digest == expected


def test_a_text_that_fails_leaves_nothing(trained, tmp_path):
    class Failing(Words):
        def train(self):
            yield from super().train()
            raise UserError('line 7 is not UTF-8')

    with pytest.raises(UserError, match='line 7'):
        corpus.prepare(Failing(), trained, tmp_path)
    with pytest.raises(UserError, match='no training pair'):
        corpus.prepare(Words(0, [('', 'a'), ('b', ' ')]), trained, tmp_path)
    assert there(tmp_path) == []


def test_ids_beyond_uint16_are_stored_whole(trained, tmp_path):
    class Large(SentencePiece):
        def encode(self, texts):
            return [[66_000 + i for i in row] for row in super().encode(texts)]

    stored = corpus.prepare(
        Words(), Large(vocab_size=70_000, model=trained.model), tmp_path
    )
    assert stored.source.tokens.dtype == np.uint32
    assert stored.source.tokens.min() > 66_000
