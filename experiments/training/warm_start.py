"""Warm start: the parameters and tokenizer that a run gets from `init_from`.

The run keeps copies, so it can resume without the source.
"""

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments import storage
from experiments.checkpoints import digest
from experiments.checkpoints.checkpoints import Checkpoints, Mean
from experiments.config.schema import ExperimentConfig, seed
from experiments.config.user_modules import without_trust_flag
from experiments.data import tokenizers
from experiments.data.tokenizers.base import Tokenizer
from experiments.errors import UserError, prefix_errors, user_errors
from experiments.evaluation.opened_run import OpenedRun
from experiments.runs import directory, entries, trained_run
from experiments.runtime import mesh, processes
from experiments.runtime.mesh import DeviceMesh
from flaxformer_lite import adapters
from flaxformer_lite.config import spec
from flaxformer_lite.config.builder import naming_fields
from flaxformer_lite.layers.scanned_stack import unstack_layers
from flaxformer_lite.models.base import Model
from flaxformer_lite.training import freezing
from flaxformer_lite.validation import quote

Arrays = dict[str, jax.Array]  # by path
NAME = 'init.json'
INIT_FROM = 'flaxformer_lite.init_from'  # entry points that find a run
_MAX_NAMES = 6  # of each kind in a message
_SOURCE_EMBEDDING = 'source_embedding'


class WarmStart(NamedTuple):
    """The variables that a run starts with.

    Attributes:
      variables: By path, 'params/embedding', with separate layers. They are freed when
        the run has started.
      record: Their origin, for `init.json`.
    """

    variables: Arrays
    record: dict[str, Any]


class Origin(NamedTuple):
    """The source of a warm start, and the tokenizer that the run inherits from it."""

    run: OpenedRun
    tokenizer: Tokenizer | None


def find_origin(
    config: ExperimentConfig, path: Path, untrained: Tokenizer
) -> Origin | None:
    """Returns the run that initializes the run in `path`, unless it has started.

    The run inherits the origin's tokenizer, so that ids mean the same, unless the field
    `tokenizer` asks for another.

    Args:
      untrained: The run's tokenizer.
    """
    if not config.init_from:
        return None
    checkpoints = Checkpoints(path / trained_run.CHECKPOINTS)
    # The first checkpoint holds the parameters of the origin.
    if processes.from_first(checkpoints.steps):
        return None
    with prefix_errors('init_from'), without_trust_flag():
        run = OpenedRun(_directory(config.init_from, untrained))
    if tokenizers.make(run.config.tokenizer) == untrained:
        return Origin(run, run.tokenizer)
    return Origin(run, untrained.derived(run.tokenizer))


def _directory(name: str, untrained: Tokenizer) -> Path:
    """Returns the directory of the run that `init_from` names.

    An entry point of the group `INIT_FROM` is a function of the field's text and the
    untrained tokenizer. It returns the directory of a run, or None for other texts.
    """
    local = Path(name).expanduser()
    if local.exists():
        return local
    for finder in spec.entry_points(INIT_FROM):
        found = spec.load_entry_point(INIT_FROM, finder)(name, untrained)
        if found is not None:
            return Path(found)
    return local


def vocabulary(
    config: ExperimentConfig,
    path: Path,
    origin: Origin | None,
    train: Callable[[], Tokenizer],
) -> Tokenizer:
    """Returns the tokenizer of the run in `path`.

    A run that has started has a copy of the inherited one.

    Args:
      origin: The source, if the run has not started.
      train: Trains a tokenizer on the run's own text.
    """
    if origin is not None:
        return origin.tokenizer or train()
    if config.init_from and read_record(path)['tokenizer'] == 'init_from':
        return trained_run.open_tokenizer(config.tokenizer, path)
    return train()


def read_record(path: Path) -> dict[str, Any]:
    """Returns the record in `init.json`; entries of later versions may be missing."""
    fix = 'Restore the file from a copy.'
    record = storage.read_json(path / NAME, entries.Init, fix)
    return {'anew': [], 'rows': {}, **record}


def load(
    config: ExperimentConfig,
    origin: Origin | None,
    model: Model,
    vocabulary: Tokenizer,
    devices: DeviceMesh,
) -> WarmStart | None:
    """Returns the initial variables on the devices; None without a source."""
    if origin is None:
        return None
    run, inherited = origin
    here, there, fitting = compare(config, run, model)
    with prefix_errors('init_from'):
        mean = _mean(config, run, devices)
    by_path = freezing.paths(unstack_layers(mean.variables))
    variables = {path: by_path[path] for path in sorted(fitting)}
    matches = {}
    if vocabulary.digest != run.tokenizer.digest:
        vocabulary_paths = sorted(_vocabulary_paths(model) & fitting)
        matches = {
            path: MatchedRows.of(path, vocabulary, run.tokenizer)
            for path in vocabulary_paths
        }
        own = {path: variables[path] for path in matches}
        variables |= _inherit_rows(
            model, devices, seed(config, 'init_seed'), own, matches
        )
    adapted = _adapters(model, here) | _adapters(run.model, there)
    base = (here.keys() | there.keys()) - adapted
    is_published = (
        base <= fitting
        and model.vocab_size == run.model.vocab_size
        and all(x.is_whole for x in matches.values())
        and _has_published_base(run)
    )
    is_own = inherited is None or inherited.digest != vocabulary.digest
    record = {
        'run': str(run.path.absolute()),
        'averaged_steps': mean.steps,
        'anew': _names(here.keys() - fitting),
        'left_out': _names(there.keys() - fitting),
        'tokenizer': 'own' if is_own else 'init_from',
        'sha256': trained_run.sha256(freezing.from_paths(variables)['params']),
        'published_base': is_published,
        'rows': {_name(path): [len(x.here), x.rows] for path, x in matches.items()},
    }
    return WarmStart(variables, record)


class Comparison(NamedTuple):
    """The variables of a model and of its source, by path: {'params/…': 'float32[4]'}.

    Attributes:
      fitting: Paths of the variables that the model gets from the source.
    """

    here: dict[str, str]
    there: dict[str, str]
    fitting: set[str]


def compare(config: ExperimentConfig, run: OpenedRun, model: Model) -> Comparison:
    """Compares a model with its source; the vocabulary sizes may differ.

    Raises UserError if `init_from`, `init_ignore` or `init_average` doesn't fit them.
    """
    with prefix_errors('init_from'):
        with user_errors():
            theirs = _resized(run.model, model)
        here, there = _kinds(model), _kinds(theirs)
        added = _adapters(model, here)
        ignored = _ignored(config.init_ignore, here.keys() | there.keys())
        inherited = _adapters(run.model, there) - ignored
        _check_adapters(config, run, model, here, inherited)
        fitting = _fitting_paths(here, there, added, ignored, config)
        _source_config(config, run)
    return Comparison(here, there, fitting)


def _adapters(model: Model, paths: Iterable[str]) -> set[str]:
    names = model.dense.trained_parameters
    return {path for path in paths if path.rpartition('/')[2] in names}


def _check_adapters(
    config: ExperimentConfig,
    run: OpenedRun,
    model: Model,
    here: Collection[str],
    inherited: set[str],
) -> None:
    """Raises UserError if the source's adapters would be lost or compute otherwise.

    Args:
      here: Paths of the model's variables.
      inherited: Paths of the source's adapters, without `init_ignore`.
    """
    matrices = {path: f'{path.rpartition("/")[0]}/kernel' for path in inherited}
    required = {path for path, matrix in matrices.items() if matrix in here}
    if not required:
        return
    if required <= set(here) and adapters.compute_alike(model, run.model):
        return
    source, theirs = config.init_from, str(run.config.model.dense)
    raise UserError(
        f'{source} has the adapters {theirs}, but model.dense is '
        f'{config.model.dense or "empty"}. To train them further, set '
        f'--config.model.dense={quote(theirs)}. To train other parameters, merge them: '
        f'export {source} with convert --to=huggingface, convert that folder to a run, '
        'and set init_from to it.'
    )


def _has_published_base(run: OpenedRun) -> bool:
    """Returns whether a run has the parameters of a checkpoint, but for adapters."""
    if run.model.dense.trained_parameters:
        return read_record(run.path).get('published_base', False)
    return directory.is_converted(directory.read_config(run.path))


def _ignored(pattern: str, paths: Collection[str]) -> set[str]:
    if not pattern:
        return set()
    ignored = {x for x in paths if re.search(pattern, _name(x))}
    if not ignored:
        raise UserError(
            f'init_ignore={quote(pattern)} matches no parameter. Leave it out.'
        )
    return ignored


def _fitting_paths(
    here: dict[str, str],
    there: dict[str, str],
    added: set[str],
    ignored: set[str],
    config: ExperimentConfig,
) -> set[str]:
    """Returns the variables that a model gets from the source.

    Args:
      here, there: As in `Comparison`.
      added: Paths of adapters, which the source may lack.
      ignored: Paths that match `init_ignore`.
    """
    shared = here.keys() & there.keys()
    fitting = {path for path in shared if here[path] == there[path]} - ignored
    mismatches = {
        'missing': here.keys() - there.keys() - added - ignored,
        'unused': there.keys() - here.keys() - ignored,
        'different shape': shared - fitting - ignored,
    }
    found = [
        f'{what}: {_enumerate_names(paths)}'
        for what, paths in mismatches.items()
        if paths
    ]
    if found:
        names = _names(set().union(*mismatches.values()))
        pattern = f"'^({'|'.join(names)})(/|$)'" if len(names) <= _MAX_NAMES else '…'
        raise UserError(
            f'{config.init_from} has a different model; {"; ".join(found)}. '
            'Copy the model fields of its config.json, or exclude these parameters: '
            f'--config.init_ignore={pattern}'
        )
    if not any(path.startswith('params/') for path in fitting):
        raise UserError(
            f'init_ignore={quote(config.init_ignore)} excludes every parameter. Leave '
            'init_from out.'
        )
    return fitting


def _name(path: str) -> str:
    return path.partition('/')[2]


def _names(paths: Iterable[str]) -> list[str]:
    return sorted(map(_name, paths))


def _enumerate_names(paths: Collection[str]) -> str:
    more = len(paths) - _MAX_NAMES
    first = ', '.join(_names(paths)[:_MAX_NAMES])
    return f'{first} and {more} more' if more > 0 else first


def _kinds(model: Model) -> dict[str, str]:
    return digest.array_kinds(mesh.abstract_variables(model.with_separate_layers()))


def _vocabulary_paths(model: Model) -> set[str]:
    kinds = _kinds(model)
    larger = _kinds(_resized(model, model, more=1))
    return {path for path in kinds if larger[path] != kinds[path]}


def _source_config(config: ExperimentConfig, run: OpenedRun) -> ExperimentConfig:
    """Returns the source's config, with the `init_average` of this one."""
    settings = run.config
    if config.init_average is not None:
        evaluation = dataclasses.replace(
            settings.evaluation, average=config.init_average
        )
        settings = dataclasses.replace(settings, evaluation=evaluation)
        there = len(trained_run.average_steps(settings, run.checkpoints))
        if there < config.init_average:
            raise UserError(
                f'init_average={config.init_average} exceeds the checkpoints of '
                f'{config.init_from} ({there}). Lower it.'
            )
    return settings


def _mean(config: ExperimentConfig, run: OpenedRun, devices: DeviceMesh) -> Mean:
    settings = _source_config(config, run)

    def raise_error(damage):
        raise UserError(
            f'{config.init_from}: {damage}. Restore it, or lower init_average.'
        )

    return trained_run.average(
        settings, run.checkpoints, run.model, raise_error, devices
    )


# With another tokenizer, a parameter with one row per token id keeps the rows of tokens
# in both vocabularies. Its other rows are initialized from scratch.


class MatchedRows(NamedTuple):
    """The rows of a parameter whose tokens are in both vocabularies.

    Attributes:
      here, there: The tokens' ids, int [n] each.
      rows: The parameter's number of rows.
    """

    here: np.ndarray
    there: np.ndarray
    rows: int

    @property
    def is_whole(self) -> bool:
        """True if the rows are those of the source, in the same order."""
        return np.array_equal(self.here, self.there) and len(self.here) == self.rows

    @classmethod
    def of(cls, path: str, here: Tokenizer, there: Tokenizer) -> 'MatchedRows':
        """Matches the tokens of two tokenizers for the parameter at `path`."""
        side = 0 if path.endswith(_SOURCE_EMBEDDING) else 1
        sides = (here.sides[side], there.sides[side])
        new, old = (own.pieces(list(range(own.vocab_size))) for own in sides)
        known = {piece: i for i, piece in enumerate(old)}
        for piece, like in sides[0].like_pieces.items():
            known.setdefault(piece, known[like])
        ids = [(i, known[piece]) for i, piece in enumerate(new) if piece in known]
        target_ids, source_ids = np.array(ids, int).reshape(-1, 2).T
        return cls(target_ids, source_ids, len(new))


def _resized(model: Model, other: Model, more: int = 0) -> Model:
    source = other.source_vocab_size
    with naming_fields():
        return model.clone(
            vocab_size=other.vocab_size + more,
            source_vocab_size=None if source is None else source + more,
        )


def _inherit_rows(
    model: Model,
    devices: DeviceMesh,
    seed: int,
    source: Arrays,
    matches: dict[str, MatchedRows],
) -> Arrays:
    abstract = freezing.paths(mesh.abstract_variables(model, devices))

    def initialize(key, source):
        new = freezing.paths(mesh.first_variables(model, key, {}))
        found = {}
        for path, (here, there, _) in matches.items():
            rows = source[path][there]
            found[path] = new[path].at[here].set(rows)
        return found

    shardings = {path: abstract[path].sharding for path in matches}
    return jax.jit(initialize, out_shardings=shardings)(devices.key(seed), source)
