"""Tests of tokenizers, and of separate ones for source and target."""

import collections
import functools
import json
import shutil

import jax
import numpy as np
import pytest
import small_runs
import tiny
from published_tokenizers import TOKENIZERS as PUBLISHED
from test_corpus import Words

import experiments
from experiments import registries
from experiments.command_line import flags
from experiments.contracts import tokenizer_findings
from experiments.data import corpus, sources, tokenizers
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
from experiments.errors import UserError
from experiments.registries import TOKENIZERS
from experiments.runs import reading
from flaxformer_checkpoints import tokenizer as huggingface
from flaxformer_checkpoints.exports.export import export
from flaxformer_lite import testing
from flaxformer_lite.training import freezing
from flaxformer_lite.training.train_step import init_variables

TEXTS = [text for pair in Words().pairs for text in pair]
ARGUMENTS = {'sentencepiece': 'vocab_size=120', 'huggingface': 'path={path!r}'}
# `arrays` doesn't read text.
every_tokenizer = pytest.mark.parametrize(
    'name', [name for name in TOKENIZERS.names() if name != 'arrays']
)


def train(spec, cache, texts=()):
    data = Words(extra=list(texts))
    return tokenizers.train(tokenizers.make(spec), data, cache)


@pytest.fixture
def spec(name, tmp_path):
    folder = shutil.copytree(PUBLISHED / 'bart', tmp_path / 'published')
    arguments = ARGUMENTS.get(name, '').format(path=str(folder))
    return f'{name}({arguments})'


@pytest.mark.ci
@every_tokenizer
def test_tokenizers_keep_the_contracts(name, spec):
    testing.require(tokenizer_findings(tokenizers.make(spec), TEXTS), name)


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
def test_contracts_find_each_mistake_of_a_tokenizer(mistake, contract):
    with pytest.raises(testing.BrokenContract, match=contract):
        testing.require(tokenizer_findings(_Careless(mistake), ['ab', 'abc']), 'it')
    testing.require(tokenizer_findings(_Careless(''), ['ab', 'abc']), 'it')


@every_tokenizer
def test_saved_tokenizer_is_restored_and_rejects_a_single_text(name, spec, tmp_path):
    trained = train(spec, tmp_path)
    path = tmp_path / 'run' / 'tokenizer.model'
    trained.save(path)
    expected = trained.encode(TEXTS)
    shutil.rmtree(tmp_path / 'published')
    found = tokenizers.open_saved(spec, path)
    assert found.digest == trained.digest and found.model == trained.model
    assert found.vocab_size == trained.vocab_size
    assert found.encode(TEXTS) == expected
    assert found.model_digest == trained.model_digest
    for encode in (found.encode, found.encode_target):
        with pytest.raises(UserError, match='^texts: '):
            encode('A dog.')
        assert encode([]) == []


HUGGINGFACE = {
    'sums': {},
    'vocab_size': 9,
    'config_tokens': {'padding': 0, 'bos': 2, 'eos': 1},
    'languages': ['', ''],
}


@pytest.mark.parametrize(
    ('spec', 'model'),
    [
        ('sentencepiece', 'no model'),
        *[('words', model) for model in (5, None, {'a': 1}, [1])],
        *[('huggingface', model) for model in ([], {}, 'x')],
        *[('huggingface', HUGGINGFACE | {name: '9'}) for name in HUGGINGFACE],
        ('huggingface', HUGGINGFACE | {'config_tokens': {'padding': 0}}),
        ('huggingface', HUGGINGFACE | {'languages': ['']}),
        ('huggingface', HUGGINGFACE | {'sums': {'a': 5}}),
        ('huggingface', HUGGINGFACE | {'new': []}),
    ],
)
def test_file_of_another_form_is_not_a_tokenizer(tmp_path, spec, model):
    path = tmp_path / 'tokenizer.model'
    for content in (json.dumps(model), None):
        path.write_text(content) if content else path.unlink()
        with pytest.raises(UserError, match='tokenizer.model'):
            tokenizers.open_saved(spec, path)


def test_tokenizers_are_cached_by_text_and_arguments(tmp_path):
    data = Words()
    untrained = tokenizers.make('words')
    first = tokenizers.train(untrained, data, tmp_path)
    assert tokenizers.train(untrained, data, tmp_path) == first and data.reads == 1
    other = Words(extra=[('neu', 'new')])
    assert tokenizers.train(untrained, other, tmp_path) != first
    assert len(list(tmp_path.glob('[!.]*'))) == 2
    specs = ('words', 'characters', 'bytes', 'words(min_count=2)')
    digests = {train(spec, tmp_path).digest for spec in specs}
    digests |= {tokenizers.make(spec).digest for spec in specs}
    assert len(digests) >= 7


@pytest.mark.parametrize('count, size', [(5, 5), (10, 10), (11, 6), (100, 7)])
def test_training_samples_are_evenly_spaced_and_bounded(count, size):
    sample = tokenizers._sample(((i, i) for i in range(count)), 10)
    assert len(sample) == size
    assert len(set(np.diff([i for i, _ in sample]))) == 1


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
def test_frequent_units_have_the_first_ids(name, tmp_path):
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


def test_min_count_removes_rare_words(tmp_path):
    pairs = [('einmal', 'zweimal zweimal')]
    trained = train('words(min_count=2)', tmp_path, pairs)
    assert UNK in trained.encode(['einmal'])[0]
    assert UNK not in trained.encode(['zweimal'])[0]
    with pytest.raises(UserError, match='min_count=9999'):
        train('words(min_count=9999)', tmp_path)


def test_published_tokenizer_without_a_checkpoint_has_its_own_special_tokens(tmp_path):
    folder = shutil.copytree(PUBLISHED / 'bart', tmp_path / 'published')
    found = train(f'huggingface(path={str(folder)!r})', tmp_path)
    published = huggingface._open(folder)
    special = found.special_tokens
    expected = published.pad_token_id, published.bos_token_id, published.eos_token_id
    assert (special.padding, special.bos, special.eos) == expected
    assert found.vocab_size == len(published)
    with pytest.raises(UserError, match='tokenizer: nothing'):
        tokenizers.make('huggingface(path="nothing")').largest_vocab_size()


# Separate tokenizers for source and target.

SIDES = '[characters, sentencepiece(vocab_size=150, alpha=0.3)]'


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    folder = small_runs.write_text(tmp_path_factory.mktemp('text'), val=2)
    return small_runs.source(folder)


@pytest.fixture(scope='module')
def both(data, tmp_path_factory):
    cache = tmp_path_factory.mktemp('cache')
    return tokenizers.train(tokenizers.make(SIDES), sources.load(data), cache)


def test_each_side_is_tokenized_by_its_own_tokenizer(data, both, tmp_path):
    sides = list(map(list, zip(*sources.load(data).train(), strict=True)))
    single = []
    for text, side in zip(('characters', SIDES[13:-1]), sides, strict=True):
        untrained = tokenizers.make(text)
        single.append(untrained.opened(untrained.train(side)))
    assert both.encode(sides[0]) == single[0].encode(sides[0])
    assert both.encode_target(sides[1]) == single[1].encode(sides[1])
    assert both.decode(both.encode_target(sides[1])) == sides[1]
    sizes = both.source_vocab_size, both.vocab_size
    assert sizes == (single[0].vocab_size, single[1].vocab_size)
    both.save(tmp_path / 'tokenizer.model')
    opened = tokenizers.open_saved(SIDES, tmp_path / 'tokenizer.model')
    assert opened == both and opened.digest == both.digest
    others = SIDES.replace('150', '151'), SIDES.replace('characters', 'bytes')
    assert len({tokenizers.make(text).digest for text in (SIDES, *others)}) == 3
    with pytest.raises(UserError, match='objective: .* a single tokenizer'):
        registries.make('objective', 'denoise', pieces=()).with_tokenizer(both)


def test_each_side_is_sampled_by_its_own_tokenizer(data, both, tmp_path):
    stored = corpus.prepare(sources.load(data), both, tmp_path)
    batches = Batches(stored, tokens=4096, max_length=256, tokenizer=both)
    batch, _ = next(batches.iterate(Position()))

    def rows_of(array, segments):
        return [
            row[of == i].tolist()
            for row, of in zip(batch[array], batch[segments], strict=True)
            for i in range(1, of.max() + 1)
        ]

    source_rows = rows_of('source', 'source_segments')
    target_rows = rows_of('labels', 'target_segments')
    plain = [[x.tolist() for x in side] for side in (stored.source, stored.target)]
    assert all(row[:-1] in plain[0] for row in source_rows)
    assert not all(row[:-1] in plain[1] for row in target_rows)
    texts = {target for _, target in sources.load(data).train()}
    assert set(both.decode(target_rows)) <= texts


def test_only_the_source_embedding_has_the_source_vocabulary_size():
    model = tiny.model(tie='decoder', num_layers=1)
    one, other = (
        jax.eval_shape(functools.partial(init_variables, each), jax.random.key(0))
        for each in (model, model.clone(source_vocab_size=77))
    )
    one, other = (freezing.paths(x['params']) for x in (one, other))
    assert other.pop('source_embedding').shape == (77, 12)
    assert one.pop('source_embedding').shape == (tiny.VOCAB, 12)
    assert {x: one[x].shape for x in one} == {x: other[x].shape for x in other}


@pytest.mark.slow
@pytest.mark.usefixtures('cache')
def test_run_with_two_tokenizers_translates_and_is_not_exported(
    data, tmp_path, monkeypatch
):
    fields = small_runs.TWO_STEPS | {
        'data': data,
        'tokenizer': SIDES,
        'batch.max_length': 128,
        'model.tie': 'decoder',
    }
    small_runs.train(tmp_path / 'run', *small_runs.flags(fields))
    run = experiments.open_run(tmp_path / 'run')
    assert run.variables['params']['source_embedding'].shape[0] != run.model.vocab_size
    assert reading.read_run(tmp_path / 'run').result
    (hypothesis,) = run.translate(['a bee sings'])
    assert isinstance(hypothesis, str)
    ((*_, end),) = run.score([('a bee', 'eine Biene')])
    assert end.token == '</s>' and np.isfinite(end.log_p)
    monkeypatch.setattr(flags, 'require_packages', lambda *_: None)
    for to in ('huggingface', 'ctranslate2'):
        with pytest.raises(UserError, match=r'tokenizer=\[characters, '):
            export(tmp_path / 'run', to, tmp_path / to)
        assert not (tmp_path / to).exists()
