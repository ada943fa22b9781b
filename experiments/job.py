"""A run's beginning and end: a config made into a job, and a trained job into its result."""

import hashlib
import math
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from ml_collections import ConfigDict

from experiments import (
    check,
    console,
    corpus,
    data,
    devices,
    environment,
    evaluate,
    optimizer,
    tokenizer,
    trained,
    translator,
)
from experiments.batching import Batches
from experiments.errors import UserError
from experiments.figures import Progress
from experiments.tokenizer import Tokenizer
from flaxformer_lite import build
from flaxformer_lite.architectures.base import Model
from flaxformer_lite.ranges import LARGEST_INT


class Job(NamedTuple):
    """What a config has been made into."""

    config: ConfigDict
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


def prepare(config: ConfigDict, path: Path) -> Job:
    """Makes all that training needs, and writes nothing but caches.

    Raises:
      UserError: a field, a file or a text that cannot be worked with.
    """
    devices.keep_programs()
    check.check(config)
    optimizer.check_rates(config)
    source = data.load(config.data)
    sets = source.evaluation()
    chosen = evaluate.chosen(sets, config.evaluation.sets, 'evaluation.sets')
    dev = evaluate.chosen(sets, next(iter(sets)), 'data')
    words = tokenizer.train(source, config.tokenizer.vocab_size, devices.cache())
    _same_text(words, path)
    model = _model(config, words)
    pairs = corpus.prepare(source, words, devices.cache())
    batches = Batches(
        pairs,
        tokens=config.batch.tokens,
        max_length=config.batch.max_length,
        packed=config.batch.packed,
        seed=seed(config, 'data_seed'),
        rows_multiple=jax.device_count() * config.train.accumulate,
    )
    if model.max_length is not None:
        translator.check_lengths(model, [batches.longest])
        for texts in _sides(dev | chosen):
            translator.check_lengths(
                model, (len(s) + 1 for s in words.encode(list(texts)))
            )
    steps = _steps(config, batches)
    update, schedule = optimizer.make(config, steps)
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


def seed(config: ConfigDict, name: str) -> int:
    """One of `train`'s seeds: its own, or `train.seed` where it is empty."""
    own = config.train[name]
    return config.train.seed if own is None else own


def _model(config: ConfigDict, words: Tokenizer) -> Model:
    try:
        model = build.model(config.model, words.vocab_size)
        trained.abstract_variables(model)
    except ValueError as error:
        raise UserError(str(error)) from None
    return model


def _sides(sets: dict[str, evaluate.Pairs]):
    return (side for pairs in sets.values() for side in zip(*pairs, strict=True))


def _steps(config: ConfigDict, batches: Batches) -> int:
    """Until `train.steps` or `train.epochs`, whichever is sooner; 0 is no limit."""
    epochs = config.train.epochs * batches.batches_per_epoch
    steps = min(limit for limit in (config.train.steps, epochs) if limit)
    if steps > LARGEST_INT:
        raise UserError(
            f'train.epochs={config.train.epochs} are {steps:,} steps, and more than '
            f'{LARGEST_INT:,} cannot be counted: give fewer'
        )
    return steps


def _same_text(words: Tokenizer, path: Path) -> None:
    file = path / trained.TOKENIZER
    if file.exists() and tokenizer.load(file).digest != words.digest:
        raise UserError(
            f'the training text is not what {path} was begun with: its tokenizer differs. Restore '
            'the text, or begin a new run with another --workdir'
        )


def begin(job: Job, path: Path) -> None:
    """Writes what belongs in the directory of a run that begins, and prints what will run."""
    job.tokenizer.save(path / trained.TOKENIZER)
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
        'parameters': parameters(trained.abstract_variables(job.model)['params']),
        'batch': f'{shapes}; {job.batches.target_tokens_per_batch:,.0f} target tokens, {padding}',
        'steps': f'{job.steps:,} ({job.steps / job.batches.batches_per_epoch:.1f} epochs)',
        'devices': f'{len(kinds)} × {kinds[0]}',
    }
    print(console.facts(facts), flush=True)


def finish(
    job: Job, path: Path, variables: Any, checkpoints: Any, progress: Progress
) -> dict:
    """Scores the chosen sets with the averaged parameters → the run's result."""
    steps = trained.average_steps(job.config, checkpoints)
    averaged = variables
    if len(steps) > 1 or job.config.evaluation.average_of == 'best':
        averaged = checkpoints.average(steps, trained.abstract_variables(job.model))
    evaluator = evaluate.Evaluator(
        job.model, job.tokenizer, job.config, path, job.direction
    )
    evaluations = evaluator.every(averaged, job.sets, steps)
    return {
        'status': 'finished',
        'step': job.steps,
        'parameters': parameters(variables['params']),
        'train_seconds': progress.seconds,
        'tokens_per_second': progress.tokens / progress.seconds,
        'parameters_sha256': sha256(variables['params']),
        'averaged_steps': list(steps),
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
    return '\n'.join(
        [
            f'finished: step {result["step"]:,}, {result["parameters"]:,} parameters, '
            f'{result["train_seconds"]:,.0f} s of training, '
            f'{result["tokens_per_second"]:,.0f} target tokens/s',
            evaluate.table(result['evaluations']),
            f'files: {path}/ (result.json, metrics.jsonl, checkpoints/, translations/)',
        ]
    )
