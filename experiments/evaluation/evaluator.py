"""Scores a model on whole sets: its loss, and its translations."""

import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments import storage
from experiments.config.schema import ExperimentConfig
from experiments.data import objectives
from experiments.data.tokenizers.base import Tokenizer
from experiments.errors import UserError
from experiments.evaluation import scores, sets
from experiments.evaluation.scorer import Scorer
from experiments.evaluation.sets import Pairs
from experiments.evaluation.translator import Translator
from experiments.metrics.base import Metric
from experiments.runs.reading import outputs_path
from experiments.runtime import compilation, mesh, processes
from experiments.runtime.mesh import DeviceMesh
from flaxformer_lite.models.base import Model
from flaxformer_lite.training.loss import loss_sums

_LARGEST_EXPONENT = 700  # exp of more is not a float


class Evaluator:
    """Scores parameters of one model on named sets.

    Args:
      model: the Transformer.
      tokenizer: of both languages.
      config: the run's.
      path: the run's directory, where translations are saved.
      languages: the codes of source and target.
      metrics: by which translations are scored.
      devices: divide the rows of batches; by default all that there are.
      warn: is told where translations cannot be saved; without it, that is an error.
      on_progress: is told how many sentences of a set are translated, how many it has,
        and what they are: 'sentences of val'.
    """

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        config: ExperimentConfig,
        path: Path,
        languages: tuple[str, str],
        metrics: Sequence[Metric],
        devices: DeviceMesh | None = None,
        warn: Callable[[str], None] | None = None,
        on_progress: Callable[[int, int, str], None] = lambda done, total, unit: None,
    ):
        self._path = path
        self._languages = languages
        self._metrics = metrics
        self._warn = warn
        self._scored: dict[tuple[str, int, int], dict[str, Any]] = {}
        self._on_progress = on_progress
        devices = devices or mesh.of()
        self._translate = Translator(
            model, tokenizer, config.evaluation, devices=devices
        )
        tokens = config.evaluation.batch_tokens
        self._scorer = Scorer(model, tokenizer, tokens, devices)
        self._sums = _loss_sums(model, devices)
        self._objective = objectives.make(config.objective, tokenizer)

    def every(
        self, variables: Any, chosen: dict[str, Pairs], steps: Sequence[int]
    ) -> dict[str, dict[str, Any]]:
        """The scores of each set by the mean of these steps' checkpoints."""
        return {
            name: self(variables, name, pairs, max(steps), len(steps))
            for name, pairs in chosen.items()
        }

    def __call__(
        self, variables: Any, name: str, pairs: Pairs, step: int, mean_of: int = 1
    ) -> dict[str, Any]:
        """All scores of a set, whose translations are saved with their scores.

        Sources and references are saved beside them, as `sets` says. What was scored
        once, as the dev set at the last step, is not scored again.
        """
        key = (name, step, mean_of)
        if key in self._scored:
            return self._scored[key]
        sources, references = sets.lines_of(pairs)

        def on_progress(done: int) -> None:
            self._on_progress(done, len(sources), f'sentences of {name}')

        hypotheses = self._translate(variables, sources, on_progress=on_progress)
        outputs = [best_first[0].text for best_first in hypotheses]
        result = {
            'direction': '-'.join(self._languages),
            'target': self._languages[1],
            'sentences': len(pairs),
            **self.loss(variables, pairs),
            **scores.of_translations(self._metrics, outputs, references, sources),
        }
        file = outputs_path(self._path, name, step, mean_of)
        try:
            if processes.is_first():
                sets.write_translations(file, name, sources, references, outputs)
                about = result | {'set': name, 'step': step}
                storage.write_json(file.with_suffix('.json'), about)
        except UserError as error:
            if self._warn is None:
                raise
            self._warn(f'translations and scores are not saved: {error}')
        self._scored[key] = result
        return result

    def loss(self, variables: Any, pairs: Pairs) -> dict[str, float]:
        """Loss, perplexity and token accuracy over all pairs, of first references.

        The loss is in nats a token, and without label smoothing; with an objective it
        is of the same examples each time.
        """
        references = sets.first_references(pairs)
        batches = self._scorer.batches(references, self._objective)
        sums = [self._sums(variables, batch) for _, batch in batches]
        total = jax.tree.map(
            lambda *values: np.sum(values, dtype=np.float64), *jax.device_get(sums)
        )
        loss = total.nll / total.tokens
        return {
            'loss': float(loss),
            'perplexity': math.exp(min(loss, _LARGEST_EXPONENT)),
            'accuracy': float(total.correct / total.tokens),
        }


@functools.lru_cache(maxsize=4)  # the runs of a process may share it
def _loss_sums(model: Model, devices: DeviceMesh) -> compilation.Program:
    """The compiled sums of the loss of a batch."""
    sums = functools.partial(loss_sums, model, loss='cross_entropy(label_smoothing=0)')
    jitted = jax.jit(sums, out_shardings=devices.everywhere())
    return compilation.Program(jitted)
