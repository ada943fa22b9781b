"""What a run takes over from the one that `init_from` names: parameters, tokenizer.

The source is read once, before the first step. The run keeps a copy of all that it
takes, so that it goes on without the source, whatever became of that.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax

from experiments import storage
from experiments.checkpoints import digest, fitting
from experiments.checkpoints.checkpoints import Checkpoints, Mean
from experiments.checkpoints.fitting import Fit
from experiments.config.schema import ExperimentConfig, seed
from experiments.data import tokenizers
from experiments.data.tokenizers.base import Tokenizer
from experiments.errors import UserError, user_errors
from experiments.runs import rows, trained_run
from experiments.runs.rows import Kept
from experiments.runs.trained_run import TrainedRun
from experiments.runtime import mesh, processes
from experiments.runtime.mesh import DeviceMesh
from flaxformer_lite.layers.scanned_stack import unstack_layers
from flaxformer_lite.models.base import Model
from flaxformer_lite.training import freezing

NAME = 'init.json'


class Initial(NamedTuple):
    """What a run takes over.

    Attributes:
      variables: by their paths where layers are separate, 'params/embedding'. They go
        when the run has begun.
      record: where they come from, for `init.json`.
    """

    variables: dict[str, jax.Array]
    record: dict[str, Any]


def source(config: ExperimentConfig, path: Path) -> TrainedRun | None:
    """The run that is read to begin the one in `path`; None where none is needed.

    Raises:
      UserError: there is no such run, or it holds no finished checkpoint.
    """
    if not config.init_from or _has_begun(path):
        return None
    with _named(config):
        return trained_run.open_trained(_folder(config))


def _has_begun(path: Path) -> bool:
    """Whether a run has a checkpoint: the first is that of the parameters it took."""
    checkpoints = Checkpoints(path / trained_run.CHECKPOINTS)
    return processes.from_first(lambda: bool(checkpoints.steps()))


def _folder(config: ExperimentConfig) -> Path:
    return Path(config.init_from).expanduser()


@contextlib.contextmanager
def _named(config: ExperimentConfig) -> Iterator[None]:
    """Names the field in the errors of what it led to."""
    try:
        yield
    except UserError as error:
        raise UserError(f'init_from: {error}') from error


def vocabulary(
    config: ExperimentConfig,
    path: Path,
    run: TrainedRun | None,
    make: Callable[[], Tokenizer],
) -> Tokenizer:
    """The tokenizer of the run in `path`.

    It is the source's, so that ids mean the same, unless another is asked for by the
    field `tokenizer`. A run that has begun has a copy.

    Args:
      run: the source, of a run that has not begun.
      make: makes one of the run's own text.
    """
    if not config.init_from:
        return make()
    if run is not None:
        return run.tokenizer if _has_its_tokenizer(config, run) else make()
    if read_record(path)['tokenizer'] != 'init_from':
        return make()
    return trained_run.open_tokenizer(path, config)


def _has_its_tokenizer(config: ExperimentConfig, run: TrainedRun) -> bool:
    here, there = map(tokenizers.make, (config.tokenizer, run.config.tokenizer))
    return here == there


def read_record(path: Path) -> dict[str, Any]:
    """What was recorded of where a run that has begun took its parameters from.

    Raises:
      UserError: there is no such file, or it is damaged.
    """
    return storage.read_json(path / NAME)


def load(
    config: ExperimentConfig,
    run: TrainedRun | None,
    model: Model,
    vocabulary: Tokenizer,
    devices: DeviceMesh,
) -> Initial | None:
    """The variables that a run begins with, on the devices; None without a source.

    Raises:
      UserError: what does not fit, by name; or the checkpoints cannot be read.
    """
    if run is None:
        return None
    with _named(config):
        with user_errors():
            theirs = rows.resized(run.model, model)
        fit = Fit.of(_kinds(model), _kinds(theirs), config.init_ignore)
        fit.check(config.init_from, config.init_ignore)
        mean = _mean(config, run, devices)
    variables = mean.variables
    if run.model.scans_layers:
        variables = unstack_layers(variables)
    by_path = freezing.paths(variables)
    taken = {path: by_path[path] for path in sorted(fit.taken)}
    kept = {}
    if vocabulary.digest != run.tokenizer.digest:
        for path in sorted(_by_ids(model) & fit.taken):
            kept[path] = Kept.of(path, vocabulary, run.tokenizer)
        own = {path: taken[path] for path in kept}
        taken |= rows.taken_over(model, devices, seed(config, 'init_seed'), own, kept)
    counts = {fitting.name(x): [len(kept[x].here), kept[x].rows] for x in kept}
    about = {'sha256': trained_run.sha256(freezing.from_paths(taken)['params'])}
    return Initial(taken, _record(config, run, fit, mean) | about | {'rows': counts})


def _record(
    config: ExperimentConfig, run: TrainedRun, fit: Fit, mean: Mean
) -> dict[str, Any]:
    return {
        'run': str(_folder(config).absolute()),
        'averaged_steps': mean.steps,
        'anew': sorted(map(fitting.name, fit.here.keys() - fit.taken)),
        'left_out': sorted(map(fitting.name, fit.there.keys() - fit.taken)),
        'tokenizer': 'init_from' if _has_its_tokenizer(config, run) else 'own',
    }


def _kinds(model: Model) -> dict[str, str]:
    """Dtype and shape of each variable, by its path where layers are separate."""
    separate = model.with_separate_layers() if model.scans_layers else model
    return digest.array_kinds(mesh.abstract_variables(separate))


def _by_ids(model: Model) -> set[str]:
    """The paths of variables that have a row for each id."""
    kinds = _kinds(model)
    larger = _kinds(rows.resized(model, model, more=1))
    return {path for path in kinds if larger[path] != kinds[path]}


def _mean(config: ExperimentConfig, run: TrainedRun, devices: DeviceMesh) -> Mean:
    """The mean of the checkpoints that `translate` takes, or of so many of them."""
    settings = run.config
    if config.init_average is not None:
        evaluation = dataclasses.replace(
            settings.evaluation, average=config.init_average
        )
        settings = dataclasses.replace(settings, evaluation=evaluation)
    return trained_run.average(settings, run.checkpoints, run.model, devices=devices)
