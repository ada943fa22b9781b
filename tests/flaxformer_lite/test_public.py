"""Tests of each public function with each kind of model."""

import ast
import functools
import importlib
import subprocess
import sys
import textwrap
import tomllib
import types
from pathlib import Path

import jax
import numpy as np
import optax
import pytest
import tiny
import typed_api
from tiny import slow

import flaxformer_lite
from flaxformer_lite import interventions
from flaxformer_lite.config import variants
from flaxformer_lite.config.schema import ModelConfig
from flaxformer_lite.interventions.context import with_separate_layers
from flaxformer_lite.special_tokens import SpecialTokens

SOURCES = [[4, 5, 6, 7], [10, 4], [9]]
TARGETS = [[5, 9], [8, 6, 7], [4]]
MODELS = {
    'scanned': {'scan_layers': True},
    'decoder_only': {'architecture': 'decoder_only'},
    'recurrent': {'architecture': 'recurrent'},
    'plain': {},
}
ENSEMBLES = {'scanned, recurrent': ['scanned', 'recurrent']}
# Other default tests cover each function.
CASES = tiny.cases(MODELS, fast=())


@pytest.fixture(params=CASES)
def single_model(request):
    return opened(request.param)


@pytest.fixture(params=ENSEMBLES)
def ensemble(request):
    return opened(request.param)


@pytest.fixture(params=[*CASES, *map(slow, ENSEMBLES)])
def model_or_ensemble(request):
    return opened(request.param)


@functools.cache
def opened(name):
    if name in ENSEMBLES:
        ensemble = flaxformer_lite.Ensemble(list(map(opened, ENSEMBLES[name])))
        return ensemble.model, ensemble.variables
    model = tiny.model(num_layers=1, **MODELS[name])
    return model, tiny.all_variables(model)


def with_end(model, rows):
    return [[*row, model.special_tokens.eos] for row in rows]


def batch_of(model, targets=None):
    if targets is None:
        targets = with_end(model, TARGETS)
    sources = with_end(model, SOURCES)
    return flaxformer_lite.make_batch(sources, targets, model=model)


def test_generated_targets_have_the_log_probabilities_of_scoring(model_or_ensemble):
    model, variables = model_or_ensemble
    end, sources = model.special_tokens.eos, with_end(model, SOURCES)
    beam = flaxformer_lite.decoding.BeamSearch(beams=2, alpha=0.0)
    found = flaxformer_lite.generate(model, variables, sources, beam, max_length=5)
    targets = [tokens.tolist() for tokens in found.tokens[:, 0]]
    targets = [tokens[: tokens.index(end) + 1] for tokens in targets]
    scores = tiny.log_probs(model, variables, batch_of(model, targets))
    np.testing.assert_allclose(scores.log_p.sum(1), found.scores[:, 0], atol=1e-3)


def test_logits_of_a_call_have_the_log_probabilities_of_scoring(model_or_ensemble):
    model, variables = model_or_ensemble
    batch = batch_of(model)
    logits = tiny.apply(model, variables, batch['source'], batch['inputs'])
    log_p = np.asarray(jax.nn.log_softmax(logits))
    labels = np.asarray(batch['labels'][..., None])
    expected = np.take_along_axis(log_p, labels, -1)[..., 0]
    expected = np.where(batch['target_segments'] > 0, expected, 0)
    found = tiny.log_probs(model, variables, batch).log_p
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_recorded_values_can_be_set_again(single_model):
    model, variables = single_model
    batch = batch_of(model)
    recorded = tiny.record(model, variables, batch)
    assert recorded.weights
    values = dict(list(recorded.values.items())[:3])
    functions = {name: interventions.set_to(x) for name, x in values.items()}
    separate, separate_variables = with_separate_layers(model, variables)

    @jax.jit
    def patched(variables, functions):
        with flaxformer_lite.intervene(functions):
            return separate.apply(variables, batch['source'], batch['inputs'])

    found = patched(separate_variables, functions)
    expected = tiny.apply(model, variables, batch['source'], batch['inputs'])
    is_token = np.asarray(batch['target_segments'] > 0)
    np.testing.assert_allclose(found[is_token], expected[is_token], atol=1e-4)
    assert tiny.attention_stats(model, variables, batch)


def test_training_continues_from_given_variables(single_model):
    model, variables = single_model
    batch = batch_of(model)
    optimizer = optax.sgd(1e-3)
    state = flaxformer_lite.TrainState.create(variables, optimizer)
    step = jax.jit(flaxformer_lite.make_train_step(model, optimizer))
    state, _ = step(state, batch, jax.random.key(0))
    before = tiny.loss_sums(model, variables, batch)
    after = tiny.loss_sums(model, state.variables, batch)
    assert np.isfinite(after.loss) and after.loss != before.loss
    log_p = tiny.log_probs(model, variables, batch).log_p
    np.testing.assert_allclose(before.nll, -log_p.sum(), rtol=1e-4)


def test_ensemble_rejects_functions_of_a_single_model(ensemble):
    model, variables = ensemble
    batch = batch_of(model)
    optimizer = optax.sgd(1e-3)
    state = flaxformer_lite.TrainState.create(variables, optimizer)
    key = jax.random.key(0)
    for call in (
        lambda: flaxformer_lite.record(model, variables, batch),
        lambda: flaxformer_lite.attention_stats(model, variables, batch),
        lambda: flaxformer_lite.loss_sums(model, variables, batch),
        lambda: flaxformer_lite.init_state(model, optimizer, key),
        lambda: flaxformer_lite.make_train_step(model, optimizer)(state, batch, key),
    ):
        with pytest.raises(ValueError, match='model: ensembles support only __call__'):
            call()


def test_functions_of_a_model_reject_an_ensemble():
    model = tiny.model(num_layers=1)
    variables = tiny.all_variables(model)
    ensemble = flaxformer_lite.Ensemble([(model, variables)])
    optimizer, batch = optax.sgd(1e-3), batch_of(model)
    key = jax.random.key(0)
    for call in (
        lambda: flaxformer_lite.init_state(ensemble, optimizer, key),
        lambda: flaxformer_lite.make_train_step(ensemble, optimizer),
        lambda: flaxformer_lite.generate(ensemble, variables, SOURCES),
        lambda: flaxformer_lite.log_probs(ensemble, variables, batch),
        lambda: flaxformer_lite.record(ensemble, variables, batch),
        lambda: flaxformer_lite.make_batch(SOURCES, TARGETS, model=ensemble),
        lambda: ensemble.apply(variables, batch['source'], batch['inputs']),
    ):
        with pytest.raises(ValueError, match='model: an Ensemble is not a model'):
            call()
    with pytest.raises(AttributeError, match="no attribute 'modle'"):
        _ = ensemble.modle


def test_ensemble_needs_models_of_one_vocabulary():
    special = SpecialTokens(padding=1, bos=2, eos=2)
    model = tiny.model()
    for models, message in (
        ([model, model.clone(vocab_size=14)], 'members: their vocab_size differ'),
        (
            [model, model.clone(special_tokens=special)],
            'members: their special_tokens differ',
        ),
        ([], 'members: an ensemble needs at least one'),
    ):
        with pytest.raises(ValueError, match=message):
            flaxformer_lite.Ensemble([(model, {}) for model in models])


def test_parameters_are_not_variables_and_batches_need_every_array():
    model, variables = opened('plain')
    params, rows = variables['params'], tiny.pairs_batch()
    for call in (
        lambda: flaxformer_lite.record(model, params, rows),
        lambda: flaxformer_lite.attention_stats(model, params, rows),
        lambda: flaxformer_lite.generate(model, params, SOURCES),
        lambda: flaxformer_lite.loss_sums(model, params, rows),
    ):
        with pytest.raises(ValueError, match="{'params': …}"):
            call()
    del rows['labels']
    optimizer = optax.sgd(1.0)
    state = flaxformer_lite.TrainState.create(variables, optimizer)
    step = flaxformer_lite.make_train_step(model, optimizer)
    for call in (
        lambda: step(state, rows, jax.random.key(0)),
        lambda: flaxformer_lite.loss_sums(model, variables, rows),
        lambda: flaxformer_lite.attention_stats(model, variables, rows),
    ):
        with pytest.raises(ValueError, match='batch: missing labels'):
            call()


@pytest.mark.slow
def test_training_and_evaluation_smooth_labels_by_the_same_default():
    model = tiny.model(num_layers=1, dropout=0.0)
    variables, rows = tiny.all_variables(model), tiny.pairs_batch()
    optimizer = optax.sgd(1.0)
    state = flaxformer_lite.TrainState.create(variables, optimizer)
    step = jax.jit(flaxformer_lite.make_train_step(model, optimizer))
    _, metrics = step(state, rows, jax.random.key(0))
    sums = tiny.loss_sums(model, variables, rows)
    np.testing.assert_allclose(sums.loss, metrics.sums.loss, rtol=1e-6)
    assert abs(sums.loss - sums.nll) > 0.1  # which is not smoothed


def test_former_names_raise_errors_that_name_their_replacement():
    for name, replacement in (
        ('build', 'config.build'),
        ('from_pretrained', 'flaxformer_checkpoints.from_pretrained'),
        ('explanations', 'flaxformer_explain.explanations'),
        ('patch', 'interventions.set_to'),
        ('ablation_masks', 'interventions.scale'),
    ):
        with pytest.raises(AttributeError, match=replacement):
            getattr(flaxformer_lite, name)


def test_public_names_equal_the_names_of_their_objects():
    for package in [flaxformer_lite, *namespaces()]:
        shown = {name for name in dir(package) if not name.startswith('__')}
        assert shown == set(package.__all__), package.__name__
        for name in package.__all__:
            found = getattr(package, name)
            if isinstance(found, type | types.FunctionType | types.ModuleType):
                assert found.__name__.rpartition('.')[2] == name


def test_public_names_are_found_after_all_modules_are_imported():
    code = """
        import importlib, pkgutil, sys
        import flaxformer_lite
        assert 'jax' not in sys.modules
        path = flaxformer_lite.__path__
        for module in pkgutil.walk_packages(path, 'flaxformer_lite.'):
            importlib.import_module(module.name)
        assert flaxformer_lite.config.build({}, 10).vocab_size == 10
        assert flaxformer_lite.LossScale.for_model
        assert set(flaxformer_lite.__all__) < set(dir(flaxformer_lite))
    """
    subprocess.run([sys.executable, '-c', textwrap.dedent(code)], check=True)


def test_typed_file_uses_each_public_name_and_pyright_checks_it_strictly():
    file = Path(typed_api.__file__)
    root = file.parents[2]
    pyright = tomllib.loads((root / 'pyproject.toml').read_text('utf-8'))['tool']
    assert file.relative_to(root).as_posix() in pyright['pyright']['include']
    code = file.read_text('utf-8')
    assert code.startswith('# pyright: strict')
    assert 'type: ignore' not in code and 'cast(' not in code
    used = {ast.unparse(x) for x in ast.walk(ast.parse(code)) if is_attribute(x)}
    for name in flaxformer_lite.__all__:
        found = getattr(flaxformer_lite, name)
        assert f'fl.{name}' in used
        if isinstance(found, types.ModuleType):
            assert {f'fl.{name}.{member}' for member in found.__all__} <= used


def is_attribute(node):
    return isinstance(node, ast.Attribute)


def test_typed_file_runs():
    jax.eval_shape(typed_api.use_everything, jax.random.key(0))
    assert len(typed_api.components()) > 60
    assert typed_api.from_a_config().vocab_size == typed_api.VOCAB_SIZE
    assert typed_api.sizes() == 6


@pytest.mark.slow
def test_components_of_the_typed_file_keep_their_contracts():
    assert not [x for x in typed_api.contracts() if x.holds is False]


@pytest.mark.slow
def test_strategy_and_processors_of_the_typed_file_decode():
    key = jax.random.key(0)
    model = typed_api.small_transformer()
    variables = typed_api.train(model, key).variables
    texts = typed_api.best_texts(typed_api.decode(model, variables, key))
    assert all(text[0] == 5 and 7 not in text for text in texts)


def namespaces():
    """Returns the packages whose public names are imported at their first use."""
    found = [getattr(flaxformer_lite, name) for name in flaxformer_lite.__all__]
    modules = [x for x in found if isinstance(x, types.ModuleType)]
    assert len(modules) == 16
    return [module for module in modules if hasattr(module, '__path__')]


def test_namespaces_export_the_class_of_each_file_and_describe_it():
    folders = [*variants.FOLDERS.values(), variants.SCHEDULES, variants.LOSSES]
    # Models are at the top, and decoding has a namespace for two folders.
    folders = [x for x in folders if x.package != 'flaxformer_lite.models']
    exports = {folder: importlib.import_module(folder.package) for folder in folders}
    for folder in variants.STRATEGIES, variants.PROCESSORS:
        exports[folder] = flaxformer_lite.decoding
    for folder, package in exports.items():
        for name in folder.names():
            cls = folder.load(name)
            assert getattr(package, cls.__name__) is cls
    for package in namespaces():
        for name in package.__all__:
            assert f'`{name}' in package.__doc__, (package.__name__, name)


def test_unknown_names_raise_errors_with_the_closest_name():
    for package, name, closest in (
        (flaxformer_lite, 'init_stat', 'init_state'),
        (flaxformer_lite.attention, 'softmx', 'Softmax'),
    ):
        with pytest.raises(AttributeError, match=f"did you mean '{closest}'"):
            getattr(package, name)


def test_defaults_are_those_of_the_papers_base_model():
    paper = dict(
        d_model=512,
        num_layers=6,
        num_heads=8,
        d_ff=2048,
        dropout=0.1,
        attention='softmax',
        positions='sinusoidal',
        norm='layer',
        residual='post_norm',
        feed_forward='relu',
        tie='all',
        scale_embeddings=True,
    )
    assert ModelConfig.of(paper) == ModelConfig()
