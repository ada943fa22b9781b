"""Tests of warm starts: `init_from`, `init_ignore` and `init_average`."""

import io
import json
import shutil
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import small_runs
import tiny
import untrained_runs

import flaxformer_checkpoints
from experiments import storage
from experiments.checkpoints import base
from experiments.command_line.screen import Screen
from experiments.config import components
from experiments.data.batches import Position
from experiments.errors import UserError
from experiments.evaluation.opened_run import OpenedRun
from experiments.runs import metrics_log, trained_run
from experiments.runtime.mesh import abstract_variables
from experiments.training import loop, setup, warm_start
from flaxformer_checkpoints.exports.export import export
from flaxformer_lite.layers.scanned_stack import stack_layers, unstack_layers
from flaxformer_lite.training import freezing
from flaxformer_lite.training.loss import loss_sums
from flaxformer_lite.training.train_step import init_variables

pytestmark = pytest.mark.usefixtures('cache')
overrides = untrained_runs.overrides


@pytest.fixture(scope='module')
def source(short_text, tmp_path_factory, cache):
    path = tmp_path_factory.mktemp('runs') / 'source'
    return untrained_runs.make(path, short_text)


def mean_of(path, steps=(1, 2)):
    """Returns the float64 mean of a run's checkpoints, by path."""
    run = OpenedRun(path)
    abstract = abstract_variables(run.model)
    trees = []
    for step in steps:
        loaded = run.checkpoints.average([step], abstract).variables
        trees.append(freezing.paths(jax.device_get(loaded)))
    return {
        name: np.mean([np.float64(tree[name]) for tree in trees], axis=0)
        for name in trees[0]
    }


def prepare(text, path, **changes):
    config = untrained_runs.config(text, **changes)
    return setup.prepare(config, path, Screen(io.StringIO()))


def check_resumes_without(copy, tmp_path, argv, monkeypatch):
    """Kills a run before its first step, deletes its source and resumes it."""
    with monkeypatch.context() as patch:

        def kill(self, *_):
            raise KeyboardInterrupt

        patch.setattr(loop.Trainer, '_make_steps', kill)
        with pytest.raises(KeyboardInterrupt):
            small_runs.train(tmp_path / 'killed', *argv)
    shutil.rmtree(copy)
    small_runs.train(tmp_path / 'killed', *argv)
    small_runs.check_same_end(tmp_path / 'killed', tmp_path / 'expected')


@pytest.mark.slow
def test_killed_run_resumes_without_its_source(
    short_text, source, tmp_path, monkeypatch
):
    copy = shutil.copytree(source, tmp_path / 'copy')
    before = small_runs.files(copy)
    argv = overrides(short_text, init_from=copy, train__freeze='encoder')
    path = tmp_path / 'expected'
    small_runs.train(path, *argv)
    assert small_runs.files(copy) == before
    check_resumes_without(copy, tmp_path, argv, monkeypatch)

    source_params = mean_of(source)
    params = freezing.paths(OpenedRun(path).variables['params'])
    for name, x in params.items():
        is_unchanged = np.array_equal(x, np.float32(source_params[f'params/{name}']))
        assert is_unchanged == name.startswith('encoder/'), name

    # The first row is the loss of the source's mean parameters.
    first = next(row for row in metrics_log.read_rows(path) if row['kind'] == 'train')
    own = prepare(short_text, tmp_path / 'other')
    batch, _ = next(own.batches.iterate(Position()))
    variables = freezing.from_paths(
        {name: np.float32(x) for name, x in source_params.items()}
    )
    sums = jax.jit(loss_sums, static_argnums=0)(own.model, variables, batch)
    np.testing.assert_allclose(first['loss'], sums.loss / sums.tokens, rtol=1e-5)

    record = warm_start.read_record(path)
    assert record['averaged_steps'] == [1, 2]
    assert (record['anew'], record['left_out']) == ([], [])
    assert record['tokenizer'] == 'init_from'
    tokenizers = [(x / trained_run.TOKENIZER).read_bytes() for x in (path, source)]
    assert tokenizers[0] == tokenizers[1]


@pytest.mark.parametrize(
    'content', ['[]', '{}', '{"run": "x", "tokenizer": 5}'], ids=str
)
def test_invalid_record_is_named(tmp_path, content):
    (tmp_path / 'init.json').write_text(content)
    with pytest.raises(UserError, match='init.json: .* Restore the file'):
        warm_start.read_record(tmp_path)


def test_run_on_other_text_gets_the_tokenizer_of_its_source(source, tmp_path):
    for name, pairs in {'train': 2, 'val': 1}.items():
        (tmp_path / f'{name}.en').write_text('a bee\nbees\n'[: 6 * pairs], 'utf-8')
        (tmp_path / f'{name}.de').write_text('eine Biene\n' * pairs, 'utf-8')
    own = prepare(tmp_path, tmp_path / 'run', init_from=source, init_average=1)
    assert own.tokenizer.model == (source / trained_run.TOKENIZER).read_bytes()
    record = own.warm_start.record
    assert record['averaged_steps'] == [2] and record['published_base'] is False


@pytest.mark.slow
def test_only_adapters_train_and_an_export_merges_them(short_text, source, tmp_path):
    path = tmp_path / 'run'
    lora = {'model__dense': 'lora(rank=2, on="query|up")', 'train__steps': 3}
    argv = overrides(short_text, init_from=source, **lora)
    small_runs.train(path, *argv)
    params = freezing.paths(OpenedRun(path).variables['params'])
    source_params = mean_of(source)
    for name, x in params.items():
        if 'lora' in name:
            assert np.abs(x).max() > 0, name
        else:
            expected = np.float32(source_params[f'params/{name}'])
            np.testing.assert_array_equal(x, expected)
    trained = sorted(name for name in params if 'lora' in name)
    assert warm_start.read_record(path)['anew'] == trained
    # Checkpoints hold the adapters only. `base/` holds the other parameters once.
    kinds = json.loads((path / 'checkpoints/3/metadata/metadata').read_text())['arrays']
    assert sorted(x[7:] for x in kinds if x.startswith('params/')) == trained

    export(path, 'huggingface', tmp_path / 'out')
    model, variables = flaxformer_checkpoints.from_pretrained(tmp_path / 'out')
    run = OpenedRun(path)
    pair = np.array([[5, 6, 7, 1]]), np.array([[2, 8, 9]])
    expected = run.model.apply(run.variables, *pair)
    np.testing.assert_allclose(model.apply(variables, *pair), expected, atol=1e-4)

    frozen = frozenset(params) - {*trained}
    doubled = jax.tree.map(lambda x: 2 * x, run.variables['params'])
    base.save(path, doubled, frozen, str(source))
    (path / 'result.json').unlink()
    for use_base in (
        lambda: OpenedRun(path),
        lambda: export(path, 'huggingface', tmp_path / 'other'),
        lambda: trained_run.average(run.config, run.checkpoints, run.model),
        lambda: small_runs.train(path, *argv),
    ):
        with pytest.raises(UserError, match='/base differs from the base: .*/source,'):
            use_base()


@pytest.mark.slow
@pytest.mark.parametrize('ema', [0.0, 0.5])
def test_killed_run_with_adapters_resumes_without_its_source(
    short_text, source, tmp_path, monkeypatch, ema
):
    copy = shutil.copytree(source, tmp_path / 'copy')
    lora = {'model__dense': 'lora(rank=2)', 'train__ema': ema}
    argv = overrides(short_text, init_from=copy, **lora)
    small_runs.train(tmp_path / 'expected', *argv)
    check_resumes_without(copy, tmp_path, argv, monkeypatch)


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({}, r'^model\.dense=lora trains only adapters, so i'),
        (
            {'train__freeze': 'lora', 'init_from': 'runs'},
            '^train.freeze=.* every parameter that would',
        ),
    ],
    ids=str,
)
def test_adapters_without_parameters_to_train_are_rejected(
    short_text, changes, message
):
    config = untrained_runs.config(short_text, model__dense='lora', **changes)
    with pytest.raises(UserError, match=message):
        components.build(config)


def test_init_ignore_initializes_only_the_matching_parameters(
    short_text, source, tmp_path
):
    own = prepare(
        short_text,
        tmp_path / 'run',
        init_from=source,
        init_ignore='^decoder/layer_1/',
        model__decoder__num_layers=2,
    )
    expected = mean_of(source)
    variables = own.warm_start.variables
    assert variables.keys() == expected.keys()
    for name, x in variables.items():
        np.testing.assert_array_equal(x, np.float32(expected[name]), err_msg=name)
    new = own.warm_start.record['anew']
    assert new and all(name.startswith('decoder/layer_1/') for name in new)


@pytest.mark.slow
@pytest.mark.parametrize(
    ('tokenizer', 'changes'),
    [
        ('characters', {'model__output_bias': True, 'model__tie': 'none'}),
        ('sentencepiece(vocab_size=150)', {}),
        ('sentencepiece(vocab_size=232, sentinels=12)', {'mesh__tensor': 2}),
    ],
    ids=str,
)
def test_embedding_rows_of_shared_tokens_come_from_the_source(
    short_text, source, tmp_path, tokenizer, changes
):
    mesh = {key: x for key, x in changes.items() if key.startswith('mesh')}
    model = {key: x for key, x in changes.items() if key not in mesh}
    if model:
        source = untrained_runs.make(tmp_path / 'source', short_text, **model)
    own = prepare(
        short_text, tmp_path / 'run', init_from=source, tokenizer=tokenizer, **changes
    )
    pieces, source_pieces = (
        words.pieces([*range(words.vocab_size)])
        for words in (own.tokenizer, OpenedRun(source).tokenizer)
    )
    assert 4 < len(set(pieces) & set(source_pieces))
    assert set(pieces) != set(source_pieces)
    new = freezing.paths(jax.device_get(init_variables(own.model, jax.random.key(0))))
    old = mean_of(source)
    counts = {}
    for name, x in own.warm_start.variables.items():
        if old[name].shape[0] != len(source_pieces):
            np.testing.assert_array_equal(x, np.float32(old[name]), err_msg=name)
            continue
        expected = np.array(new[name])
        shared = 0
        for i, piece in enumerate(pieces):
            if piece in source_pieces:
                expected[i] = old[name][source_pieces.index(piece)]
                shared += 1
        np.testing.assert_array_equal(x, expected, err_msg=name)
        counts[name.removeprefix('params/')] = [shared, len(pieces)]
    assert own.warm_start.record['rows'] == counts
    assert len(counts) == (4 if model else 1)
    facts = setup.describe(own, tmp_path / 'run')
    for name, (shared, rows) in counts.items():
        assert f'{name} ' in facts
        assert f'{shared} of {rows} embedding rows from init_from' in facts


@pytest.mark.slow
@pytest.mark.parametrize('mesh', [{}, {'mesh__fsdp': 2, 'mesh__tensor': 2}], ids=str)
@pytest.mark.parametrize('scanned', [False, True])
def test_scanned_and_separate_layers_initialize_each_other(
    short_text, tmp_path, mesh, scanned
):
    layers = {'model__num_layers': 2}
    path = untrained_runs.make(
        tmp_path / 'source', short_text, model__scan_layers=scanned, **layers
    )
    own = prepare(
        short_text,
        tmp_path / 'run',
        init_from=path,
        init_ignore='layer_1/',
        model__scan_layers=not scanned,
        **layers,
        **mesh,
    )
    key = own.devices.key(0)
    init, _ = own.programs.first_state
    state = init(key, own.warm_start.variables)
    separate = own.model.with_separate_layers() if not scanned else own.model
    expected = freezing.paths(init_variables(separate, key))
    source_variables = freezing.from_paths(mean_of(path))
    if OpenedRun(path).model.scans_layers:
        source_variables = unstack_layers(source_variables)
    for name, x in freezing.paths(source_variables).items():
        if 'layer_1/' not in name:
            expected[name] = np.float32(x)
    expected = freezing.from_paths(expected)
    if own.model.scans_layers:
        expected = stack_layers(expected)
    jax.tree.map(np.testing.assert_array_equal, state.variables, expected)


def make_damaged(path, text):
    untrained_runs.make(path, text, steps=(1,))
    # All files of arrays, since Orbax decides which file holds which.
    for file in path.glob('checkpoints/1/state/**/d/*'):
        file.write_bytes(bytes(file.stat().st_size))


@pytest.mark.parametrize(
    ('make', 'message'),
    [
        (lambda path, text: None, 'not a run directory, because it does not exist'),
        (
            lambda path, text: untrained_runs.make(path, text, steps=()),
            'has no complete checkpoint yet',
        ),
        (make_damaged, 'damaged'),
    ],
    ids=['missing', 'unfinished', 'damaged'],
)
def test_unreadable_source_is_rejected(short_text, tmp_path, make, message):
    path = tmp_path / 'source'
    make(path, short_text)
    with pytest.raises(UserError, match=f'^init_from: .*{message}') as error:
        small_runs.train(tmp_path / 'run', *overrides(short_text, init_from=path))
    assert '\n' not in str(error.value)
    assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        (
            {'model__num_layers': 2},
            r'missing: decoder/layer_1/.* and \d+ more\. .*--config.init_ignore=…',
        ),
        ({'model__norm': 'rms'}, 'unused: decoder/final/norm/bias, '),
        ({'model__d_ff': 48}, 'different shape: decoder/layer_0/feed_forward/down/k'),
        ({'init_ignore': 'nothing'}, "init_ignore='nothing' matches no"),
        ({'init_ignore': '.'}, "init_ignore='.' excludes every parameter"),
        ({'init_average': 3}, r'init_average=3 exceeds the checkpoints of .* \(2\)'),
        (
            {'tokenizer': '[bytes, characters]', 'model__tie': 'decoder'},
            'model.tie=all shares source and target embeddings',
        ),
    ],
    ids=str,
)
def test_unfitting_source_is_rejected_by_the_run_and_its_dry_run(
    short_text, source, tmp_path, changes, message
):
    argv = overrides(short_text, init_from=source, **changes)
    for last in ([], ['--dry_run']):
        with pytest.raises(UserError, match=f'^init_from: .*{message}') as error:
            small_runs.train(tmp_path / 'run', *argv, *last)
        assert '\n' not in str(error.value)
        assert not (tmp_path / 'run').exists()


@pytest.fixture(scope='module')
def adapted(short_text, tmp_path_factory, cache):
    """Returns a run with adapters."""
    lora = {'model__dense': 'lora(rank=2)', 'init_from': 'elsewhere'}
    path = tmp_path_factory.mktemp('runs') / 'adapted'
    untrained_runs.make(path, short_text, **lora)
    record = {'run': 'x', 'published_base': False, 'tokenizer': 'own', 'rows': {}}
    storage.write_json(path / warm_start.NAME, record)
    return path


@pytest.mark.ci
@pytest.mark.parametrize(
    'dense',
    [
        '',
        'lora(rank=2, alpha=64.0)',
        'lora(rank=2, stabilized=True)',
        'lora(rank=2, dora=True)',
        'lora(rank=3)',
        'lora(rank=2, on="value")',
    ],
)
def test_adapters_of_the_source_need_equal_arguments(
    short_text, adapted, tmp_path, dense
):
    changes = {'model__dense': dense} if dense else {}
    argv = overrides(short_text, init_from=adapted, **changes)
    message = r'has the adapters lora\(rank=2\), but model.dense is '
    with pytest.raises(UserError, match=f'^init_from: .*{message}'):
        small_runs.train(tmp_path / 'run', *argv)
    assert not (tmp_path / 'run').exists()


def test_equal_adapters_train_further_and_more_matrices_may_get_some(
    short_text, adapted, tmp_path, monkeypatch
):
    source_params = {}

    def mean(config, run, devices):
        variables = tiny.random_like(abstract_variables(run.model))
        source_params.update(freezing.paths(variables))
        return SimpleNamespace(variables=variables, steps=[2])

    monkeypatch.setattr(warm_start, '_mean', mean)
    more = {'model__dense': 'lora(rank=2, alpha=16.0, on="query|value|up")'}
    own = prepare(short_text, tmp_path / 'run', init_from=adapted, **more)
    assert own.warm_start.variables.keys() == source_params.keys()
    new = own.warm_start.record['anew']
    assert new and all('up/lora_' in name for name in new)
    dropped = {'init_ignore': 'lora_', 'model__dense': 'lora(rank=3)'}
    own = prepare(short_text, tmp_path / 'run', init_from=adapted, **dropped)
    assert not any('lora_' in name for name in own.warm_start.variables)


def test_setup_facts_count_trained_parameters(short_text, source, tmp_path):
    changes = {'init_from': source, 'model__dense': 'lora(rank=2, on="up")'}
    lines = []
    for fields in {}, changes, {'train__freeze': 'encoder'}:
        own = prepare(short_text, tmp_path / 'run', **fields)
        facts = setup.describe(own, tmp_path / 'run').splitlines()
        lines += [line for line in facts if line.lstrip().startswith('parameters ')]
    # A and B of one matrix in each stack: 16 · 2 + 2 · 32.
    assert lines[1].endswith(f' ({2 * (16 * 2 + 2 * 32)} trained)')
    assert ' trained)' in lines[2] and 'trained' not in lines[0]
