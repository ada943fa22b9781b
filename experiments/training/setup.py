"""Makes everything that training needs from a config."""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from experiments.command_line import console
from experiments.command_line.screen import Screen
from experiments.config import check, components
from experiments.config.components import Components
from experiments.config.schema import ExperimentConfig, TrainConfig, seed
from experiments.data import corpus, filters, sources, tokenizers
from experiments.data.batches import Batches
from experiments.data.corpus import Corpus
from experiments.data.sources.base import GeneratedSource, Source
from experiments.data.tokenizers.base import Tokenizer
from experiments.errors import UserError, user_errors
from experiments.evaluation import scores, sets, translator
from experiments.evaluation.evaluator import Evaluator
from experiments.evaluation.opened_run import OpenedRun
from experiments.evaluation.sets import Pairs
from experiments.hooks.base import Hook
from experiments.metrics.base import Metric
from experiments.runs import directory, environment
from experiments.runtime import accelerators, compilation, mesh
from experiments.runtime.compilation import ProgramCache
from experiments.runtime.mesh import DeviceMesh
from experiments.training import warm_start
from experiments.training.programs import TrainingPrograms
from experiments.training.result import count_parameters
from experiments.training.teacher import open_teacher
from experiments.training.warm_start import WarmStart
from flaxformer_lite.models.base import Model
from flaxformer_lite.training import freezing, learning_rates


class RunSetup(NamedTuple):
    """Everything that training needs.

    Attributes:
      sets: The sets that are scored at the end.
      frozen: Paths of the parameters that don't train.
      training_text: Digest of the training pairs as text. Unlike the digest of `pairs`,
        it doesn't depend on the tokenizer, so runs can be compared by it.
      set_digests: Digest of each set, including the dev set. Checkpoints store them, so
        a run can't resume on changed text.
      peak: Peak learning rate, if `programs` take it as an argument, so that runs with
        different peaks share one compilation; else None.
      warm_start: Parameters from `init_from`. Always None in a resumed run, whose
        checkpoints already contain them.
    """

    config: ExperimentConfig
    languages: tuple[str, str]
    dev: tuple[str, Pairs]
    sets: dict[str, Pairs]
    tokenizer: Tokenizer
    pairs: Corpus
    training_text: str
    set_digests: dict[str, str]
    batches: Batches
    devices: DeviceMesh
    model: Model
    frozen: frozenset[str]
    steps: int
    programs: TrainingPrograms
    peak: jax.Array | None
    evaluator: Evaluator
    best_metric: Metric
    hooks: dict[str, Hook]
    teacher: OpenedRun | None = None
    warm_start: WarmStart | None = None


def prepare(
    config: ExperimentConfig,
    path: Path,
    screen: Screen,
    program_cache: ProgramCache | None = None,
) -> RunSetup:
    """Makes everything that training needs, with a shared `program_cache` if given.

    Writes only caches.
    """
    accelerators.check()
    cache = compilation.use_cache()
    # Report errors of the config before loading the data.
    run_components = components.build(config)
    components.check_rates(config, run_components.optimizer)
    origin = warm_start.find_origin(config, path, run_components.tokenizer)
    devices = mesh.make_mesh(**vars(config.mesh))
    check.check_backend(config)
    screen.begin('checking components', quiet=True)
    check.check_contracts(config)
    screen.begin('loading data', quiet=True)
    data = filters.apply(sources.load(config.data), run_components.filters)
    metrics = _installed_metrics(run_components, data)
    dev, final = _evaluation_sets(config, data)
    screen.begin('making the tokenizer', quiet=True)
    show_pairs = functools.partial(screen.count, total=None, unit='pairs')
    train = functools.partial(
        tokenizers.train, run_components.tokenizer, data, cache, show_pairs
    )
    vocabulary = warm_start.vocabulary(config, path, origin, train)
    vocabulary.check_directions(data.directions(), data.tags)
    teacher = open_teacher(config.train.teacher, vocabulary)
    screen.begin('tracing the model', quiet=True)
    run_components = _with_tokenizer(run_components, vocabulary, devices)
    program_cache = program_cache or ProgramCache()
    evaluator = Evaluator(
        run_components.model,
        run_components.tokenizer,
        run_components.decoding,
        config.evaluation.batch_tokens,
        metrics,
        path,
        data,
        devices,
        run_components.objective,
        program_cache,
        on_progress=screen.count,
    )
    initial = warm_start.load(config, origin, run_components.model, vocabulary, devices)
    pairs = _tokenize(data, vocabulary, cache, screen)
    batches = _batches(config, run_components, pairs, devices)
    _check_positions(run_components.model, batches, vocabulary, dev | final)
    steps = count_steps(config.train, batches)
    programs, peak = _programs(
        config, run_components, steps, devices, teacher, program_cache
    )
    return RunSetup(
        config=config,
        languages=(data.source, data.target),
        dev=next(iter(dev.items())),
        sets=final,
        tokenizer=vocabulary,
        pairs=pairs,
        training_text=corpus.training_digest(data, cache),
        set_digests=_set_digests(data, dev | final),
        batches=batches,
        devices=devices,
        model=run_components.model,
        frozen=run_components.frozen,
        steps=steps,
        programs=programs,
        peak=peak,
        evaluator=evaluator,
        best_metric=run_components.best_metric,
        hooks=run_components.hooks,
        teacher=teacher,
        warm_start=initial,
    )


def check_plan(config: ExperimentConfig, path: Path, state: str) -> None:
    """Raises UserError as `prepare` would, as far as a plan can know.

    It needs neither the planned devices nor a trained tokenizer, and downloads no data.
    It reads the evaluation sets and, from files, the first training pair.

    Args:
      state: The state of the run's directory, from `check_directory`.
    """
    run_components = components.build(config)
    components.check_rates(config, run_components.optimizer)
    if state == directory.EXTENDED:
        check_can_extend(config, run_components.optimizer.schedule)
    origin = warm_start.find_origin(config, path, run_components.tokenizer)
    if not check.backend_problem(config):
        check.check_contracts(config)
    source = sources.load(config.data)
    data = filters.apply(source, run_components.filters)
    _installed_metrics(run_components, data)
    if not source.may_download:
        _evaluation_sets(config, data)
        if not isinstance(source, GeneratedSource):
            next(iter(data.train()), None)
    vocabulary = origin and origin.tokenizer
    if vocabulary:
        vocabulary.check_directions(data.directions(), data.tags)
    open_teacher(config.train.teacher, vocabulary)
    if origin:
        model = (
            _resized(run_components.model, vocabulary)
            if vocabulary
            else run_components.model
        )
        warm_start.compare(config, origin.run, model)


def check_can_extend(config: ExperimentConfig, learning_rate: optax.Schedule) -> None:
    """Raises UserError if more steps would change past learning rates."""
    if learning_rates.depends_on(learning_rate, 'steps'):
        schedule, train = config.optimizer.schedule, config.train
        raise UserError(
            f'train.steps={train.steps} or train.epochs={train.epochs} exceeds the '
            f'limit that the run started with, and optimizer.schedule={schedule} '
            'depends on the number of steps: past learning rates would change. Choose '
            'another --workdir.'
        )


def count_steps(train: TrainConfig, batches: Batches) -> int:
    """Returns the lower of `train.steps` and `train.epochs`; 0 disables a limit."""
    epochs = train.epochs * batches.batches_per_epoch
    return min(limit for limit in (train.steps, epochs) if limit)


def describe(setup: RunSetup, path: Path) -> str:
    """Formats the facts of a run before it trains."""
    batches = setup.batches
    left_out = [f'{batches.dropped:,} too long', f'{setup.pairs.skipped:,} blank']
    for reason, count in setup.pairs.left_out.items():
        left_out.append(f'{count:,} by {reason}')
    reasons = ', '.join(left_out)
    vocabularies = [setup.tokenizer.source_vocab_size, setup.tokenizer.vocab_size]
    shapes = ', '.join(f'{rows} × {length}' for rows, length in batches.shapes)
    kind = jax.devices()[0].device_kind
    devices = f'{jax.device_count()} × {kind}'
    dtype = setup.config.model.dtype
    fastest = environment.fastest_dtype(jax.devices()[0])
    if fastest not in (dtype, 'float32'):
        dtype += f' (--config.model.dtype={fastest} is faster here)'
    epochs = setup.steps / batches.batches_per_epoch
    variables = mesh.abstract_variables(setup.model, setup.devices)
    matched_rows = {}
    if setup.warm_start:
        for name, (shared, rows) in setup.warm_start.record['rows'].items():
            matched_rows[name] = (
                f'initialized {shared:,} of {rows:,} embedding rows from init_from '
                '(matched by token)'
            )
    return console.facts(
        {
            'run': path,
            'data': f'{setup.config.data} ({"-".join(setup.languages)})',
            'training pairs': f'{len(setup.pairs) - batches.dropped:,} '
            f'(left out: {reasons})',
            'evaluation sets': ', '.join(
                f'{name} {len(pairs):,}' for name, pairs in setup.sets.items()
            ),
            'vocabulary': ' and '.join(f'{x:,}' for x in vocabularies if x),
            'parameters': _count_trained(variables['params'], setup.frozen),
            'batch': f'{shapes}; {batches.target_tokens_per_batch:,.0f} target tokens, '
            f'{batches.padding_share:.1%} padding',
            'steps': f'{setup.steps:,} ({epochs:.1f} epochs)',
            'loss': f'{setup.config.train.loss} (evaluation: without label smoothing)',
            'devices': f'{devices} {setup.devices.describe()}'.rstrip(),
            'dtype': dtype,
            **matched_rows,
        }
    )


def _installed_metrics(run_components: Components, data: Source) -> list[Metric]:
    targets = [target for _, target in data.directions()]
    return scores.installed_metrics(run_components.metrics, data.target, *targets)


def _count_trained(params: Any, frozen: frozenset[str]) -> str:
    """Formats the number of parameters, and of the trained ones if some are frozen."""
    text = f'{count_parameters(params):,}'
    if not frozen:
        return text
    trained, _ = freezing.split(params, frozen)
    return f'{text} ({count_parameters(trained):,} trained)'


def _evaluation_sets(
    config: ExperimentConfig, data: Source
) -> tuple[dict[str, Pairs], dict[str, Pairs]]:
    available = data.evaluation()
    final = sets.select(available, config.evaluation.sets, 'evaluation.sets')
    dev = sets.select(available, next(iter(available)), 'data')
    return dev, final


def _set_digests(data: Source, chosen: Mapping[str, Pairs]) -> dict[str, str]:
    return {
        name: sets.digest(pairs, data.documents(name)) for name, pairs in chosen.items()
    }


def _with_tokenizer(
    run_components: Components, vocabulary: Tokenizer, devices: DeviceMesh
) -> Components:
    # On a short text, the tokenizer can have fewer pieces than the config asks for.
    with user_errors():
        model = _resized(run_components.model, vocabulary)
        variables = mesh.abstract_variables(model, devices)
    mesh.check_divides(devices.mesh, variables)
    objective = run_components.objective and run_components.objective.with_tokenizer(
        vocabulary
    )
    return run_components._replace(
        tokenizer=vocabulary, model=model, objective=objective
    )


def _resized(model: Model, vocabulary: Tokenizer) -> Model:
    return model.clone(
        vocab_size=vocabulary.vocab_size,
        source_vocab_size=vocabulary.source_vocab_size,
        special_tokens=vocabulary.special_tokens,
    )


def _tokenize(
    data: Source, vocabulary: Tokenizer, cache: Path, screen: Screen
) -> Corpus:
    def show_progress(pairs):
        screen.begin('tokenizing')
        screen.count(pairs, None, 'pairs')

    return corpus.prepare(data, vocabulary, cache, show_progress)


def _batches(
    config: ExperimentConfig,
    run_components: Components,
    pairs: Corpus,
    devices: DeviceMesh,
) -> Batches:
    return Batches(
        pairs,
        tokens=config.batch.tokens,
        max_length=config.batch.max_length,
        packed=config.batch.packed,
        seed=seed(config, 'data_seed'),
        rows_multiple=config.batch.rows_multiple,
        accumulate=config.train.accumulate,
        devices=devices.row_shards,
        tokenizer=run_components.tokenizer,
        objective=run_components.objective,
    )


def _programs(
    config: ExperimentConfig,
    run_components: Components,
    steps: int,
    devices: DeviceMesh,
    teacher: OpenedRun | None,
    program_cache: ProgramCache,
) -> tuple[TrainingPrograms, jax.Array | None]:
    """Returns the programs, and the peak that they take as an argument."""
    peak = run_components.optimizer.peak
    if peak is not None:
        one = config.optimizer.schedule.with_arguments(peak=1.0)
        settings = dataclasses.replace(config.optimizer, schedule=one)
        config = dataclasses.replace(config, optimizer=settings)
        peak = mesh.put(np.float32(peak), devices.everywhere())
    programs = TrainingPrograms.of(config, run_components, steps, devices, teacher)
    return program_cache.shared(programs), peak


def _check_positions(
    model: Model, batches: Batches, vocabulary: Tokenizer, scored: Mapping[str, Pairs]
) -> None:
    """Raises UserError if a text is longer than the learned positions of the model.

    Also reads vector sources, to report missing ones.
    """
    if model.max_length is None and not vocabulary.reads_vectors:
        return
    longest = [batches.longest]
    for pairs in scored.values():
        tokens = corpus.tokenize(sets.first_references(pairs), vocabulary)
        longest.append(int(tokens.lengths().max()))
    translator.check_lengths(model, longest)
