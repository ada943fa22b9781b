"""The gradients of models that have not learnt anything yet."""

from pathlib import Path as File

import jax.numpy as jnp
import numpy as np
import pytest
import small_runs
import tiny
from flax.traverse_util import unflatten_dict
from test_transformer import PYTORCH, our_name

from experiments.command_line import flags
from experiments.reports import arms
from experiments.reports.inside import gradients, pictures
from experiments.reports.inside.gradients import FirstGradients
from experiments.runs import directory
from experiments.runs.reading import read_run as read

pytestmark = pytest.mark.usefixtures('cache')


@pytest.mark.parametrize(
    'name', [pytest.param('post_norm', marks=pytest.mark.slow), 'pre_norm']
)
def test_norms_are_those_of_pytorchs_gradients(name):
    with np.load(File(__file__).parent / 'goldens' / f'{name}.npz') as file:
        arrays = {our_name(path): jnp.asarray(x) for path, x in file.items()}
    golden = unflatten_dict(arrays, sep='/')
    model = tiny.model(**PYTORCH[name], d_model=8, d_k=4, d_v=4, dropout=0.0)
    variables = {'params': golden['params']}
    norms = gradients.layer_norms(model, variables, golden['batch'], 0.1)
    assert set(norms) == {'encoder', 'decoder'}
    for stack, layers in norms.items():
        assert len(layers) == 2
        for i, norm in enumerate(layers):
            gradient = golden['gradients'][stack][f'layer_{i}']['feed_forward']
            expected = np.linalg.norm(np.float64(gradient['down']['kernel']))
            assert norm == pytest.approx(expected, rel=1e-4)


def test_a_layer_that_begins_as_the_identity_has_no_gradient_within():
    """ReZero's factor is 0 at first (Bachlechner et al. 2020)."""
    model = tiny.model(residual='rezero', dropout=0.0)
    variables = tiny.all_variables(model)
    params = variables['params']
    for stack in ('encoder', 'decoder'):
        for layer in ('layer_0', 'layer_1'):
            for name, part in params[stack][layer].items():
                if name.startswith('residual'):
                    part['alpha'] = jnp.zeros_like(part['alpha'])
    batch = tiny.batch([[pair] for pair in tiny.PAIRS])
    norms = gradients.layer_norms(model, {'params': params}, batch, 0.0)
    assert norms == {'encoder': [0.0, 0.0], 'decoder': [0.0, 0.0]}


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
    """Runs that were begun, of three arms; the last differs in its optimizer alone."""
    folder = tmp_path_factory.mktemp('runs')
    (folder / 'text').mkdir()
    text = small_runs.write_text(folder / 'text', val=2)
    fields = small_runs.FIELDS | {'data': small_runs.source(text)}
    paths = []
    for changes in (
        {'model.residual': 'post_norm'},
        {'model.residual': 'pre_norm', 'model.num_layers': 2},
        {'model.residual': 'post_norm', 'optimizer.schedule': 'cosine(peak=1e-3)'},
    ):
        for seed in (0, 1):
            path = folder / str(len(paths))
            overrides = small_runs.flags(fields | changes | {'train.seed': seed})
            settings = flags.settings('wmt_small', overrides)
            with directory.open_run(path, settings.config.to_dict()):
                paths.append(path)
    return [read(path) for path in paths]


@pytest.mark.slow
def test_arms_that_begin_alike_are_measured_once(runs):
    post, pre = gradients.measure(arms.group(runs))
    assert [len(layers) for layers in post.norms['decoder']] == [1, 1]
    assert [len(layers) for layers in pre.norms['encoder']] == [2, 2]
    for arm in (post, pre):
        for of_seed, of_other in arm.norms.values():
            assert min(of_seed) > 0 and of_seed != of_other


def test_figures_and_table_have_a_line_for_each_arm():
    found = [
        FirstGradients('post', {'encoder': [[1.0, 2.0]], 'decoder': [[3.0, 5.0]]}),
        FirstGradients('pre', {'decoder': [[1.0], [3.0]]}),
    ]
    decoder, encoder = pictures.first_gradients(found)
    assert [line.name for line in decoder.lines] == ['post', 'pre']
    assert [line.name for line in encoder.lines] == ['post']
    assert list(decoder.lines[0].y) == [3.0, 5.0] and decoder.lines[0].x == [1, 2]
    assert (decoder.lines[1].y, decoder.lines[1].low, decoder.lines[1].high) == (
        [2.0],
        [1.0],
        [3.0],
    )
    table = pictures.last_gradients(found)
    rows = table.cells()
    assert rows[0][:4] == ['post', '2', '3', '5']
    assert rows[1][1] == '1' and rows[1][4] == '-'
