"""Reads checkpoints and verifies them, all processes together."""

from collections.abc import Callable
from typing import Any, NamedTuple

from experiments.checkpoints import digest, manifest
from experiments.checkpoints.folder import CheckpointFolder
from experiments.checkpoints.manifest import Damaged
from experiments.checkpoints.state_files import Failed, StateFiles
from experiments.errors import UserError
from experiments.runtime import processes


class Restored(NamedTuple):
    step: int
    state: Any
    metadata: dict[str, Any]


class CheckpointReader:
    """Reads the checkpoints of a folder.

    Of several processes the first alone asks what a checkpoint is, for a shared disk
    may show others what it was; each reads its devices' part of the arrays. What is
    wrong in one is wrong in all: every method raises the same in each process.
    """

    def __init__(self, folder: CheckpointFolder, state_files: StateFiles):
        self._folder = folder
        self._files = state_files

    def check(self, step: int, abstract: Any) -> dict[str, Any]:
        """The manifest of a checkpoint of which all but the arrays is as written.

        Raises:
          Damaged: a file is missing or is not what was written.
          UserError: `abstract` is of another model, or a file cannot be read now.
        """
        path = self._folder.path(step)

        def check() -> dict[str, Any]:
            content = manifest.read(path)
            manifest.compare_kinds(path, content, abstract)
            manifest.compare_files(path, content)
            return content

        return _of_first(check)

    def read(self, step: int, content: dict[str, Any], abstract: Any) -> Restored:
        """Reads `abstract`, the state or part of it, and verifies what was read.

        Args:
          content: of the checkpoint's manifest, as `check` returns it.
          abstract: shapes, dtypes and shardings.

        Raises:
          Damaged: an array is not what was saved.
          UserError: the files cannot be read now.
        """
        path = self._folder.path(step)
        state, failure = None, None
        try:
            state = self._files.restore(path / 'state', abstract)
        except Failed as error:
            failure = {'text': str(error), 'of_system': error.of_system}
        failures = [found for found in processes.gather(failure) if found]
        if failures:
            _of_first(lambda: self._explain(step, content, failures))
        manifest.compare_digests(content, digest.of(state))
        return Restored(step, state, content['metadata'])

    def _explain(
        self, step: int, content: dict[str, Any], failures: list[dict[str, Any]]
    ) -> None:
        """Raises what it means that a checkpoint could not be restored.

        It is damaged only if its files can be read and what they hold makes no sense.
        """
        path = self._folder.path(step)
        manifest.read_files(path, content)
        text = failures[0]['text']
        of_system = any(failure['of_system'] for failure in failures)
        if of_system or manifest.has_sums(content):
            raise UserError(f'cannot read checkpoint {path}: {text}')
        raise Damaged(f'its arrays cannot be decoded ({text})')


def _of_first(make: Callable[[], Any]) -> Any:
    """What `make` returns in the first process; what it raises there, all raise."""

    def outcome() -> dict[str, Any]:
        try:
            return {'value': make()}
        except Damaged as error:
            return {'damaged': str(error)}
        except UserError as error:
            return {'error': str(error)}

    found = processes.from_first(outcome)
    if 'damaged' in found:
        raise Damaged(found['damaged'])
    if 'error' in found:
        raise UserError(found['error'])
    return found['value']
