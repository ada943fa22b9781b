"""Tests of tokenizers."""

import ast
import collections
import dataclasses
import json
import random
import shutil
import subprocess
import sys

import numpy as np
import pytest
import sentencepiece
from published_tokenizers import TOKENIZERS as PUBLISHED
from test_tokenizer import Words

from experiments.contracts import tokenizer_findings
from experiments.data import corpus, tokenizers
from experiments.data.batches import Batches, Position
from experiments.data.tokenizers.base import (
    BOS,
    EOS,
    PAD,
    UNK,
    Tokenizer,
    normalize,
    text_ids,
)
from experiments.data.tokenizers.sentencepiece import bpe_dropout, unigram_sample
from experiments.errors import UserError
from experiments.registries import TOKENIZERS
from flaxformer_checkpoints import tokenizer as huggingface
from flaxformer_lite import testing

TEXTS = [text for pair in Words().pairs for text in pair]
ARGUMENTS = {'sentencepiece': 'vocab_size=120', 'huggingface': 'path={path!r}'}
# Those of text: `arrays` reads none.
OF_TEXT = [name for name in TOKENIZERS.names() if name != 'arrays']
every_tokenizer = pytest.mark.parametrize('name', OF_TEXT)


def train(spec, cache, texts=()):
    data = Words(extra=list(texts))
    return tokenizers.train(tokenizers.make(spec), data, cache)


@pytest.fixture
def spec(name, tmp_path):
    folder = shutil.copytree(PUBLISHED / 'bart', tmp_path / 'theirs')
    arguments = ARGUMENTS.get(name, '').format(path=str(folder))
    return f'{name}({arguments})'


@every_tokenizer
def test_ours_keep_the_contracts(name, spec):
    testing.require(tokenizer_findings(tokenizers.make(spec), TEXTS), name)


@every_tokenizer
def test_one_text_instead_of_a_list_is_refused(name, spec, tmp_path):
    trained = train(spec, tmp_path)
    for encode in (trained.encode, trained.encode_target):
        with pytest.raises(UserError, match='^texts: '):
            encode('A dog.')
        assert encode([]) == []


class _Careless(Tokenizer):
    """The code points of a text, with a mistake for each contract."""

    vocab_size, model, samples, trained = 500, b'', True, 0

    def __init__(self, mistake):
        self.mistake = mistake

    def train(self, texts):
        self.trained += 1
        return b'model' * (self.trained if self.mistake == 'unequal' else 1)

    def opened(self, model):
        return self

    def encode(self, texts):
        first = {'ids': [PAD], 'blank': [9]}.get(self.mistake, [])
        return [first + [*map(ord, normalize(text))] for text in texts]

    def decode(self, ids):
        shift = self.mistake == 'changed'
        rows = ids if self.mistake == 'end' else map(text_ids, ids)
        return [''.join(chr(i + shift) for i in row) for row in rows]

    def pieces(self, ids):
        return [i if self.mistake == 'pieces' else chr(i) for i in ids]

    def sample(self, row, seed):
        return row[::-1] if self.mistake == 'drawn' else row


@pytest.mark.parametrize(
    ('mistake', 'contract'),
    [
        ('changed', "decoding inverts encoding: 'ab' becomes 'bc'"),
        ('end', "decoding stops at the end token: number 0: 'ab' first, then 'ab"),
        ('ids', "text has no padding or end ids: 'ab' contains id 0"),
        ('blank', 'blank text has no ids: '),
        ('pieces', 'every id has a piece: 0'),
        ('unequal', 'training is deterministic: the bytes differ'),
        ('drawn', "sampled ids decode to the same text: 'ab' becomes 'ba'"),
    ],
)
def test_a_careless_tokenizer_is_found(mistake, contract):
    with pytest.raises(testing.BrokenContract, match=contract):
        testing.require(tokenizer_findings(_Careless(mistake), ['ab', 'abc']), 'it')
    testing.require(tokenizer_findings(_Careless(''), ['ab', 'abc']), 'it')


@every_tokenizer
def test_saved_tokenizers_are_restored(name, spec, tmp_path):
    trained = train(spec, tmp_path)
    path = tmp_path / 'run' / 'tokenizer.model'
    trained.save(path)
    expected = trained.encode(TEXTS)
    shutil.rmtree(tmp_path / 'theirs')
    found = tokenizers.open_saved(spec, path)
    assert found.digest == trained.digest and found.model == trained.model
    assert found.vocab_size == trained.vocab_size
    assert found.encode(TEXTS) == expected
    assert found.model_digest == trained.model_digest


HUGGINGFACE = {
    'sums': {},
    'vocab_size': 9,
    'config_tokens': {'padding': 0, 'bos': 2, 'eos': 1},
    'languages': ['', ''],
}


@pytest.mark.parametrize(
    ('spec', 'model'),
    [
        *[('words', model) for model in (5, None, {'a': 1}, [1])],
        *[('huggingface', model) for model in ([], {}, 'x')],
        *[('huggingface', HUGGINGFACE | {name: '9'}) for name in HUGGINGFACE],
        ('huggingface', HUGGINGFACE | {'config_tokens': {'padding': 0}}),
        ('huggingface', HUGGINGFACE | {'languages': ['']}),
        ('huggingface', HUGGINGFACE | {'sums': {'a': 5}}),
        ('huggingface', HUGGINGFACE | {'new': []}),
    ],
)
def test_a_file_of_another_form_is_not_a_tokenizer(tmp_path, spec, model):
    path = tmp_path / 'tokenizer.model'
    path.write_text(json.dumps(model))
    with pytest.raises(UserError, match='tokenizer.model'):
        tokenizers.open_saved(spec, path)


@pytest.mark.parametrize('model_type', ['bpe', 'unigram'])
def test_sentencepiece_segments_as_its_own_trainer_by_the_same_options(
    model_type, tmp_path
):
    spec = (
        f'sentencepiece(vocab_size=340, model_type="{model_type}", byte_fallback=True)'
    )
    trained = train(spec, tmp_path)
    file = tmp_path / 'lines.txt'
    file.write_text(''.join(f'{text}\n' for text in TEXTS), 'utf-8')
    sentencepiece.SentencePieceTrainer.train(
        input=str(file),
        model_prefix=str(tmp_path / 'theirs'),
        vocab_size=339,  # it has no padding
        model_type=model_type,
        byte_fallback=True,
        character_coverage=1.0,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    theirs = sentencepiece.SentencePieceProcessor(str(tmp_path / 'theirs.model'))
    expected = theirs.encode(TEXTS, out_type=str)
    assert [trained.pieces(row) for row in trained.encode(TEXTS)] == expected
    # With bytes no character is unknown.
    assert trained.decode(trained.encode(['der 🐕'])) == ['der 🐕']


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        ('character_coverage=0.95', 'character_coverage .*0.98'),
        ('user_defined_symbols=["<unk>"]', "'<unk>'"),
        ('user_defined_symbols=["<pad>"]', "'<pad>'"),
        ('user_defined_symbols=["<2de>", "<2de>"]', "'<2de>'"),
        ('user_defined_symbols=["<extra_id_0>"], sentinels=3', "'<extra_id_0>'"),
        ('user_defined_symbols=["<0x41>"], byte_fallback=True', "'<0x41>'"),
        ('user_defined_symbols=[""]', "''"),
        ('user_defined_symbols=[3]', '3'),
        ('user_defined_symbols=["a b"]', "'a b'"),
        ('user_defined_symbols=["▁a"]', "'▁a'"),
    ],
)
def test_invalid_options_of_sentencepiece_are_refused(arguments, message):
    with pytest.raises(UserError, match=f'^tokenizer: .*{message}'):
        tokenizers.make(f'sentencepiece(vocab_size=200, {arguments})')


def test_other_errors_of_sentencepiece_are_one_line():
    untrained = tokenizers.make('sentencepiece(vocab_size=20, sentinels=30)')
    with pytest.raises(UserError, match='^tokenizer: '):
        untrained.train(['a b c'])


def test_user_defined_symbols_are_one_piece_each(tmp_path):
    spec = 'sentencepiece(vocab_size=120, user_defined_symbols=["<2de>"])'
    trained = train(spec, tmp_path)
    row = trained.encode(['<2de> der Hund'])[0]
    assert '<2de>' in trained.pieces(row)
    assert trained.decode([row]) == ['<2de> der Hund']


def test_bytes_are_those_of_utf_8(tmp_path):
    trained = train('bytes', tmp_path)
    text = normalize('größer 🐕')
    assert trained.encode([text]) == [[4 + byte for byte in text.encode('utf-8')]]
    assert trained.vocab_size == 260
    assert trained.pieces([PAD, EOS, BOS, UNK, 4 + 65, 4 + 0xC3, 4 + 32]) == [
        *('<pad>', '</s>', '<s>', '<unk>', 'A', '<0xc3>', '▁')
    ]
    assert trained.decode([[4 + 0xC3]]) == ['\ufffd']


@pytest.mark.parametrize('name', ['words', 'characters'])
def test_the_most_frequent_units_have_the_first_ids(name, tmp_path):
    units = [
        unit for text in TEXTS for unit in (text.split() if name == 'words' else text)
    ]
    counts = collections.Counter(units)
    trained = train(name, tmp_path)
    found = trained.pieces(list(range(4, trained.vocab_size)))
    found = [' ' if piece == '▁' else piece for piece in found]
    assert set(found) == set(counts)
    assert [counts[unit] for unit in found] == sorted(counts.values(), reverse=True)
    fewer = train(f'{name}(vocab_size=9, min_count=2)', tmp_path)
    assert fewer.vocab_size == 9
    assert fewer.decode([[4, UNK]])[0].endswith('⁇')


def test_min_count_removes_rarer_words(tmp_path):
    pairs = [('einmal', 'zweimal zweimal')]
    trained = train('words(min_count=2)', tmp_path, pairs)
    assert UNK in trained.encode(['einmal'])[0]
    assert UNK not in trained.encode(['zweimal'])[0]
    with pytest.raises(UserError, match='min_count=9999'):
        train('words(min_count=9999)', tmp_path)


def test_another_argument_makes_another_digest(tmp_path):
    digests = set()
    for spec in ('words', 'characters', 'bytes', 'words(min_count=2)'):
        digests.add(train(spec, tmp_path).digest)
        digests.add(tokenizers.make(spec).digest)
    assert len(digests) >= 7


def test_a_published_tokenizer_without_a_checkpoint_has_its_own_special_tokens(
    tmp_path,
):
    folder = shutil.copytree(PUBLISHED / 'bart', tmp_path / 'theirs')
    found = train(f'huggingface(path={str(folder)!r})', tmp_path)
    theirs = huggingface._open(folder)
    special = found.special_tokens
    assert (special.padding, special.bos, special.eos) == (
        *(theirs.pad_token_id, theirs.bos_token_id, theirs.eos_token_id),
    )
    assert found.vocab_size == len(theirs)
    with pytest.raises(UserError, match='tokenizer: nothing'):
        tokenizers.make('huggingface(path="nothing")').largest_vocab_size()


@pytest.mark.parametrize(
    ('spec', 'message'),
    [
        ('sentencepice', "did you mean 'sentencepiece'"),
        ('sentencepiece(vocab_size=3)', 'vocab_size must be at least 5'),
        ('sentencepiece(model_type="wp")', 'model_type must be one of bpe, unigram'),
        ('words(minimum=3)', "unknown argument 'minimum'; words takes"),
        ('sentencepiece(model=b"x")', 'unknown argument'),
    ],
)
def test_a_wrong_spec_is_one_line_of_the_field(spec, message):
    with pytest.raises(UserError, match=message) as caught:
        tokenizers.make(spec)
    assert str(caught.value).startswith('tokenizer: ')


@pytest.fixture(params=['bpe', 'unigram'])
def sampler(request, tmp_path):
    spec = f'sentencepiece(vocab_size=120, model_type="{request.param}", alpha=0.3)'
    return train(spec, tmp_path)


def test_sampled_tokens_keep_the_contracts_and_often_differ(sampler):
    rows = sampler.encode(TEXTS)
    drawn = [sampler.sample(row, seed) for seed, row in enumerate(rows)]
    others = sum(a != b for a, b in zip(drawn, rows, strict=True))
    assert len(rows) / 3 < others < len(rows)
    pieces = sampler.pieces(list(range(sampler.vocab_size)))
    inner = max((p for p in pieces if p.isalpha() and p[0] != '▁'), key=len)
    of_unknown = [UNK, pieces.index(inner)]  # a word
    assert {tuple(sampler.sample(of_unknown, i)) for i in range(20)} == {(*of_unknown,)}
    untrained = dataclasses.replace(sampler, model=b'')
    testing.require(tokenizer_findings(untrained, TEXTS), 'it')


def frequencies(draw):
    """Returns segmentation → its share of 8,000 draws of one generator."""
    generator = random.Random(7)
    counts = collections.Counter(tuple(draw(generator)) for _ in range(8000))
    return {pieces: count / 8000 for pieces, count in counts.items()}


def assert_are_the_probabilities(found, expected):
    """Checks frequencies within four standard deviations."""
    assert found.keys() == expected.keys()
    for pieces, share in expected.items():
        assert abs(found[pieces] - share) < 4 * (share * (1 - share) / 8000) ** 0.5


def test_bpe_dropout_is_algorithm_1_of_provilkov():
    """`ab` is merged before `bc`; each step skips a merge with probability 1/4."""
    scores = {'a': -9.0, 'b': -9.0, 'c': -9.0, 'ab': 0.0, 'bc': -1.0, 'abc': -2.0}
    out, made = 0.25, 0.75
    expected = {
        ('abc',): made * made + out * made * made,
        ('ab', 'c'): made * out,
        ('a', 'bc'): out * made * out,
        ('a', 'b', 'c'): out * out,
    }
    found = frequencies(lambda x: bpe_dropout(['abc'], scores, out, x))
    assert_are_the_probabilities(found, expected)


def test_subword_regularisation_is_equation_7_of_kudo():
    scores = {'a': -1.0, 'b': -2.0, 'c': -1.5, 'ab': -2.5, 'bc': -4.0, 'abc': -3.0}
    cuts = [('abc',), ('ab', 'c'), ('a', 'bc'), ('a', 'b', 'c')]
    weights = {cut: np.exp(0.5 * sum(scores[x] for x in cut)) for cut in cuts}
    expected = {cut: weight / sum(weights.values()) for cut, weight in weights.items()}
    found = frequencies(lambda x: unigram_sample(['abc'], scores, 0.5, x))
    assert_are_the_probabilities(found, expected)


def test_with_no_merge_left_out_it_is_what_sentencepiece_encodes(tmp_path):
    trained = train('sentencepiece(vocab_size=120)', tmp_path)
    sampler = dataclasses.replace(trained, alpha=1e-300)
    rows = trained.encode(TEXTS)
    assert [sampler.sample(row, seed) for seed, row in enumerate(rows)] == rows


def test_another_process_draws_the_same(tmp_path):
    here = []
    for kind in ('bpe', 'unigram'):
        spec = f'sentencepiece(vocab_size=120, model_type="{kind}", alpha=0.3)'
        sampler = train(spec, tmp_path)
        (tmp_path / kind).write_bytes(sampler.model)
        rows = sampler.encode(TEXTS)
        here.append([sampler.sample(row, seed) for seed, row in enumerate(rows)])
        assert here[-1] != rows
    code = f"""
from pathlib import Path
from experiments.data import tokenizers
for kind in ('bpe', 'unigram'):
    made = tokenizers.make(f'sentencepiece(model_type="{{kind}}", alpha=0.3)')
    sampler = made.opened((Path({str(tmp_path)!r}) / kind).read_bytes())
    rows = sampler.encode({TEXTS})
    print([sampler.sample(row, seed) for seed, row in enumerate(rows)])
"""
    command = [sys.executable, '-c', code]
    there = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert [ast.literal_eval(line) for line in there.splitlines()] == here


def test_each_epoch_samples_new_tokens_and_resuming_repeats_them(sampler, tmp_path):
    data = Words()
    stored = corpus.prepare(data, sampler, tmp_path)
    settings = dict(tokens=512, max_length=99, packed=True, seed=5, window=150)

    def batches(position):
        return Batches(stored, tokenizer=sampler, **settings).iterate(position)

    epochs: list[list] = [[], []]
    position, whole = Position(), []
    for batch, after in batches(position):
        if position.epoch == 2:
            break
        whole.append((position, batch))
        for row, of in zip(batch['source'], batch['source_segments'], strict=True):
            rows = [row[of == i].tolist() for i in range(1, of.max() + 1)]
            epochs[position.epoch] += rows
        position = after
    for rows in epochs:
        expected = sorted(source for source, _ in data.pairs)
        assert sorted(sampler.decode(rows)) == expected
    assert sorted(epochs[0]) != sorted(epochs[1])
    for position, batch in whole[:: len(whole) // 4]:
        resumed, _ = next(batches(position))
        for name, array in batch.items():
            np.testing.assert_array_equal(resumed[name], array)


def test_alpha_changes_neither_training_nor_the_cache(tmp_path):
    plain = train('sentencepiece(vocab_size=120)', tmp_path)
    sampled = train('sentencepiece(vocab_size=120, alpha=0.1)', tmp_path)
    assert plain.digest == sampled.digest and plain != sampled
    assert plain.encode(TEXTS) == sampled.encode(TEXTS)
    assert sampled.samples and not plain.samples
