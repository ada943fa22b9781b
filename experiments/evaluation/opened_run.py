"""The Python interface to a trained run: `experiments.open_run`."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from experiments.checkpoints.checkpoints import Mean
from experiments.data import sources
from experiments.data.sources.base import Pair, Source
from experiments.data.tokenizers.base import Tokenizer
from experiments.errors import check_list
from experiments.evaluation import sets
from experiments.evaluation.scorer import ScoredToken, Scorer
from experiments.evaluation.sets import Pairs
from experiments.evaluation.translator import Translator
from experiments.runs import trained_run
from experiments.runtime import accelerators, mesh
from flaxformer_lite import introspection
from flaxformer_lite.introspection import Record
from flaxformer_lite.training.batch import Batch, make_batch


class OpenedRun:
    """A trained run, possibly still in training.

    Args:
      path: The run's directory.
      trust_code: Allows running code from that directory, if the run needs modules that
        cannot be imported otherwise.
      step: Selects one checkpoint. Defaults to the average that the config asks for.

    Attributes:
      trained: Its config, tokenizer, model, checkpoints and decoding.

    Raises:
      UserError: As `trained_run.open_trained`, or the run has no checkpoint of `step`.
    """

    def __init__(
        self, path: Path | str, trust_code: bool = False, step: int | None = None
    ):
        accelerators.check()
        self.path = Path(path)
        self.trained = trained_run.open_trained(self.path, trust_code)
        self.config, self.tokenizer, self.model, _, self.decoding = self.trained
        self._step = step
        if step is not None:
            trained_run.check_step(self.trained.checkpoints, step)

    @functools.cached_property
    def mean(self) -> Mean:
        """The mean of the checkpoints; raises UserError as `trained_run.average`."""
        # Under a user's jit, load concrete arrays instead of tracing.
        with jax.ensure_compile_time_eval():
            return trained_run.average(
                self.config, self.trained.checkpoints, self.model, step=self._step
            )

    @property
    def variables(self) -> Any:
        """The variables for `model.apply`: {'params': …}, float32."""
        return self.mean.variables

    @functools.cached_property
    def data(self) -> Source:
        """The data source of the run; raises UserError if a file is missing."""
        return sources.load(self.config.data)

    @property
    def evaluation_sets(self) -> dict[str, Pairs]:
        """Name of a set → its pairs; raises UserError as `sets.chosen`."""
        return sets.chosen(self.data.evaluation(), '', 'data')

    def translate(self, lines: Sequence[str]) -> list[str]:
        """Translates lines as the config asks; blank lines stay blank.

        Raises:
          UserError: `lines` is a string, or a line has more tokens than the model has
            positions.
        """
        check_list('lines', lines)
        hypotheses = self._translator(self.variables, lines)
        return [best_first[0].text for best_first in hypotheses]

    def score(self, pairs: Sequence[Pair]) -> list[list[ScoredToken]]:
        """Returns the scored tokens of each target; UserError as `Scorer.batches`."""
        return list(self._scorer(self.variables, pairs))

    # Both keep their compiled programs.

    @functools.cached_property
    def _translator(self) -> Translator:
        return Translator(self.model, self.tokenizer, self.decoding)

    @functools.cached_property
    def _scorer(self) -> Scorer:
        tokens = self.decoding.batch_tokens
        return Scorer(self.model, self.tokenizer, tokens)

    def record(self, source: str, target: str) -> Record:
        """Records the internals of the model for one pair, with the target as decoder
        input.

        Attention that does not store its weights has no entry.
        """
        jitted = jax.jit(introspection.record, static_argnames=('model', 'missing_ok'))
        batch = pairs_batch(self.tokenizer, [(source, target)])
        return jitted(self.model, self.variables, batch, missing_ok=True)


def pairs_batch(tokenizer: Tokenizer, pairs: Sequence[Pair]) -> Batch:
    """Makes one batch on all devices, with a pair per row."""
    source_ids = tokenizer.encode([source for source, _ in pairs])
    target_ids = tokenizer.encode_target([target for _, target in pairs])
    special = tokenizer.special_tokens
    batch = make_batch(
        [tokenizer.with_end(ids) for ids in source_ids],
        [[*ids, special.eos] for ids in target_ids],
        special.bos,
        special.padding,
    )
    return jax.device_put(batch, mesh.make_mesh().everywhere())
