"""Tests of compiled programs: what they overwrite, and how long they live."""

import functools
import gc
import sys
import weakref

import jax
import numpy as np
import pytest
import tiny
from small_runs import Numbers

import experiments.describe
import experiments.sweeps.workers
import experiments.training.loop  # noqa: F401
from configs import wmt_base
from experiments.config import components, load
from experiments.config.decoding import decoding_options
from experiments.config.schema import EvaluationConfig, without_seeds
from experiments.evaluation.opened_run import OpenedRun
from experiments.evaluation.scorer import Scorer
from experiments.evaluation.translator import Translator
from experiments.runtime import compilation, mesh
from experiments.runtime.compilation import ProgramCache
from experiments.training.programs import TrainingPrograms
from flaxformer_lite.training.loss import as_loss
from flaxformer_lite.training.train_step import TrainState, make_train_step

# These hold text, numbers, classes, optax's functions, entry points, or meshes of the
# devices.
CACHES = {
    'experiments.config.schema.fields',
    'experiments.optimizers.optax_specs.makers',
    'experiments.sweeps.analysis._normal_points',
    'experiments.reports.page._library',
    'experiments.runs.reading._warn_once',
    'experiments.runtime.mesh._make',
    'experiments.sweeps.planning._flops_per_step',
    'flaxformer_checkpoints.loading.arrays._pattern',
    'flaxformer_lite.config.spec.entry_points',
    'flaxformer_lite.validation._limited',
}
PACKAGES = (
    'experiments',
    'flaxformer_checkpoints',
    'flaxformer_explain',
    'flaxformer_lite',
    'parallel_grammar',
)


class Words(Numbers):
    vocab_size = tiny.VOCAB

    def pieces(self, ids):
        return list(map(str, ids))


def test_caches_of_modules_hold_no_models_and_programs():
    found = set()
    for name, module in list(sys.modules.items()):
        if name.split('.')[0] in PACKAGES:
            for attribute, value in vars(module).items():
                if hasattr(value, 'cache_info') and value.__module__ == name:
                    found.add(f'{name}.{attribute}')
    assert found <= CACHES  # other tests decide which modules are imported


@pytest.mark.slow
@pytest.mark.skipif(
    jax.__version_info__ < (0, 9),
    reason='JAX keeps the static arguments of functions that it has traced',
)
def test_a_model_is_freed_with_what_runs_it():
    model = tiny.model(num_layers=1)
    variables = tiny.random_like(mesh.abstract_variables(model))
    config = wmt_base.get_config()
    config.model.update(tiny.SIZES | {'num_layers': 1})
    config = without_seeds(load.from_config_dict(config))
    made = as_loss(config.train.loss), components.make_optimizer(config)
    training = TrainingPrograms(config, model, *made, 10, mesh.make_mesh())
    training.step((jax.device_count(), 4))
    settings = EvaluationConfig(decode='greedy', extra_length=3)
    translate = Translator(model, Words(), decoding_options(settings))
    assert len(list(translate(variables, ['3 4']))) == 1
    score = Scorer(model, Words(), 64)
    assert len(list(score(variables, [('3', '4')]))) == 1
    reference = weakref.ref(model)
    del model, training, translate, score
    jax.clear_caches()  # of functions with a static model, such as `generate`
    gc.collect()
    assert reference() is None


@pytest.mark.slow
def test_a_step_with_a_peak_as_its_argument_is_that_with_a_constant():
    model = tiny.model(num_layers=1)
    config = wmt_base.get_config()
    config.optimizer.schedule = 'cosine(peak=0.0123, warmup=0.4)'
    made = components.make_optimizer(load.from_config_dict(config))
    batch = tiny.batch([[pair] for pair in tiny.PAIRS])
    first = TrainState.create(tiny.all_variables(model), made.build(model)[0])

    def step(state, peak):
        update, _ = made.build(model, 10, peak)
        return make_train_step(model, update)(state, batch, jax.random.key(1))[0]

    def trained(step, *peak):
        state = first
        for _ in range(6):  # a warmup of 4
            state = step(state, *peak)
        return jax.device_get(state)

    expected = trained(jax.jit(functools.partial(step, peak=None)))
    with_argument = jax.jit(step)
    found = trained(with_argument, np.float32(0.0123))
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    other = trained(with_argument, np.float32(0.0124))
    assert (other.params['embedding'] != found.params['embedding']).any()


def test_a_cache_makes_a_program_once_and_keeps_the_latest():
    made = []

    def make(name):
        made.append(name)
        return [name]

    cache = ProgramCache(size=2)
    assert cache.get(make, 'a') is cache.get(make, 'a')
    for name in 'bcab':
        assert cache.get(make, name) == [name]
    assert ''.join(made) == 'abcab'
    assert ProgramCache().get(make, 'b') is not cache.get(make, 'b')


def test_a_cache_shares_the_first_of_equal_objects():
    cache, first, equal = ProgramCache(), (1, 2), tuple([1, 2])
    assert first is not equal
    assert cache.shared(first) is first
    assert cache.shared(equal) is first


def test_an_opened_run_compiles_once(monkeypatch):
    model = tiny.model(num_layers=1)
    run = object.__new__(OpenedRun)
    run.model, run.tokenizer = model, Words()
    run.config = load.from_config_dict(wmt_base.get_config())
    run.decoding = decoding_options(run.config.evaluation)
    run.mean = type('Mean', (), {'variables': tiny.all_variables(model)})
    compiled = []
    compile_program = compilation.compile_program

    def count(*arguments, **options):
        compiled.append(arguments)
        return compile_program(*arguments, **options)

    monkeypatch.setattr(compilation, 'compile_program', count)
    for _ in range(2):
        assert len(run.translate(['3 4'])) == len(run.score([('3 4', '5')])) == 1
    assert len(compiled) == 2


def test_the_runners_step_overwrites_the_state_on_each_device():
    config = wmt_base.get_config()
    config.model.update(tiny.SIZES | {'num_layers': 1})
    config = without_seeds(load.from_config_dict(config))
    made = as_loss(config.train.loss), components.make_optimizer(config)
    model = tiny.model(num_layers=1)
    training = TrainingPrograms(config, model, *made, 10, mesh.make_mesh())
    program = training.step((jax.device_count(), 7))
    _, state = training.first_state
    held = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))
    assert program.memory_analysis().alias_size_in_bytes == held
    assert 'callback' not in program.as_text()
