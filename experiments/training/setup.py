"""The setup of a run: all that training needs, made from a config."""

from pathlib import Path
from typing import NamedTuple

import jax
import optax

from experiments.command_line.errors import UserError
from experiments.command_line.screen import Screen
from experiments.command_line.stopping import Stop
from experiments.config import check
from experiments.config.derived import seed
from experiments.config.schema import ExperimentConfig
from experiments.data import corpus, set_names, sources, tokenizer
from experiments.data.batches import Batches
from experiments.data.corpus import Corpus
from experiments.data.sources import Source
from experiments.data.tokenizer import Tokenizer
from experiments.evaluation import sets, translator
from experiments.evaluation.sets import Pairs
from experiments.optimizers import optimizer
from experiments.runs import trained_run
from experiments.runtime import cache, compilation
from flaxformer_lite.models.base import Model
from flaxformer_lite.ranges import LARGEST_INT


class RunSetup(NamedTuple):
    """What a config was made into.

    Attributes:
      direction: the languages, such as 'en-de'.
      dev: name and pairs of the set that training is watched by.
      sets: the evaluation sets that are scored at the end, by name.
      steps: the length of the training.
    """

    config: ExperimentConfig
    direction: str
    dev: tuple[str, Pairs]
    sets: dict[str, Pairs]
    tokenizer: Tokenizer
    pairs: Corpus
    batches: Batches
    model: Model
    optimizer: optax.GradientTransformation
    schedule: optax.Schedule
    steps: int


def prepare(
    config: ExperimentConfig, path: Path, screen: Screen, stop: Stop
) -> RunSetup:
    """Makes all that training needs, and writes nothing but caches.

    Raises:
      UserError: a field, a file or a text that cannot be worked with.
      Stopped: a stop was asked for.
    """
    cache_folder = cache.folder()
    compilation.keep_programs()
    check.check(config)
    optimizer.check_rates(config)
    # What it cannot be built with is said before the data is loaded.
    model = check.build_model(config, config.tokenizer.vocab_size)
    screen.begin('loading data', quiet=True)
    source = sources.load(config.data)
    dev, final = _evaluation_sets(config, source)
    screen.begin('making the tokenizer', quiet=True)
    vocabulary = tokenizer.train(source, config.tokenizer.vocab_size, cache_folder)
    tokenizer.check_same(vocabulary, path / trained_run.TOKENIZER)
    # Of a short text the tokenizer has fewer pieces than were asked for.
    model = _traced(model.clone(vocab_size=vocabulary.vocab_size))
    pairs = _tokenised(source, vocabulary, screen, stop)
    batches = _batches(config, pairs)
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
        model=model,
        optimizer=update,
        schedule=schedule,
        steps=steps,
    )


def _evaluation_sets(
    config: ExperimentConfig, source: Source
) -> tuple[dict[str, Pairs], dict[str, Pairs]]:
    """The set that is scored during training, and those that are scored at the end."""
    available = source.evaluation()
    final = sets.chosen(available, config.evaluation.sets, 'evaluation.sets')
    dev = sets.chosen(available, next(iter(available)), 'data')
    set_names.check(dev | final)
    return dev, final


def _traced(model: Model) -> Model:
    """The model, once it was traced: that shows whether it can run."""
    try:
        trained_run.abstract_variables(model)
    except ValueError as error:
        raise UserError(str(error)) from None
    return model


def _tokenised(
    source: Source, vocabulary: Tokenizer, screen: Screen, stop: Stop
) -> Corpus:
    def progress(pairs: int) -> None:
        stop.check()
        screen.begin('tokenising')
        screen.count(pairs, None, 'pairs')

    return corpus.prepare(source, vocabulary, cache.folder(), progress=progress)


def _batches(config: ExperimentConfig, pairs: Corpus) -> Batches:
    return Batches(
        pairs,
        tokens=config.batch.tokens,
        max_length=config.batch.max_length,
        packed=config.batch.packed,
        seed=seed(config, 'data_seed'),
        rows_multiple=jax.device_count(),
        accumulate=config.train.accumulate,
    )


def _check_positions(
    model: Model,
    batches: Batches,
    vocabulary: Tokenizer,
    evaluation_sets: dict[str, Pairs],
) -> None:
    """Refuses text that is longer than the positions that the model learns."""
    if model.max_length is None:
        return
    translator.check_lengths(model, [batches.longest])
    for pairs in evaluation_sets.values():
        for side in zip(*pairs, strict=True):
            sentences = vocabulary.encode(list(side))
            translator.check_lengths(model, (len(ids) + 1 for ids in sentences))


def length(config: ExperimentConfig, batches: Batches) -> int:
    """The steps of a training: `train.steps` or `train.epochs`, whichever ends sooner.

    Of these two fields, 0 sets no limit.
    """
    epochs = config.train.epochs * batches.batches_per_epoch
    steps = min(limit for limit in (config.train.steps, epochs) if limit)
    if steps > LARGEST_INT:
        raise UserError(
            f'train.epochs={config.train.epochs} are {steps:,} steps, and more than '
            f'{LARGEST_INT:,} cannot be counted: give fewer'
        )
    return steps
