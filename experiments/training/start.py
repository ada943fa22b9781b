"""The start of a run: what is written before the first step, and what is announced."""

from pathlib import Path

import jax

from experiments.command_line import console
from experiments.config.schema import ExperimentConfig
from experiments.data import sources, tokenizer
from experiments.data.batches import Batches
from experiments.evaluation.sets import Pairs
from experiments.runs import environment, trained_run
from experiments.runtime import cache
from experiments.training.result import count_parameters
from experiments.training.setup import RunSetup


def begin(setup: RunSetup, path: Path) -> str:
    """Writes tokenizer and environment of a run that begins.

    Returns:
      What will run, as text.
    """
    setup.tokenizer.save(path / trained_run.TOKENIZER)
    devices = [device.device_kind for device in jax.devices()]
    environment.save(path, devices)
    batches = setup.batches
    variables = trained_run.abstract_variables(setup.model, setup.devices)
    epochs = setup.steps / batches.batches_per_epoch
    facts = {
        'run': path,
        'data': f'{setup.config.data} ({setup.direction})',
        'training pairs': _describe_pairs(setup),
        'evaluation sets': _describe_sets(setup.sets),
        'vocabulary': setup.tokenizer.vocab_size,
        'parameters': count_parameters(variables['params']),
        'batch': _describe_batches(batches),
        'steps': f'{setup.steps:,} ({epochs:.1f} epochs)',
        'devices': _describe_devices(setup, devices),
    }
    return console.facts(facts)


def _describe_devices(setup: RunSetup, kinds: list[str]) -> str:
    devices = f'{len(kinds)} × {kinds[0]}'
    axes = setup.devices.describe()
    return f'{devices} ({axes})' if axes else devices


def _describe_pairs(setup: RunSetup) -> str:
    too_long = setup.batches.dropped
    used = len(setup.pairs) - too_long
    return f'{used:,} (left out: {too_long:,} too long, {setup.pairs.skipped:,} blank)'


def _describe_sets(evaluation_sets: dict[str, Pairs]) -> str:
    sizes = [f'{name} {len(pairs):,}' for name, pairs in evaluation_sets.items()]
    return ', '.join(sizes)


def _describe_batches(batches: Batches) -> str:
    shapes = ', '.join(f'{rows} × {length}' for rows, length in batches.shapes)
    tokens = batches.target_tokens_per_batch
    return f'{shapes}; {tokens:,.0f} target tokens, {batches.padding_share:.1%} padding'


def mend_tokenizer(config: ExperimentConfig, path: Path) -> None:
    """Writes the tokenizer of a finished run again where its file is damaged.

    Raises:
      UserError: the training text is not there, or is another.
    """
    file = path / trained_run.TOKENIZER
    if tokenizer.damage(file):
        source = sources.load(config.data)
        size = config.tokenizer.vocab_size
        vocabulary = tokenizer.train(source, size, cache.folder())
        tokenizer.check_same(vocabulary, file)
        vocabulary.save(file)
