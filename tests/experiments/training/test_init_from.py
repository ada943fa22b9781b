"""Tests of warm starts."""

import hashlib
import io
import json
import shutil
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import small_runs

import flaxformer_checkpoints
from experiments import storage
from experiments.checkpoints import base
from experiments.checkpoints.checkpoints import Checkpoints
from experiments.command_line import flags
from experiments.command_line.screen import Screen
from experiments.config import components
from experiments.data import sources, tokenizers
from experiments.data.batches import Position
from experiments.errors import UserError
from experiments.evaluation.opened_run import OpenedRun
from experiments.runs import directory, metrics_log, trained_run
from experiments.runtime import compilation
from experiments.runtime.mesh import abstract_variables
from experiments.training import loop, setup, warm_start
from flaxformer_checkpoints.exports.export import export
from flaxformer_lite.layers.scanned_stack import stack_layers, unstack_layers
from flaxformer_lite.training import freezing
from flaxformer_lite.training.loss import loss_sums
from flaxformer_lite.training.train_step import init_variables

SMALL = small_runs.FIELDS | {
    'model.dropout': 0.0,
    'train.steps': 2,
    'train.log_every': 1,
    'evaluation.every': 0,
    'evaluation.decode': 'greedy',
    'evaluation.average': 1,
    'checkpoint.every': 1,
    'checkpoint.keep': 1,
}
pytestmark = pytest.mark.usefixtures('cache')


@pytest.fixture(scope='module')
def text(tmp_path_factory):
    return small_runs.write_text(tmp_path_factory.mktemp('text'), val=2)


def overrides(text, **changes):
    return small_runs.flags(SMALL | {'data': small_runs.source(text)}, **changes)


def settings(text, **changes):
    values = flags.parse_overrides(overrides(text, **changes))
    return flags.settings('wmt_small', values).config


def make_source(path, text, steps=(1, 2), **changes):
    config = settings(text, evaluation__average=2, checkpoint__keep=2, **changes)
    words = tokenizers.train(
        tokenizers.make(config.tokenizer),
        sources.load(config.data),
        compilation.use_cache(),
    )
    model = components.build(config, words.vocab_size).model
    make = jax.jit(lambda key: init_variables(model, key))
    with directory.open_run(path, config.to_dict()):
        words.save(path / trained_run.TOKENIZER)
        checkpoints = Checkpoints(path / trained_run.CHECKPOINTS, keep=9)
        for step in steps:
            checkpoints.save(step, make(jax.random.key(step)), {})
        checkpoints.close()
    return path


@pytest.fixture(scope='module')
def source(text, tmp_path_factory):
    return make_source(tmp_path_factory.mktemp('runs') / 'source', text)


def mean_of(path, steps=(1, 2)):
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


def prepared(text, path, **changes):
    config = settings(text, **changes)
    return setup.prepare(config, path, Screen(io.StringIO()))


def snapshot(folder):
    """Returns the bytes and modification time of every file of a folder."""
    return {
        path: (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in sorted(folder.rglob('*'))
        if path.is_file()
    }


def result(path):
    return json.loads((path / 'result.json').read_text('utf-8'))


def last_params(path):
    checkpoints = Checkpoints(path / trained_run.CHECKPOINTS)
    run = OpenedRun(path)
    abstract = abstract_variables(run.model)
    loaded = checkpoints.average(checkpoints.last_steps(1), abstract).variables
    return freezing.paths(jax.device_get(loaded['params']))


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
    ends = [result(tmp_path / name) for name in ('whole', 'killed')]
    assert ends[0]['parameters_sha256'] == ends[1]['parameters_sha256']
    assert ends[0]['evaluations'] == ends[1]['evaluations']


@pytest.mark.slow
def test_a_killed_run_goes_on_without_its_source(text, source, tmp_path, monkeypatch):
    copy = tmp_path / 'copy'
    shutil.copytree(source, copy)
    begun = snapshot(copy)
    argv = overrides(text, init_from=copy, train__freeze='encoder')
    small_runs.train(tmp_path / 'whole', *argv)
    assert snapshot(copy) == begun
    check_resumes_without(copy, tmp_path, argv, monkeypatch)

    taken = mean_of(source)
    for name, x in last_params(tmp_path / 'killed').items():
        first = np.float32(taken[f'params/{name}'])
        is_same = np.asarray(x).tobytes() == first.tobytes()
        assert is_same == name.startswith('encoder/'), name
    check_first_loss(text, source, tmp_path / 'whole')
    check_record(source, tmp_path / 'whole')


def check_first_loss(text, source, path):
    """Checks that the first row is the loss of the source's mean parameters."""
    first = next(row for row in metrics_log.read_rows(path) if row['kind'] == 'train')
    own = prepared(text, path.parent / 'other')
    batch, _ = next(own.batches.iterate(Position()))
    variables = freezing.from_paths(
        {name: np.float32(x) for name, x in mean_of(source).items()}
    )
    sums = jax.jit(loss_sums, static_argnums=0)(own.model, variables, batch)
    np.testing.assert_allclose(first['loss'], sums.loss / sums.tokens, rtol=1e-5)


@pytest.mark.parametrize(
    'content',
    ['[]', '5', '{}', '{"run": 5, "tokenizer": "own"}', '{"run": "x", "tokenizer": 5}'],
)
def test_a_record_of_another_form_is_named(tmp_path, content):
    (tmp_path / 'init.json').write_text(content)
    with pytest.raises(UserError, match='init.json: .* Restore the file'):
        warm_start.read_record(tmp_path)


def check_record(source, path):
    record = warm_start.read_record(path)
    assert record['averaged_steps'] == [1, 2]
    assert (record['anew'], record['left_out']) == ([], [])
    assert record['tokenizer'] == 'init_from'
    name = trained_run.TOKENIZER
    assert (path / name).read_bytes() == (source / name).read_bytes()


def test_its_tokenizer_comes_along_to_other_text(source, tmp_path):
    other = tmp_path / 'text'
    other.mkdir()
    (other / 'train.en').write_text('a bee\nbees\n', 'utf-8')
    (other / 'train.de').write_text('eine Biene\nBienen\n', 'utf-8')
    (other / 'val.en').write_text('a bee\n', 'utf-8')
    (other / 'val.de').write_text('eine Biene\n', 'utf-8')
    own = prepared(other, tmp_path / 'run', init_from=source, init_average=1)
    assert own.tokenizer.model == (source / trained_run.TOKENIZER).read_bytes()
    assert own.warm_start is not None
    assert own.warm_start.record['averaged_steps'] == [2]


@pytest.mark.slow
def test_only_adapters_train_and_the_export_merges_them(text, source, tmp_path):
    path = tmp_path / 'run'
    lora = {'model__dense': 'lora(rank=2, on="query|up")', 'train__steps': 3}
    argv = overrides(text, init_from=source, **lora)
    small_runs.train(path, *argv)
    found = freezing.paths(OpenedRun(path).variables['params'])
    taken = mean_of(source)
    for name, x in found.items():
        if 'lora' in name:
            assert np.abs(x).max() > 0, name
        else:
            np.testing.assert_array_equal(x, np.float32(taken[f'params/{name}']))
    trained = sorted(name for name in found if 'lora' in name)
    assert warm_start.read_record(path)['anew'] == trained
    # Checkpoints hold the adapters, and `base/` the rest once.
    kinds = json.loads((path / 'checkpoints/3/metadata/metadata').read_text())['arrays']
    assert sorted(x[7:] for x in kinds if x.startswith('params/')) == trained

    export(path, 'huggingface', tmp_path / 'out')
    model, variables = flaxformer_checkpoints.from_pretrained(tmp_path / 'out')
    run = OpenedRun(path)
    pair = np.array([[5, 6, 7, 1]]), np.array([[2, 8, 9]])
    ours = run.model.apply(run.variables, *pair)
    np.testing.assert_allclose(model.apply(variables, *pair), ours, atol=1e-4)

    held = frozenset(found) - {*trained}
    doubled = jax.tree.map(lambda x: 2 * x, run.variables['params'])
    base.save(path, doubled, held, str(source))
    refused = '/base differs from the base: .* of step 3 belong to .*/source, digest'
    with pytest.raises(UserError, match=refused):
        OpenedRun(path)
    with pytest.raises(UserError, match=refused):
        export(path, 'huggingface', tmp_path / 'other')
    with pytest.raises(UserError, match=refused):
        trained_run.average(run.config, run.checkpoints, run.model)
    (path / 'result.json').unlink()
    with pytest.raises(UserError, match=refused):
        small_runs.train(path, *argv)


@pytest.mark.slow
@pytest.mark.parametrize('ema', [0.0, 0.5])
def test_a_killed_run_with_adapters_resumes_without_its_source(
    text, source, tmp_path, monkeypatch, ema
):
    copy = shutil.copytree(source, tmp_path / 'copy')
    lora = {'model__dense': 'lora(rank=2)', 'train__ema': ema}
    argv = overrides(text, init_from=copy, **lora)
    small_runs.train(tmp_path / 'whole', *argv)
    check_resumes_without(copy, tmp_path, argv, monkeypatch)


def test_adapters_need_parameters_to_adapt(text, tmp_path):
    config = settings(text, model__dense='lora')
    with pytest.raises(
        UserError, match=r'^model\.dense=lora trains only adapters, so i'
    ):
        components.build(config)
    config = settings(text, model__dense='lora', train__freeze='lora', init_from='runs')
    with pytest.raises(UserError, match='^train.freeze=.* every parameter that would'):
        components.build(config)


def test_what_fits_is_taken_where_the_rest_is_ignored(text, source, tmp_path):
    pattern = '^decoder/layer_1/'
    changes = dict(init_from=source, model__decoder__num_layers=2)
    own = prepared(text, tmp_path / 'run', init_ignore=pattern, **changes)
    assert own.warm_start is not None
    taken = mean_of(source)
    found = own.warm_start.variables
    assert found.keys() == taken.keys()
    for name, x in found.items():
        np.testing.assert_array_equal(x, np.float32(taken[name]), err_msg=name)
    anew = own.warm_start.record['anew']
    assert anew and all(name.startswith('decoder/layer_1/') for name in anew)


@pytest.mark.parametrize(
    ('tokenizer', 'changes'),
    [
        ('sentencepiece(vocab_size=150)', {}),
        ('sentencepiece(vocab_size=232, sentinels=12)', {'mesh__tensor': 2}),
        ('characters', {'model__output_bias': True, 'model__tie': 'none'}),
    ],
    ids=str,
)
def test_rows_of_pieces_that_both_have_are_kept(
    text, source, tmp_path, tokenizer, changes
):
    mesh = {key: x for key, x in changes.items() if key.startswith('mesh')}
    model = {key: x for key, x in changes.items() if key not in mesh}
    path = make_source(tmp_path / 'source', text, **model) if model else source
    own = prepared(
        text, tmp_path / 'run', init_from=path, tokenizer=tokenizer, **changes
    )
    there = OpenedRun(path)
    pieces = [
        words.pieces([*range(words.vocab_size)])
        for words in (own.tokenizer, there.tokenizer)
    ]
    assert own.warm_start is not None and 4 < len(set(pieces[0]) & set(pieces[1]))
    assert set(pieces[0]) != set(pieces[1])
    new = freezing.paths(jax.device_get(init_variables(own.model, jax.random.key(0))))
    old = mean_of(path)
    counts = {}
    for name, x in own.warm_start.variables.items():
        if old[name].shape[0] != len(pieces[1]):
            np.testing.assert_array_equal(x, np.float32(old[name]), err_msg=name)
            continue
        expected = np.array(new[name])
        shared = 0
        for i, piece in enumerate(pieces[0]):
            if piece in pieces[1]:
                expected[i] = old[name][pieces[1].index(piece)]
                shared += 1
        np.testing.assert_array_equal(x, expected, err_msg=name)
        counts[name.removeprefix('params/')] = [shared, len(pieces[0])]
    assert own.warm_start.record['rows'] == counts
    assert len(counts) == (4 if model else 1)
    said = setup.describe(own, tmp_path / 'run')
    for name, (shared, rows) in counts.items():
        assert f'{name} ' in said
        assert f'{shared} of {rows} embedding rows from init_from' in said


@pytest.mark.slow
@pytest.mark.parametrize('mesh', [{}, {'mesh__fsdp': 2, 'mesh__tensor': 2}], ids=str)
def test_layers_may_be_scanned_on_either_side(text, tmp_path, mesh):
    layers = {'model__num_layers': 2}
    for scanned in (False, True):
        path = make_source(
            tmp_path / f'{scanned}', text, model__scan_layers=scanned, **layers
        )
        own = prepared(
            text,
            tmp_path / 'run',
            init_from=path,
            init_ignore='layer_1/',
            model__scan_layers=not scanned,
            **layers,
            **mesh,
        )
        key = own.devices.key(0)
        make, _ = own.programs.first_state
        state = make(key, own.warm_start.variables)
        run = OpenedRun(path)
        separate = own.model.with_separate_layers() if not scanned else own.model
        expected = freezing.paths(init_variables(separate, key))
        theirs = freezing.from_paths(mean_of(path))
        from_there = freezing.paths(
            unstack_layers(theirs) if run.model.scans_layers else theirs
        )
        for name in expected:
            if 'layer_1/' not in name:
                expected[name] = np.float32(from_there[name])
        expected = freezing.from_paths(expected)
        if own.model.scans_layers:
            expected = stack_layers(expected)
        jax.tree.map(np.testing.assert_array_equal, state.variables, expected)


def unfinished(path, text):
    make_source(path, text, steps=())


def damaged(path, text):
    make_source(path, text, steps=(1,))
    # In every file of arrays: init_from does not read the optimizer's state, and Orbax
    # decides which file holds what.
    for file in path.glob('checkpoints/1/state/**/d/*'):
        file.write_bytes(bytes(file.stat().st_size))


@pytest.mark.parametrize(
    ('make', 'message'),
    [
        (None, 'not a run directory, because it does not exist'),
        (unfinished, 'has no complete checkpoint yet'),
        (damaged, 'damaged'),
    ],
)
def test_a_source_that_cannot_be_read_is_refused(text, tmp_path, make, message):
    path = tmp_path / 'source'
    if make is not None:
        make(path, text)
    with pytest.raises(UserError, match=message) as error:
        small_runs.train(tmp_path / 'run', *overrides(text, init_from=path))
    assert str(error.value).startswith('init_from: ')
    assert '\n' not in str(error.value)
    assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        (
            {'model__num_layers': 2},
            r'has a different model; missing: decoder/layer_1/.* and \d+ more\. .*'
            '--config.init_ignore=…',
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
def test_what_does_not_fit_is_named(text, source, tmp_path, changes, message):
    argv = overrides(text, init_from=source, **changes)
    for last in ([], ['--dry_run']):
        with pytest.raises(UserError, match=message) as error:
            small_runs.train(tmp_path / 'run', *argv, *last)
        assert str(error.value).startswith('init_from: ')
        assert '\n' not in str(error.value)
        assert not (tmp_path / 'run').exists()


@pytest.fixture(scope='module')
def adapted(text, tmp_path_factory):
    lora = {'model__dense': 'lora(rank=2)', 'init_from': 'elsewhere'}
    path = tmp_path_factory.mktemp('runs') / 'adapted'
    make_source(path, text, **lora)
    record = {'run': 'x', 'published_base': False, 'tokenizer': 'own', 'rows': {}}
    storage.write_json(path / warm_start.NAME, record)
    return path


@pytest.mark.parametrize(
    'dense',
    [
        None,
        'lora(rank=2, alpha=64.0)',
        'lora(rank=2, stabilized=True)',
        'lora(rank=2, dora=True)',
        'lora(rank=3)',
        'lora(rank=2, on="value")',
    ],
)
def test_adapters_of_the_source_need_the_same_arguments(text, adapted, tmp_path, dense):
    argv = overrides(text, init_from=adapted)
    if dense:
        argv.append(f'--config.model.dense={dense}')
    with pytest.raises(UserError) as error:
        small_runs.train(tmp_path / 'run', *argv)
    assert str(error.value) == (
        f'init_from: {adapted} has the adapters lora(rank=2), but model.dense is '
        f"{dense or 'empty'}. To train them further, set --config.model.dense='lora("
        "rank=2)'. To train other parameters, merge them: export "
        f'{adapted} with convert --to=huggingface, convert that folder to a run, and '
        'set init_from to it.'
    )
    assert not (tmp_path / 'run').exists()


def test_equal_adapters_train_further_and_more_matrices_may_get_some(
    text, adapted, tmp_path, monkeypatch
):
    taken = {}

    def mean(config, run, devices):
        names = _paths_of(run.model)
        taken.update(names)
        return SimpleNamespace(variables=freezing.from_paths(names), steps=[2])

    monkeypatch.setattr(warm_start, '_mean', mean)
    more = {'model__dense': 'lora(rank=2, alpha=16.0, on="query|value|up")'}
    own = prepared(text, tmp_path / 'run', init_from=adapted, **more)
    assert own.warm_start.variables.keys() == taken.keys()
    anew = own.warm_start.record['anew']
    assert anew and all('up/lora_' in name for name in anew)
    dropped = {'init_ignore': 'lora_', 'model__dense': 'lora(rank=3)'}
    own = prepared(text, tmp_path / 'run', init_from=adapted, **dropped)
    assert not any('lora_' in name for name in own.warm_start.variables)


def _paths_of(model):
    zeros = init_variables(model, jax.random.key(0))
    return freezing.paths(jax.device_get(zeros))


def test_only_a_published_checkpoint_is_a_published_base(text, source, tmp_path):
    own = prepared(text, tmp_path / 'run', init_from=source)
    assert own.warm_start.record['published_base'] is False


def test_the_setup_lines_count_trained_parameters(text, source, tmp_path):
    changes = {'init_from': source, 'model__dense': 'lora(rank=2, on="up")'}
    lines = []
    for fields in {}, changes, {'train__freeze': 'encoder'}:
        own = prepared(text, tmp_path / 'run', **fields)
        said = setup.describe(own, tmp_path / 'run').splitlines()
        lines += [line.split(maxsplit=1)[1] for line in said if 'parameters ' in line]
    # A and B of one matrix in each stack: 16 · 2 + 2 · 32.
    assert lines[1].endswith(f' ({2 * (16 * 2 + 2 * 32)} trained)')
    assert ' trained)' in lines[2] and 'trained' not in lines[0]
