"""A run's beginning and end: a config made into a job, and a trained job into its result."""

import hashlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from experiments.checkpoints.averaging import Mean
from experiments.command_line import console
from experiments.command_line.errors import UserError
from experiments.command_line.screen import Screen
from experiments.command_line.stopping import Stop
from experiments.config import check
from experiments.config.schema import ExperimentConfig
from experiments.data import corpus, set_names, sources, tokenizer
from experiments.data.batches import Batches
from experiments.data.tokenizer import Tokenizer
from experiments.evaluation import evaluator as evaluate
from experiments.evaluation import translator
from experiments.runs import directory, environment, trained_run
from experiments.runs.metrics_log import Log
from experiments.runtime import devices, malloc
from experiments.training import early_stopping, eval_params, optimizer
from experiments.training.metrics import Progress
from flaxformer_lite.models.base import Model
from flaxformer_lite.ranges import LARGEST_INT
from flaxformer_lite.training.train_step import TrainState


class Job(NamedTuple):
    """What a config has been made into."""

    config: ExperimentConfig
    direction: str
    dev: tuple[str, evaluate.Pairs]  # the set that training is watched by
    sets: dict[str, evaluate.Pairs]  # those that are scored at the end
    tokenizer: Tokenizer
    pairs: corpus.Corpus
    batches: Batches
    model: Model
    optimizer: optax.GradientTransformation
    schedule: optax.Schedule
    steps: int


def prepare(config: ExperimentConfig, path: Path, screen: Screen, stop: Stop) -> Job:
    """Makes all that training needs, and writes nothing but caches.

    Raises:
      UserError: a field, a file or a text that cannot be worked with.
      Stopped: a stop was asked for.
    """
    cache = devices.cache()
    devices.keep_programs()
    check.check(config)
    optimizer.check_rates(config)
    # What it cannot be built with is said before the data is loaded.
    model = check.build_model(config, config.tokenizer.vocab_size)
    screen.begin('loading data', quiet=True)
    source = sources.load(config.data)
    sets = source.evaluation()
    chosen = evaluate.chosen(sets, config.evaluation.sets, 'evaluation.sets')
    dev = evaluate.chosen(sets, next(iter(sets)), 'data')
    set_names.check(dev | chosen)
    screen.begin('making the tokenizer', quiet=True)
    words = tokenizer.train(source, config.tokenizer.vocab_size, cache)
    tokenizer.check_same(words, path / trained_run.TOKENIZER)
    # Of a short text the tokenizer has fewer pieces than were asked for.
    model = _traced(model.clone(vocab_size=words.vocab_size))
    pairs = _tokenised(source, words, screen, stop)
    batches = Batches(
        pairs,
        tokens=config.batch.tokens,
        max_length=config.batch.max_length,
        packed=config.batch.packed,
        seed=seed(config, 'data_seed'),
        rows_multiple=jax.device_count(),
        accumulate=config.train.accumulate,
    )
    if model.max_length is not None:
        translator.check_lengths(model, [batches.longest])
        for texts in _sides(dev | chosen):
            translator.check_lengths(
                model, (len(s) + 1 for s in words.encode(list(texts)))
            )
    steps = length(config, batches)
    update, schedule = optimizer.make(config, model, steps)
    return Job(
        config=config,
        direction=f'{source.source}-{source.target}',
        dev=next(iter(dev.items())),
        sets=chosen,
        tokenizer=words,
        pairs=pairs,
        batches=batches,
        model=model,
        optimizer=update,
        schedule=schedule,
        steps=steps,
    )


def seed(config: ExperimentConfig, name: str) -> int:
    """One of `train`'s seeds: its own, or `train.seed` where it is empty."""
    own = getattr(config.train, name)
    return config.train.seed if own is None else own


def _tokenised(
    source: sources.Source, words: Tokenizer, screen: Screen, stop: Stop
) -> corpus.Corpus:
    def progress(pairs: int) -> None:
        stop.check()
        screen.begin('tokenising')
        screen.count(pairs, None, 'pairs')

    return corpus.prepare(source, words, devices.cache(), progress=progress)


def _traced(model: Model) -> Model:
    """The model, of which it is now known that it can be run."""
    try:
        trained_run.abstract_variables(model)
    except ValueError as error:
        raise UserError(str(error)) from None
    return model


def _sides(sets: dict[str, evaluate.Pairs]):
    return (side for pairs in sets.values() for side in zip(*pairs, strict=True))


def length(config: ExperimentConfig, batches: Batches) -> int:
    """Steps until `train.steps` or `train.epochs`, whichever is sooner; 0 is no limit."""
    epochs = config.train.epochs * batches.batches_per_epoch
    steps = min(limit for limit in (config.train.steps, epochs) if limit)
    if steps > LARGEST_INT:
        raise UserError(
            f'train.epochs={config.train.epochs} are {steps:,} steps, and more than '
            f'{LARGEST_INT:,} cannot be counted: give fewer'
        )
    return steps


def mend(config: ExperimentConfig, path: Path) -> None:
    """Writes the tokenizer of a finished run anew where its file is damaged.

    Raises:
      UserError: the training text is not there, or is another.
    """
    file = path / trained_run.TOKENIZER
    if tokenizer.damage(file):
        source = sources.load(config.data)
        size = config.tokenizer.vocab_size
        words = tokenizer.train(source, size, devices.cache())
        tokenizer.check_same(words, file)
        words.save(file)


def begin(job: Job, path: Path) -> str:
    """Writes what belongs in the directory of a run that begins → what will run, as text."""
    job.tokenizer.save(path / trained_run.TOKENIZER)
    kinds = [device.device_kind for device in jax.devices()]
    environment.record(path, kinds)
    shapes = ', '.join(f'{rows} × {length}' for rows, length in job.batches.shapes)
    padding = f'{job.batches.padding_share:.1%} padding'
    left_out = f'{job.batches.dropped:,} too long, {job.pairs.skipped:,} blank'
    facts = {
        'run': path,
        'data': f'{job.config.data} ({job.direction})',
        'training pairs': f'{len(job.pairs) - job.batches.dropped:,} (left out: {left_out})',
        'evaluation sets': ', '.join(
            f'{name} {len(pairs):,}' for name, pairs in job.sets.items()
        ),
        'vocabulary': job.tokenizer.vocab_size,
        'parameters': parameters(trained_run.abstract_variables(job.model)['params']),
        'batch': f'{shapes}; {job.batches.target_tokens_per_batch:,.0f} target tokens, {padding}',
        'steps': f'{job.steps:,} ({job.steps / job.batches.batches_per_epoch:.1f} epochs)',
        'devices': f'{len(kinds)} × {kinds[0]}',
    }
    return console.facts(facts)


def finish(
    job: Job,
    path: Path,
    state: TrainState,
    evaluator: evaluate.Evaluator,
    checkpoints: Any,
    progress: Progress,
    log: Log,
    warn: Callable[[str], None],
) -> dict:
    """Scores the chosen sets with the averaged parameters → the run's result.

    The scores are the last rows of the metrics, of the kind `final`.
    """
    step = int(state.step)
    steps = trained_run.average_steps(job.config, checkpoints)
    variables = eval_params.variables(state)
    mean = Mean(variables, list(steps), left_out=[])
    if mean.steps != [step] or early_stopping.takes_best(job.config):
        mean = trained_run.average(job.config, checkpoints, job.model, warn)
    malloc.keep()  # from here on nothing is trained
    evaluations = evaluator.every(mean.variables, job.sets, mean.steps)
    for name, scores in evaluations.items():
        log.write(step, 'final', set=name, **scores)
    return {
        'status': 'finished',
        'step': step,
        'stopped_early': step < job.steps,
        'parameters': parameters(variables['params']),
        'train_seconds': progress.seconds,
        'tokens_per_second': progress.tokens / progress.seconds,
        'parameters_sha256': sha256(variables['params']),
        'averaged_steps': mean.steps,
        'left_out_steps': mean.left_out,  # of the mean, for they are damaged
        'extensions': directory.extensions(path),
        'evaluations': evaluations,
    }


def parameters(params: Any) -> int:
    """How many numbers a tree of parameters has."""
    return sum(math.prod(x.shape) for x in jax.tree.leaves(params))


def sha256(params: Any) -> str:
    """Of the leaves' bytes (little-endian, in C order), the leaves in the order of their paths."""
    digest = hashlib.sha256()
    leaves = jax.tree_util.tree_leaves_with_path(params)
    for _, leaf in sorted(leaves, key=lambda x: jax.tree_util.keystr(x[0])):
        array = np.asarray(leaf)
        digest.update(array.astype(array.dtype.newbyteorder('<')).tobytes())
    return digest.hexdigest()


def ending(path: Path, result: dict[str, Any]) -> str:
    """What a finished run prints: its scores, its speed and where its files are."""
    early = ''
    if result.get('stopped_early'):  # earlier versions never did
        best = ', '.join(map(str, result['averaged_steps']))
        early = f'stopped early: the dev score rises no more; best at step {best}\n'
    return early + '\n'.join(
        [
            f'finished: step {result["step"]:,}, {result["parameters"]:,} parameters, '
            f'{result["train_seconds"]:,.0f} s of training, '
            f'{result["tokens_per_second"]:,.0f} target tokens/s',
            evaluate.table(result['evaluations']),
            f'files: {path}/ (result.json, metrics.jsonl, checkpoints/, translations/)',
        ]
    )
