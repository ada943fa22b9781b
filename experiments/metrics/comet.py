"""COMET (Rei et al. 2020): what a trained model judges, by unbabel-comet."""

import dataclasses
import functools
import importlib.util
from pathlib import Path
from typing import Any

from experiments.errors import UserError
from experiments.metrics.base import Metric
from flaxformer_lite.ranges import Size


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comet(Metric):
    """100 × the mean of what a COMET model says of each sentence, on the CPU.

    Of several references the one counts that it judges best by.

    Attributes:
      path: a folder as `comet.download_model` leaves it, with `hparams.yaml` and
        `checkpoints/model.ckpt`.
      batch_size: sentences that are judged together.
    """

    path: str
    batch_size: Size = 16

    def check_installed(self):
        is_there = importlib.util.find_spec('comet') is not None
        if not is_there or not self._checkpoint.is_file():
            raise UserError(
                f'evaluation.metrics: {self.name} needs the file {self._checkpoint} '
                'and the package that reads it: pip install unbabel-comet'
            )

    def statistics(self, outputs, references, sources):
        asked = []
        for output, known, source in zip(outputs, references, sources, strict=True):
            for reference in known:
                asked.append({'src': source, 'mt': output, 'ref': reference})
        said = self._model.predict(
            asked, batch_size=self.batch_size, gpus=0, progress_bar=False
        )
        scores = iter(said.scores)
        return [(max(next(scores) for _ in known), 1) for known in references]

    @property
    def _checkpoint(self) -> Path:
        return Path(self.path).expanduser() / 'checkpoints' / 'model.ckpt'

    @functools.cached_property
    def _model(self) -> Any:
        # Of the package: the checker takes it for this file.
        from comet import load_from_checkpoint  # pyright: ignore

        return load_from_checkpoint(str(self._checkpoint))
