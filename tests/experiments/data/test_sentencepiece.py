"""Tests of the tokenizer `sentencepiece`."""

import ast
import collections
import dataclasses
import random
import subprocess
import sys
import unicodedata

import numpy as np
import pytest
import sentencepiece
from test_corpus import WORDS, Words

from experiments.contracts import tokenizer_findings
from experiments.data import corpus, tokenizers
from experiments.data.batches import Batches, Position
from experiments.data.tokenizers.base import BOS, EOS, PAD, UNK
from experiments.data.tokenizers.sentencepiece import (
    SentencePiece,
    bpe_dropout,
    unigram_sample,
)
from experiments.errors import UserError
from flaxformer_lite import testing

TEXTS = [text for pair in Words().pairs for text in pair]


def train(arguments='', texts=TEXTS):
    untrained = tokenizers.make(f'sentencepiece(vocab_size=120{arguments})')
    return untrained.opened(untrained.train(texts))


@pytest.fixture(scope='module')
def trained():
    return train()


def test_special_ids_are_sentencepieces_own(trained):
    processor = sentencepiece.SentencePieceProcessor(model_proto=trained.model)
    assert (PAD, EOS, BOS, UNK) == (0, 1, 2, 3)
    assert processor.pad_id() == PAD and processor.eos_id() == EOS
    assert processor.bos_id() == BOS and processor.unk_id() == UNK
    assert trained.vocab_size == processor.vocab_size() == 120


@pytest.mark.parametrize(
    'text, decoded',
    [
        ('', ''),
        (' \t ', ''),
        ('  der   Hund ', 'der Hund'),
        ('der\tHund\u00a0a\u2028a\u3000a', 'der Hund a a a'),
        (unicodedata.normalize('NFD', 'größer'), 'größer'),
        ('der 🐕 Hund', 'der ⁇ Hund'),
        ('der▁Hund', 'der⁇Hund'),
        ('a' * 500, 'a' * 500),
    ],
)
def test_decoding_restores_all_but_white_space_and_unknown_characters(
    trained, text, decoded
):
    ids = trained.encode([text])
    assert trained.decode(ids) == [decoded]
    assert (UNK in ids[0]) == ('⁇' in decoded)


@pytest.mark.parametrize('model_type', ['bpe', 'unigram'])
def test_names_of_special_ids_in_text_are_encoded_as_text(trained, model_type):
    names = '<unk> <s> </s> <pad> <0x41> a<s>b'
    assert not {PAD, EOS, BOS} & set(trained.encode([names])[0])
    # SentencePiece skips U+2585.
    texts = [f'{word} {names} \u2585' for word in WORDS] * 10
    found = train(f', model_type="{model_type}"', texts)
    ids = found.encode([names])
    assert not {PAD, EOS, BOS, UNK} & set(ids[0])
    assert found.decode(ids) == [names]


def test_decoding_stops_at_the_first_end_token_and_ignores_padding(trained):
    a, b = trained.encode(['der Hund', 'die Katze'])
    rows = [[BOS, *a, EOS, *b, EOS, PAD], [PAD, *b], [EOS, *a], []]
    assert trained.decode(rows) == ['der Hund', 'die Katze', '', '']
    assert trained.decode(np.array([[*a, EOS, PAD]])) == ['der Hund']


def test_vocabulary_must_include_all_characters(tmp_path):
    data = Words()
    characters = {c for pair in data.pairs for text in pair for c in text}
    needed = len(characters) + 4
    untrained = tokenizers.make('sentencepiece(vocab_size=9)')
    message = rf'^tokenizer: vocab_size=9 .* {len(characters)} .*at least {needed}.$'
    with pytest.raises(UserError, match=message):
        tokenizers.train(untrained, data, tmp_path)
    assert not list(tmp_path.glob('[!.]*'))
    smallest = tokenizers.make(f'sentencepiece(vocab_size={needed})')
    assert tokenizers.train(smallest, data, tmp_path).vocab_size == needed


@pytest.mark.parametrize('model_type', ['bpe', 'unigram'])
def test_segmentation_equals_sentencepieces_own_trainer(model_type, tmp_path):
    spec = (
        f'sentencepiece(vocab_size=340, model_type="{model_type}", byte_fallback=True)'
    )
    untrained = tokenizers.make(spec)
    trained = untrained.opened(untrained.train(TEXTS))
    file = tmp_path / 'lines.txt'
    file.write_text(''.join(f'{text}\n' for text in TEXTS), 'utf-8')
    sentencepiece.SentencePieceTrainer.train(
        input=str(file),
        model_prefix=str(tmp_path / 'reference'),
        vocab_size=339,  # without padding
        model_type=model_type,
        byte_fallback=True,
        character_coverage=1.0,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    reference = sentencepiece.SentencePieceProcessor(str(tmp_path / 'reference.model'))
    expected = reference.encode(TEXTS, out_type=str)
    assert [trained.pieces(row) for row in trained.encode(TEXTS)] == expected
    # With bytes no character is unknown.
    assert trained.decode(trained.encode(['der 🐕'])) == ['der 🐕']


@pytest.mark.parametrize(
    ('arguments', 'named'),
    [
        ('character_coverage=0.95', 'character_coverage .*0.98'),
        ('user_defined_symbols=["<unk>"]', "'<unk>'"),
        ('user_defined_symbols=["<2de>", "<2de>"]', "'<2de>'"),
        ('user_defined_symbols=["<extra_id_0>"], sentinels=3', "'<extra_id_0>'"),
        ('user_defined_symbols=["<0x41>"], byte_fallback=True', "'<0x41>'"),
        ('user_defined_symbols=[""]', "''"),
        ('user_defined_symbols=[3]', '3'),
        ('user_defined_symbols=["a b"]', "'a b'"),
        ('user_defined_symbols=["▁a"]', "'▁a'"),
    ],
)
def test_invalid_options_are_named(arguments, named):
    with pytest.raises(UserError, match=f'^tokenizer: .*{named}'):
        tokenizers.make(f'sentencepiece(vocab_size=200, {arguments})')


def test_errors_of_sentencepiece_are_user_errors():
    untrained = tokenizers.make('sentencepiece(vocab_size=20, sentinels=30)')
    with pytest.raises(UserError, match='^tokenizer: '):
        untrained.train(['a b c'])
    with pytest.raises(UserError, match='blank'):
        SentencePiece(vocab_size=100).train([' ', ''])


def test_user_defined_symbols_are_one_piece_each():
    trained = train(', user_defined_symbols=["<2de>"]')
    row = trained.encode(['<2de> der Hund'])[0]
    assert '<2de>' in trained.pieces(row)
    assert trained.decode([row]) == ['<2de> der Hund']


@pytest.fixture(scope='module', params=['bpe', 'unigram'])
def sampler(request):
    return train(f', model_type="{request.param}", alpha=0.3')


def test_sampled_tokens_keep_the_contracts_and_often_differ(sampler):
    rows = sampler.encode(TEXTS)
    samples = [sampler.sample(row, seed) for seed, row in enumerate(rows)]
    others = sum(a != b for a, b in zip(samples, rows, strict=True))
    assert len(rows) / 3 < others < len(rows)
    pieces = sampler.pieces(list(range(sampler.vocab_size)))
    inner = max((p for p in pieces if p.isalpha() and p[0] != '▁'), key=len)
    unknown = (UNK, pieces.index(inner))  # a word with an unknown character
    assert {tuple(sampler.sample([*unknown], i)) for i in range(20)} == {unknown}
    untrained = dataclasses.replace(sampler, model=b'')
    testing.require(tokenizer_findings(untrained, TEXTS), 'sampler')


def frequencies(draw):
    """Returns segmentation → its share of 8,000 draws of one generator."""
    generator = random.Random(7)
    counts = collections.Counter(tuple(draw(generator)) for _ in range(8000))
    return {pieces: count / 8000 for pieces, count in counts.items()}


def assert_close_to_probabilities(found, expected):
    """Checks frequencies within four standard deviations."""
    assert found.keys() == expected.keys()
    for pieces, share in expected.items():
        assert abs(found[pieces] - share) < 4 * (share * (1 - share) / 8000) ** 0.5


def test_bpe_dropout_is_algorithm_1_of_provilkov():
    """`ab` is merged before `bc`; each step skips a merge with probability 1/4."""
    scores = {'a': -9.0, 'b': -9.0, 'c': -9.0, 'ab': 0.0, 'bc': -1.0, 'abc': -2.0}
    skip, merge = 0.25, 0.75
    expected = {
        ('abc',): merge * merge + skip * merge * merge,
        ('ab', 'c'): merge * skip,
        ('a', 'bc'): skip * merge * skip,
        ('a', 'b', 'c'): skip * skip,
    }
    found = frequencies(lambda x: bpe_dropout(['abc'], scores, skip, x))
    assert_close_to_probabilities(found, expected)


def test_subword_regularization_is_equation_7_of_kudo():
    scores = {'a': -1.0, 'b': -2.0, 'c': -1.5, 'ab': -2.5, 'bc': -4.0, 'abc': -3.0}
    cuts = [('abc',), ('ab', 'c'), ('a', 'bc'), ('a', 'b', 'c')]
    weights = {cut: np.exp(0.5 * sum(scores[x] for x in cut)) for cut in cuts}
    expected = {cut: weight / sum(weights.values()) for cut, weight in weights.items()}
    found = frequencies(lambda x: unigram_sample(['abc'], scores, 0.5, x))
    assert_close_to_probabilities(found, expected)


def test_bpe_dropout_of_zero_is_sentencepieces_encoding(trained):
    sampler = dataclasses.replace(trained, alpha=1e-300)
    rows = trained.encode(TEXTS)
    assert [sampler.sample(row, seed) for seed, row in enumerate(rows)] == rows


def test_training_and_sampling_are_the_same_in_any_process(sampler):
    code = f"""
from experiments.data import tokenizers
spec = 'sentencepiece(vocab_size=120, model_type="{sampler.model_type}", alpha=0.3)'
untrained = tokenizers.make(spec)
sampler = untrained.opened(untrained.train({TEXTS}))
rows = sampler.encode({TEXTS})
print([sampler.digest, [sampler.sample(row, seed) for seed, row in enumerate(rows)]])
"""
    command = [sys.executable, '-c', code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = sampler.encode(TEXTS)
    samples = [sampler.sample(row, seed) for seed, row in enumerate(rows)]
    assert ast.literal_eval(done.stdout) == [sampler.digest, samples]
    assert done.stderr == ''


def test_epochs_sample_new_tokens_and_resuming_repeats_them(sampler, tmp_path):
    data = Words()
    stored = corpus.prepare(data, sampler, tmp_path)
    settings = dict(tokens=512, max_length=99, packed=True, seed=5, window=150)

    def batches(position):
        return Batches(stored, tokenizer=sampler, **settings).iterate(position)

    epochs: list[list] = [[], []]
    position, steps = Position(), []
    for batch, after in batches(position):
        if position.epoch == 2:
            break
        steps.append((position, batch))
        for row, of in zip(batch['source'], batch['source_segments'], strict=True):
            rows = [row[of == i].tolist() for i in range(1, of.max() + 1)]
            epochs[position.epoch] += rows
        position = after
    expected = sorted(source for source, _ in data.pairs)
    assert all(sorted(sampler.decode(rows)) == expected for rows in epochs)
    assert sorted(epochs[0]) != sorted(epochs[1])
    for position, batch in steps[:: len(steps) // 4]:
        resumed, _ = next(batches(position))
        for name, array in batch.items():
            np.testing.assert_array_equal(resumed[name], array)


def test_alpha_changes_neither_training_nor_the_cache(trained):
    sampled = train(', alpha=0.1')
    assert trained.digest == sampled.digest and trained != sampled
    assert trained.encode(TEXTS) == sampled.encode(TEXTS)
    assert sampled.samples and not trained.samples
