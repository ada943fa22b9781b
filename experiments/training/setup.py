"""The setup of a run: all that training needs, made from a config."""

import functools
import hashlib
import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import optax

from experiments.command_line.screen import Screen
from experiments.command_line.stopping import Stop
from experiments.config import check
from experiments.config.schema import ExperimentConfig, seed
from experiments.data import corpus, set_names, sources, tokenizer
from experiments.data.batches import Batches
from experiments.data.corpus import Corpus
from experiments.data.sources import Source
from experiments.data.tokenizer import Tokenizer
from experiments.errors import UserError
from experiments.evaluation import sets, translator
from experiments.evaluation.sets import Pairs
from experiments.optimizers import optimizer
from experiments.runs import initial, trained_run
from experiments.runs.initial import Initial
from experiments.runtime import cache, compilation, mesh
from experiments.runtime.mesh import DeviceMesh, Layout
from flaxformer_lite.models.base import Model
from flaxformer_lite.ranges import LARGEST_INT

T = TypeVar('T')


class Memo:
    """What runs of one process share: of each thing the one that was made last."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Hashable, Any]] = {}

    def __call__(self, name: str, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` returns, or returned when it was called with the same key."""
        if name not in self._kept or self._kept[name][0] != key:
            self._kept.pop(name, None)  # before: two may be more than memory holds
            self._kept[name] = key, make()
        return self._kept[name][1]


class RunSetup(NamedTuple):
    """What a config was made into.

    Attributes:
      direction: the languages, such as 'en-de'.
      dev: name and pairs of the set that training is watched by.
      sets: the evaluation sets that are scored at the end, by name.
      devices: that it is trained and scored on.
      steps: the length of the training.
      initial: what it begins with of another run; None where it has begun.
    """

    config: ExperimentConfig
    direction: str
    dev: tuple[str, Pairs]
    sets: dict[str, Pairs]
    tokenizer: Tokenizer
    pairs: Corpus
    batches: Batches
    devices: DeviceMesh
    model: Model
    optimizer: optax.GradientTransformation
    schedule: optax.Schedule
    steps: int
    initial: Initial | None = None


def prepare(
    config: ExperimentConfig,
    path: Path,
    screen: Screen,
    stop: Stop,
    memo: Memo | None = None,
    runs: int = 1,
) -> RunSetup:
    """Makes all that training needs, and writes nothing but caches.

    Args:
      memo: keeps the text of a run for the next one; by default nothing is kept.
      runs: how many one program trains at once, of which this is one.

    Raises:
      UserError: a field, a file or a text that cannot be worked with.
      Stopped: a stop was asked for.
    """
    cache.folder()  # that there can be none is said before anything is done
    compilation.use_cache()
    check.check_config(config)
    optimizer.check_rates(config)
    origin = initial.source(config, path)
    devices = mesh.of(config.mesh.data, config.mesh.fsdp, config.mesh.tensor)
    # What it cannot be built with is said before the data is loaded.
    model = check.build_model(config, config.tokenizer.vocab_size)
    screen.begin('loading data', quiet=True)
    memo = Memo() if memo is None else memo
    source = memo('source', config.data, lambda: sources.load(config.data))
    dev, final = _evaluation_sets(config, memo('sets', config.data, source.evaluation))
    screen.begin('making the tokenizer', quiet=True)
    make = functools.partial(_tokenizer, config, source, memo, screen, stop)
    vocabulary = initial.vocabulary(config, path, origin, make)
    initial.check_tokenizer(config, path, vocabulary)
    # Of a short text the tokenizer has fewer pieces than were asked for.
    model = _traced(model, vocabulary, devices)
    taken = initial.load(config, origin, model, vocabulary, devices)
    pairs = _tokenised(config, source, vocabulary, memo, screen, stop)
    initial.check_text(config, path, pairs.digest)
    batches = _batches(config, pairs, Layout(devices, runs))
    _check_positions(model, batches, vocabulary, dev | final)
    steps = length(config, batches)
    update, schedule = optimizer.make(config, model, steps)
    return RunSetup(
        config=config,
        direction=f'{source.source}-{source.target}',
        dev=next(iter(dev.items())),
        sets=final,
        tokenizer=vocabulary,
        pairs=pairs,
        batches=batches,
        devices=devices,
        model=model,
        optimizer=update,
        schedule=schedule,
        steps=steps,
        initial=taken,
    )


def digests(setup: RunSetup) -> dict[str, str]:
    """What tells its text, as it is tokenised, from any other."""
    texts = [[name, list(pairs)] for name, pairs in (setup.dev, *setup.sets.items())]
    return {
        'tokenizer': setup.tokenizer.digest,
        'training pairs': setup.pairs.digest,
        'evaluation sets': hashlib.sha256(json.dumps(texts).encode()).hexdigest(),
    }


def prepare_seeds(
    runs: Sequence[tuple[ExperimentConfig, Path]],
    screen: Screen,
    stop: Stop,
    memo: Memo | None = None,
) -> list[RunSetup]:
    """The setups of runs, by config and directory, that differ in their seeds alone.

    Raises:
      UserError: as `prepare`; or the runs cannot be trained by one program.
      Stopped: a stop was asked for.
    """
    (config, path), *others = runs
    first = prepare(config, path, screen, stop, memo, len(runs))
    setups = [first]
    taken = first.initial
    for config, path in others:
        initial.check_tokenizer(config, path, first.tokenizer)
        if taken is None:  # as where only the first has begun
            origin = initial.source(config, path)
            taken = initial.load(
                config, origin, first.model, first.tokenizer, first.devices
            )
        batches = _batches(config, first.pairs, Layout(first.devices, len(runs)))
        setups.append(first._replace(config=config, batches=batches))
    if others:
        _check_one_program(setups)
    return [setup._replace(initial=taken) for setup in setups]


def _check_one_program(setups: Sequence[RunSetup]) -> None:
    """Refuses several seeds whose steps one program cannot make."""
    first, *others = setups
    refused = f'train.replicas={len(setups)}'
    shapes = first.batches.shapes
    if len(shapes) > 1:
        raise UserError(
            f'{refused} needs batches of one shape, and with batch.packed=False there '
            f'are {len(shapes)}: set batch.packed=True, or train seed by seed'
        )
    for other in others:
        steps = length(other.config, other.batches)
        if steps != first.steps:
            raise UserError(
                f'{refused}: train.epochs={first.config.train.epochs} are '
                f'{first.steps:,} steps with one seed and {steps:,} with another: set '
                'train.steps instead, or train seed by seed'
            )
    train = first.config.train
    if None not in (train.init_seed, train.data_seed, train.dropout_seed):
        raise UserError(
            f'{refused} trains the seeds from train.seed on, of which nothing follows '
            'where init_seed, data_seed and dropout_seed are set: leave one empty'
        )


def _evaluation_sets(
    config: ExperimentConfig, available: Mapping[str, Pairs]
) -> tuple[dict[str, Pairs], dict[str, Pairs]]:
    """The set that is scored during training, and those that are scored at the end."""
    final = sets.chosen(available, config.evaluation.sets, 'evaluation.sets')
    dev = sets.chosen(available, next(iter(available)), 'data')
    set_names.check(dev | final)
    return dev, final


def _tokenizer(
    config: ExperimentConfig, source: Source, memo: Memo, screen: Screen, stop: Stop
) -> Tokenizer:
    def progress(pairs: int) -> None:
        stop.check()
        screen.count(pairs, None, 'pairs')

    size = config.tokenizer.vocab_size

    def make() -> Tokenizer:
        if config.tokenizer.kind == 'published':
            raise UserError(
                'tokenizer.kind=published is of a run that experiments.convert makes: '
                'give its directory as init_from, to train on with it, or leave it out'
            )
        return tokenizer.train(source, size, cache.folder(), progress)

    return memo('tokenizer', (config.data, size), make)


def _traced(model: Model, vocabulary: Tokenizer, devices: DeviceMesh) -> Model:
    """The model of a vocabulary, once it was traced: it can run on the devices."""
    tokens = vocabulary.special_tokens
    model = model.clone(vocab_size=vocabulary.vocab_size, special_tokens=tokens)
    try:
        variables = trained_run.abstract_variables(model, devices)
    except ValueError as error:
        raise UserError(str(error)) from None
    mesh.check_divides(devices.mesh, variables)
    return model


def _tokenised(
    config: ExperimentConfig,
    source: Source,
    vocabulary: Tokenizer,
    memo: Memo,
    screen: Screen,
    stop: Stop,
) -> Corpus:
    def progress(pairs: int) -> None:
        stop.check()
        screen.begin('tokenising')
        screen.count(pairs, None, 'pairs')

    def make() -> Corpus:
        return corpus.prepare(source, vocabulary, cache.folder(), progress=progress)

    return memo('pairs', (config.data, vocabulary.digest), make)


def _batches(config: ExperimentConfig, pairs: Corpus, layout: Layout) -> Batches:
    return Batches(
        pairs,
        tokens=config.batch.tokens,
        max_length=config.batch.max_length,
        packed=config.batch.packed,
        seed=seed(config, 'data_seed'),
        rows_multiple=config.batch.rows_multiple,
        accumulate=config.train.accumulate,
        devices=layout.row_shards,
    )


def _check_positions(
    model: Model, batches: Batches, vocabulary: Tokenizer, scored: dict[str, Pairs]
) -> None:
    """Refuses text that is longer than the positions that the model learns."""
    if model.max_length is None:
        return
    translator.check_lengths(model, [batches.longest])
    for pairs in scored.values():
        tokens = corpus.tokenize(list(pairs), vocabulary)
        translator.check_lengths(model, tokens.lengths().flat)


def length(config: ExperimentConfig, batches: Batches) -> int:
    """How many steps: `train.steps` or `train.epochs`, the sooner; 0 sets no limit."""
    epochs = config.train.epochs * batches.batches_per_epoch
    steps = min(limit for limit in (config.train.steps, epochs) if limit)
    if steps > LARGEST_INT:
        raise UserError(
            f'train.epochs={config.train.epochs} are {steps:,} steps, and more than '
            f'{LARGEST_INT:,} cannot be counted: give fewer'
        )
    return steps
