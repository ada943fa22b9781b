"""The start of a run: what is written before the first step, and what is announced."""

from pathlib import Path
from typing import Any

import jax

from experiments import storage
from experiments.checkpoints import fitting
from experiments.command_line import console
from experiments.command_line.screen import Screen
from experiments.config.schema import ExperimentConfig
from experiments.data import sources, tokenizer
from experiments.data.batches import Batches
from experiments.data.tokenizer import Tokenizer
from experiments.evaluation.sets import Pairs
from experiments.optimizers import frozen
from experiments.runs import environment, initial, trained_run
from experiments.runtime import cache
from experiments.training import result
from experiments.training.setup import RunSetup
from flaxformer_lite.training import freezing


def begin(setup: RunSetup, path: Path) -> str:
    """Writes tokenizer and environment of a run that begins.

    Returns:
      What will run, as text.
    """
    setup.tokenizer.save(path / trained_run.TOKENIZER)
    devices = [device.device_kind for device in jax.devices()]
    environment.save(path, devices)
    _record_initial(setup, path)
    batches = setup.batches
    variables = trained_run.abstract_variables(setup.model, setup.devices)
    epochs = setup.steps / batches.batches_per_epoch
    facts = {
        'run': path,
        'data': f'{setup.config.data} ({setup.direction})',
        'training pairs': _describe_pairs(setup),
        'evaluation sets': _describe_sets(setup.sets),
        'vocabulary': setup.tokenizer.vocab_size,
        'parameters': _describe_parameters(setup, variables['params']),
        **_describe_initial(setup),
        'batch': _describe_batches(batches),
        'steps': f'{setup.steps:,} ({epochs:.1f} epochs)',
        'devices': _describe_devices(setup, devices),
    }
    return console.facts(facts)


def _record_initial(setup: RunSetup, path: Path) -> None:
    """Writes where the parameters come from, and what is needed to go on with them."""
    taken = setup.initial
    if taken is None:
        return
    text = {'training_pairs': setup.pairs.digest}
    storage.write_json(path / initial.NAME, taken.record | text)


def _describe_initial(setup: RunSetup) -> dict[str, str]:
    if setup.initial is None:
        return {}
    record = setup.initial.record
    steps = ', '.join(f'{step:,}' for step in record['averaged_steps'])
    of = f'step {steps}' if len(record['averaged_steps']) == 1 else f'mean of {steps}'
    ended = '' if record['ended'] else ', which has not ended'
    text = {'begins with': f'{setup.config.init_from}{ended} ({of})'}
    if record['anew']:
        text['begin anew'] = fitting.listed(record['anew'])
    return text


def _describe_parameters(setup: RunSetup, params: Any) -> str:
    total = result.count_parameters(params)
    held = frozen.paths(setup.config, setup.model)
    if not held:
        return f'{total:,}'
    trained, _ = freezing.split(params, held)
    return f'{total:,} (trained: {result.count_parameters(trained):,})'


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


def mend_tokenizer(config: ExperimentConfig, path: Path, screen: Screen) -> None:
    """Writes the tokenizer of a finished run again where its file is damaged.

    Raises:
      UserError: the training text is not there, or is another.
    """
    file = path / trained_run.TOKENIZER
    if tokenizer.damage(file):
        screen.begin('making the tokenizer', quiet=True)

        def make() -> Tokenizer:
            source = sources.load(config.data)
            size = config.tokenizer.vocab_size
            return tokenizer.train(source, size, cache.folder())

        vocabulary = initial.vocabulary(config, path, None, make)
        tokenizer.check_same(vocabulary, file)
        vocabulary.save(file)
