"""Several seeds in one program: each run is the one that it would have been alone."""

import functools
import json

import jax
import numpy as np
import optax
import pytest
import small_runs
import tiny

from experiments.errors import UserError
from experiments.runs import metrics_log
from experiments.runs.failure import Diverged
from experiments.training import programs, record
from flaxformer_lite.training.train_step import init_state, make_train_step

CLOCKS = (
    *('time', 'tokens_per_second', 'train_seconds', 'parameters_sha256'),
    *('seconds', 'peak_memory_bytes'),
)
SMALL = small_runs.FIELDS | {
    'train.steps': 6,
    'evaluation.every': 4,
    'evaluation.decode': 'greedy',
    'evaluation.sets': 'val',
    'checkpoint.every': 2,
}
VARIANTS = [
    {},
    {'residual': 'pre_norm', 'norm': 'rms', 'feed_forward': 'swiglu'},
    {'positions': 'rotary', 'num_kv_heads': 1},
    {'attention': 'local(window=2)', 'init': 'mu_p'},
    {'norm': 'batch'},
    {'feed_forward': 'mixture(experts=2)'},
    {'residual': 'deepnorm', 'positions': 't5'},
    {'architecture': 'recurrent'},
    {'architecture': 'decoder_only'},
    {'attention': 'blockwise(block=2)'},
    {'attention': 'linear', 'dtype': 'bfloat16'},
]

pytestmark = pytest.mark.usefixtures('cache')


def name(variant):
    return ','.join(map(str, variant.values())) or 'paper'


@pytest.mark.parametrize(
    'variant',
    [pytest.param(v, id=name(v), marks=pytest.mark.slow) for v in VARIANTS],
)
def test_a_step_of_several_runs_is_a_step_of_each(variant):
    model = tiny.model(dropout=0.3, num_layers=1, **variant)
    optimizer = optax.adam(1e-2)
    step = jax.jit(make_train_step(model, optimizer))
    keys = [jax.random.key(seed) for seed in range(3)]
    init = jax.jit(functools.partial(init_state, model, optimizer))
    alone = [init(key) for key in keys]
    rows = [[pair] for pair in tiny.PAIRS]
    batches = [tiny.batch(rows[i:] + rows[:i]) for i in range(3)]
    together = programs._stack(alone)
    several = jax.jit(programs._of_several(make_train_step(model, optimizer)))
    moves_R = np.array([True, False, True])
    waiting = jax.device_get(alone[1])
    for _ in range(3):
        for i in (0, 2):
            alone[i], expected = step(alone[i], batches[i], keys[i])
        batch = programs._stack(batches)
        together, metrics = several(together, batch, programs._stack(keys), moves_R)
        # `expected` is the last run's.
        np.testing.assert_allclose(metrics.sums.loss[2], expected.sums.loss, rtol=1e-5)
    close = dict(rtol=2e-3, atol=2e-4) if 'dtype' in variant else dict(atol=1e-5)
    for i in (0, 2):
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, **close),
            programs._take(together, i).params,
            alone[i].params,
        )
    # A run that does not move stays as it is, to the bit.
    stayed = jax.device_get(programs._take(together, 1))
    jax.tree.map(np.testing.assert_array_equal, stayed, waiting)


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    folder = small_runs.write_text(tmp_path_factory.mktemp('text'), val=4)
    return small_runs.source(folder)


def start(data, path, **changes):
    small_runs.train(path, *small_runs.flags(SMALL | {'data': data}, **changes))


@pytest.fixture(scope='module')
def together(data, tmp_path_factory):
    """The directory of the seeds 3 and 4, trained at once."""
    path = tmp_path_factory.mktemp('runs') / 'together'
    start(data, path, train__seed=3, train__replicas=2)
    return path


def result(path):
    return json.loads((path / 'result.json').read_text())


def plain(values):
    return {k: v for k, v in values.items() if k not in CLOCKS}


def same(one, other):
    """Rows of metrics or results are equal within float32 rounding."""
    assert one.keys() == other.keys()
    for field, value in one.items():
        if isinstance(value, dict):
            same(plain(value), plain(other[field]))
        elif isinstance(value, float):
            np.testing.assert_allclose(value, other[field], rtol=1e-4, err_msg=field)
        else:
            assert value == other[field], field


def files_of(path):
    names = (p.relative_to(path) for p in path.rglob('*') if 'tfevents' not in p.name)
    return {str(name) for name in names if 'ocdbt' not in str(name)}


@pytest.mark.slow
@pytest.mark.parametrize('seed', [3, 4])
def test_each_seed_has_the_run_that_it_would_have_had_alone(
    seed, data, together, tmp_path
):
    own = together / f'train.seed={seed}'
    alone = tmp_path / str(seed)
    start(data, alone, train__seed=seed)
    assert (own / 'config.json').read_text() == (alone / 'config.json').read_text()
    same(plain(result(own)), plain(result(alone)))
    for row, expected in zip(
        metrics_log.read_rows(own), metrics_log.read_rows(alone), strict=True
    ):
        same(plain(row), plain(expected))
    checkpoints = {p.name for p in (own / 'checkpoints').iterdir()}
    assert checkpoints == {p.name for p in (alone / 'checkpoints').iterdir()}
    for file in (alone / 'translations').glob('*.txt'):
        assert (own / 'translations' / file.name).read_text() == file.read_text()


@pytest.mark.slow
def test_four_seeds_on_four_devices_have_the_runs_of_each_alone(data, tmp_path):
    start(data, tmp_path / 'together', train__seed=3, train__replicas=4)
    for seed in (3, 6):
        alone = tmp_path / str(seed)
        start(data, alone, train__seed=seed)
        own = tmp_path / 'together' / f'train.seed={seed}'
        same(plain(result(own)), plain(result(alone)))


@pytest.mark.slow
def test_a_kill_between_two_runs_checkpoints_changes_nothing(
    data, together, tmp_path, monkeypatch
):
    path = tmp_path / 'killed'
    save = record.RunRecord.save

    def killed(self, *arguments, **named):
        # One run is saved at step 4, the other one is not.
        if self.config.train.seed == 4 and self.step == 4:
            raise KeyboardInterrupt
        save(self, *arguments, **named)
        self.checkpoints.wait()

    with monkeypatch.context() as patch:
        patch.setattr(record.RunRecord, 'save', killed)
        with pytest.raises(KeyboardInterrupt):
            start(data, path, train__seed=3, train__replicas=2)
    newest = []
    for seed in (3, 4):
        folders = (path / f'train.seed={seed}' / 'checkpoints').iterdir()
        newest.append(max(int(p.name) for p in folders if p.name.isdigit()))
    assert newest == [4, 2]
    start(data, path, train__seed=3, train__replicas=2)
    for seed in (3, 4):
        found = result(path / f'train.seed={seed}')
        expected = result(together / f'train.seed={seed}')
        assert found['parameters_sha256'] == expected['parameters_sha256']
        assert found['evaluations'] == expected['evaluations']


@pytest.mark.slow
def test_a_seed_that_has_ended_is_only_shown(data, together, tmp_path, capsys):
    ended = together / 'train.seed=4' / 'result.json'
    before = ended.read_bytes()
    start(data, together, train__seed=4, train__replicas=2)
    out = capsys.readouterr().out
    assert ended.read_bytes() == before
    assert 'seed 4:' not in out and 'seed 5:' in out
    alone = tmp_path / 'alone'
    start(data, alone, train__seed=5)
    same(plain(result(together / 'train.seed=5')), plain(result(alone)))


@pytest.mark.slow
def test_a_run_that_diverges_does_not_end_the_others(
    data, together, tmp_path, monkeypatch
):
    settle = record.RunRecord.settle

    def diverge(self, share=1.0):
        settle(self, share)
        if self.config.train.seed == 3 and self.step == 4:
            raise Diverged(4, 'loss or gradient not finite at step 4')

    path = tmp_path / 'diverged'
    monkeypatch.setattr(record.RunRecord, 'settle', diverge)
    with pytest.raises(UserError, match='1 of 2 runs diverged'):
        start(data, path, train__seed=3, train__replicas=2)
    failure = json.loads((path / 'train.seed=3' / 'failure.json').read_text())
    assert (failure['status'], failure['step']) == ('diverged', 4)
    assert not (path / 'train.seed=3' / 'result.json').exists()
    found = result(path / 'train.seed=4')
    expected = result(together / 'train.seed=4')
    assert found['parameters_sha256'] == expected['parameters_sha256']
    assert not (path / 'train.seed=4' / 'failure.json').exists()


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'batch__packed': False}, 'set batch.packed=True'),
        (
            {'train__init_seed': 1, 'train__data_seed': 1, 'train__dropout_seed': 1},
            'leave one empty',
        ),
        ({'train__replicas': 0}, 'train.replicas'),
        ({'train__seed': 2**32 - 1}, 'train.seed'),
    ],
)
def test_what_one_program_cannot_train_is_refused(data, tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        start(data, tmp_path / 'run', **{'train__replicas': 2, **changes})
    assert not (tmp_path / 'run').exists()
