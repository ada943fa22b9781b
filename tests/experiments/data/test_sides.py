"""Tests of separate source and target tokenizers."""

import functools

import jax
import numpy as np
import pytest
import small_runs
import tiny

import experiments
from experiments import registries
from experiments.command_line import flags
from experiments.config import components
from experiments.data import corpus, sources, tokenizers
from experiments.data.batches import Batches, Position
from experiments.errors import UserError
from experiments.runs import reading
from flaxformer_checkpoints.exports.export import export
from flaxformer_lite.training import freezing
from flaxformer_lite.training.train_step import init_variables

SPEC = '[characters, sentencepiece(vocab_size=150)]'


@pytest.fixture(scope='module')
def text(tmp_path_factory):
    return small_runs.write_text(tmp_path_factory.mktemp('text'), val=2)


def train(spec, text, cache):
    return tokenizers.train(
        tokenizers.make(spec), sources.load(small_runs.source(text)), cache
    )


def test_each_is_the_one_of_its_side_alone(text, tmp_path):
    pairs = list(sources.load(small_runs.source(text)).train())
    english, german = map(list, zip(*pairs, strict=True))
    both = train(SPEC, text, tmp_path)
    alone = []
    for spec, side in zip(
        ('characters', 'sentencepiece(vocab_size=150)'), (english, german), strict=True
    ):
        made = tokenizers.make(spec)
        alone.append(made.opened(made.train(side)))
    assert both.encode(english) == alone[0].encode(english)
    assert both.encode_target(german) == alone[1].encode(german)
    assert both.decode(both.encode_target(german)) == german
    assert (both.source_vocab_size, both.vocab_size) == tuple(
        x.vocab_size for x in alone
    )
    both.save(tmp_path / 'tokenizer.model')
    opened = tokenizers.open_saved(SPEC, tmp_path / 'tokenizer.model')
    assert opened == both and opened.digest == both.digest
    others = (SPEC.replace('150', '151'), '[bytes, sentencepiece(vocab_size=150)]')
    digests = {tokenizers.make(spec).digest for spec in (SPEC, *others)}
    assert len(digests) == 3


@pytest.mark.parametrize('tie', ['decoder', 'none'])
def test_only_the_sources_table_has_its_size(tie):
    model = tiny.model(tie=tie)
    other = model.clone(source_vocab_size=77)
    shapes = []
    for each in (model, other):
        made = jax.eval_shape(
            functools.partial(init_variables, each), jax.random.key(0)
        )
        found = freezing.paths(made['params'])
        shapes.append({name: x.shape for name, x in found.items()})
    changed = {name for name in shapes[0] if shapes[0][name] != shapes[1][name]}
    assert changed == {'source_embedding'}
    assert shapes[1]['source_embedding'] == (77, 12)
    with pytest.raises(ValueError, match='model.tie=all'):
        tiny.model(tie='all').clone(source_vocab_size=77)


def test_each_side_is_sampled_by_its_own(text, tmp_path):
    spec = '[characters, sentencepiece(vocab_size=150, alpha=0.3)]'
    both = train(spec, text, tmp_path)
    stored = corpus.prepare(sources.load(small_runs.source(text)), both, tmp_path)
    batches = Batches(stored, tokens=4096, max_length=256, tokenizer=both)
    batch, _ = next(batches.iterate(Position()))
    read = {
        tuple(row[of == i][:-1].tolist())
        for row, of in zip(batch['source'], batch['source_segments'], strict=True)
        for i in range(1, of.max() + 1)
    }
    written = [
        row[of == i].tolist()
        for row, of in zip(batch['labels'], batch['target_segments'], strict=True)
        for i in range(1, of.max() + 1)
    ]
    rows = range(len(stored))
    assert read <= {tuple(stored.source[i].tolist()) for i in rows}
    plain = {tuple(stored.target[i].tolist()) for i in rows}
    assert not all(tuple(row[:-1]) in plain for row in written)
    texts = {target for _, target in sources.load(small_runs.source(text)).train()}
    assert set(both.decode(written)) <= texts


@pytest.mark.slow
@pytest.mark.usefixtures('cache')
def test_a_run_of_both_trains_translates_and_is_refused_by_other_formats(
    text, tmp_path, monkeypatch
):
    fields = small_runs.FIELDS | {
        'data': small_runs.source(text),
        'tokenizer': SPEC,
        'batch.max_length': 128,
        'model.tie': 'decoder',
        'train.steps': 2,
        'evaluation.every': 0,
        'evaluation.decode': 'greedy',
        'evaluation.average': 1,
        'checkpoint.every': 2,
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


@pytest.mark.parametrize(
    ('spec', 'message'),
    [
        (
            '[bytes, bytes, bytes]',
            r'^tokenizer: .* lists 3 tokenizers. Give one, or one per',
        ),
        (
            '[bytes, huggingface]',
            '^tokenizer: huggingface cannot tokenize only one side',
        ),
        ('[bytes, byte]', "^tokenizer: 'byte' is not one of"),
    ],
)
def test_a_wrong_list_is_one_line_of_the_field(spec, message):
    with pytest.raises(UserError, match=message):
        tokenizers.make(spec)


def test_what_needs_one_vocabulary_is_refused_before_the_data_is_read(text, tmp_path):
    fields = small_runs.FIELDS | {'tokenizer': SPEC}
    config = flags.settings('wmt_small', fields).config
    with pytest.raises(UserError, match='model.tie=all'):
        components.build(config)
    both = train(SPEC, text, tmp_path)
    with pytest.raises(UserError, match='objective: .* a single tokenizer'):
        registries.make('objective', 'denoise', pieces=()).with_tokenizer(both)
