"""A trained run and what can be asked of it, in one object: `experiments.open_run`."""

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
    """A trained run; it may still be training.

    Its parameters and its data are read when they are first asked for.

    Args:
      path: the run's directory.
      trust_code: whether code in that directory may be run, where the run has modules
        that cannot be imported from here.
      step: selects the checkpoint of one step; by default the config decides.

    Attributes:
      path: the run's directory.
      trained: its config, tokenizer, model and checkpoints.
      config, tokenizer, model: those of `trained`.

    Raises:
      UserError: as `trained_run.open_trained`, or the run keeps no checkpoint of
        `step`.
    """

    def __init__(
        self, path: Path | str, trust_code: bool = False, step: int | None = None
    ):
        accelerators.check()
        self.path = Path(path)
        self.trained = trained_run.open_trained(self.path, trust_code)
        self.config, self.tokenizer, self.model, _ = self.trained
        self._step = step
        if step is not None:
            trained_run.check_step(self.trained.checkpoints, step)

    @functools.cached_property
    def mean(self) -> Mean:
        """The average that its config asks for, or the checkpoint of `step`.

        Raises:
          UserError: as `trained_run.average`.
        """
        return trained_run.average(
            self.config, self.trained.checkpoints, self.model, step=self._step
        )

    @property
    def variables(self) -> Any:
        """What `model.apply` takes, of the `mean`: {'params': …}, float32."""
        return self.mean.variables

    @functools.cached_property
    def data(self) -> Source:
        """What it was trained on.

        Raises:
          UserError: a file of it is not there.
        """
        return sources.load(self.config.data)

    @property
    def evaluation_sets(self) -> dict[str, Pairs]:
        """Pairs of a source and its references, by the name of their set.

        Raises:
          UserError: as `sets.chosen`.
        """
        return sets.chosen(self.data.evaluation(), '', 'data')

    def translate(self, lines: Sequence[str]) -> list[str]:
        """Their translations, decoded as the config says; a blank line stays blank.

        Raises:
          UserError: `lines` is one line; or a line has more tokens than the model
            has positions.
        """
        check_list('lines', lines)
        translator = Translator(self.model, self.tokenizer, self.config.evaluation)
        hypotheses = translator(self.variables, lines)
        return [best_first[0].text for best_first in hypotheses]

    def score(self, pairs: Sequence[Pair]) -> list[list[ScoredToken]]:
        """The tokens of each pair's target, with their log-probabilities.

        Raises:
          UserError: as `Scorer.batches`.
        """
        tokens = self.config.evaluation.batch_tokens
        scorer = Scorer(self.model, self.tokenizer, tokens)
        return list(scorer(self.variables, pairs))

    def record(self, source: str, target: str) -> Record:
        """What happens inside when the decoder writes `target`; of one row.

        An attention that does not hold its weights has none in it.
        """
        jitted = jax.jit(introspection.record, static_argnames=('model', 'missing_ok'))
        batch = pairs_batch(self.tokenizer, [(source, target)])
        return jitted(self.model, self.variables, batch, missing_ok=True)


def pairs_batch(
    tokenizer: Tokenizer, pairs: Sequence[Pair], length: int | None = None
) -> Batch:
    """Sources and targets as one batch on all devices, a pair a row.

    Args:
      length: as `make_batch` takes it.
    """
    source_ids = tokenizer.encode([source for source, _ in pairs])
    target_ids = tokenizer.encode_target([target for _, target in pairs])
    special = tokenizer.special_tokens
    batch = make_batch(
        [tokenizer.with_end(ids) for ids in source_ids],
        [[*ids, special.end] for ids in target_ids],
        special.start,
        special.padding,
        length=length,
    )
    return jax.device_put(batch, mesh.of().everywhere())
