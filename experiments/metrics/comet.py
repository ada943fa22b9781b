"""COMET, a trained model's quality score."""

import dataclasses
import functools
import importlib
import importlib.util
import pickle
from pathlib import Path
from typing import Any

from experiments.errors import UserError, reason
from experiments.metrics.base import Metric
from flaxformer_lite.validation import Size

_INSTANTIATOR = '_instantiator'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comet(Metric):
    """100 × the mean of a COMET model's score over sentences, on the CPU.

    Rei et al. 2020, by the package unbabel-comet. Each sentence uses the reference with
    the highest score.

    Attributes:
      path: A folder from `comet.download_model`, with `hparams.yaml` and
        `checkpoints/model.ckpt`. A checkpoint that could run code is refused.
      batch_size: Number of sentences scored together.
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
        self._check_checkpoint()

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

    def _check_checkpoint(self) -> None:
        """Raises UserError if the checkpoint, a pickle, could run code.

        unbabel-comet unpickles it without a check.
        """
        torch: Any = importlib.import_module('torch')

        try:
            found = torch.load(
                self._checkpoint, map_location='cpu', weights_only=True, mmap=True
            )
            groups = found.values() if isinstance(found, dict) else ()
            # Lightning imports the function of this name, which text can give.
            if any(isinstance(x, dict) and _INSTANTIATOR in x for x in groups):
                raise ValueError(f'it has an {_INSTANTIATOR}')
        except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError) as error:
            raise UserError(
                f'evaluation.metrics: {self.name}: {self._checkpoint} may run code or '
                f'is damaged ({reason(error)}). If you trust it, load it with torch, '
                'and save only its state_dict and hyper_parameters'
            ) from None

    @functools.cached_property
    def _model(self) -> Any:
        self._check_checkpoint()
        # pyright takes the package for this file.
        from comet import load_from_checkpoint  # pyright: ignore

        return load_from_checkpoint(str(self._checkpoint))
