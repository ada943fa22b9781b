"""Creates run directories with checkpoints of random parameters, without training."""

import small_runs
import tiny

from experiments.checkpoints.checkpoints import Checkpoints
from experiments.command_line import flags
from experiments.config import components
from experiments.data import sources, tokenizers
from experiments.runs import directory, trained_run
from experiments.runtime import compilation, mesh

FIELDS = small_runs.FIELDS | {
    'model.dropout': 0.0,
    'train.steps': 2,
    'train.log_every': 1,
    'evaluation.every': 0,
    'evaluation.decode': 'greedy',
    'evaluation.average': 1,
    'checkpoint.every': 1,
    'checkpoint.keep': 1,
}


def overrides(text, **changes):
    """Returns flags of a run on a folder of text; names have __ for the dot."""
    return small_runs.flags(FIELDS | {'data': small_runs.source(text)}, **changes)


def config(text, **changes):
    values = flags.parse_overrides(overrides(text, **changes))
    return flags.settings('wmt_small', values).config


def make(path, text, steps=(1, 2), **changes):
    """Creates a run whose checkpoints have different parameters."""
    fields = config(text, evaluation__average=2, checkpoint__keep=2, **changes)
    tokenizer = tokenizers.train(
        tokenizers.make(fields.tokenizer),
        sources.load(fields.data),
        compilation.use_cache(),
    )
    model = components.build(fields, tokenizer.vocab_size).model
    shapes = mesh.abstract_variables(model)
    with directory.open_run(path, fields.to_dict()):
        tokenizer.save(path / trained_run.TOKENIZER)
        checkpoints = Checkpoints(path / trained_run.CHECKPOINTS, keep=9)
        for step in steps:
            checkpoints.save(step, tiny.random_like(shapes, seed=step), {})
        checkpoints.close()
    return path
