"""Loss and translations of a model on whole sets."""

import functools
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import flaxformer_lite as fl
from experiments import storage
from experiments.data import corpus
from experiments.data.documents import separated
from experiments.data.objectives.base import Objective
from experiments.data.sources.base import Source
from experiments.data.tokenizers.base import Tokenizer
from experiments.errors import UserError, prefix_errors, warn
from experiments.evaluation import scores, sets
from experiments.evaluation.scorer import Scorer
from experiments.evaluation.scores import Scores
from experiments.evaluation.sets import Pairs
from experiments.evaluation.translator import Translator
from experiments.metrics.base import Metric
from experiments.runs.reading import outputs_path, pair_paths
from experiments.runtime import mesh, processes
from experiments.runtime.compilation import Program, ProgramCache
from experiments.runtime.mesh import DeviceMesh
from flaxformer_lite.generation import DecodingOptions
from flaxformer_lite.models.base import Model
from flaxformer_lite.training.loss import loss_sums

_EXAMPLES = 3  # number of shown translations per set


class Evaluation(NamedTuple):
    scores: Scores
    outputs: list[str]


class Evaluator:
    """Scores parameters of one model on named sets.

    Args:
      path: The run's directory, which gets the translations; None disables saving.
      data: Source of the sets. Metrics need its languages and documents.
      objective: Makes the examples that the loss is computed on. None uses the pairs.
      on_progress: Called with the number of translated sentences, their total, and a
        description: 'sentences of val'.
    """

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        options: DecodingOptions,
        batch_tokens: int,
        metrics: Sequence[Metric],
        path: Path | None,
        data: Source,
        devices: DeviceMesh | None = None,
        objective: Objective | None = None,
        program_cache: ProgramCache | None = None,
        on_progress: Callable[[int, int, str], None] = lambda done, total, unit: None,
    ):
        self._path = path
        self._data = data
        self._metrics = metrics
        self._tokenizer = tokenizer
        self._on_progress = on_progress
        self._evaluated: dict[tuple[str, int, int], Evaluation] = {}
        devices = devices or mesh.make_mesh()
        program_cache = program_cache or ProgramCache()
        self._translate = Translator(
            model,
            tokenizer,
            options,
            batch_tokens,
            devices=devices,
            program_cache=program_cache,
        )
        self._scorer = Scorer(
            model, tokenizer, batch_tokens, devices, program_cache=program_cache
        )
        self._loss_sums = program_cache.get(_loss_sums, model, devices)
        self._objective = objective

    def every(
        self, variables: Any, chosen: dict[str, Pairs], steps: Sequence[int]
    ) -> dict[str, Scores]:
        """Returns the scores of each set, with the mean of checkpoints at `steps`."""
        return {
            name: self(variables, name, pairs, max(steps), len(steps)).scores
            for name, pairs in chosen.items()
        }

    def __call__(
        self, variables: Any, name: str, pairs: Pairs, step: int, mean_of: int = 1
    ) -> Evaluation:
        """Scores a set, and saves its translations with their scores.

        Results are cached. An unwritable directory only causes a warning.

        Args:
          step: The last of the `mean_of` checkpoints averaged in `variables`.
        """
        key = (name, step, mean_of)
        if key not in self._evaluated:
            with prefix_errors(name):
                found = self._evaluate(variables, name, pairs)
            self._evaluated[key] = found
            if self._path is None or not processes.is_first():
                return found
            file = outputs_path(self._path, name, step, mean_of)
            try:
                _write_translations(file, name, pairs, found.outputs)
                about = found.scores | {'set': name, 'step': step}
                storage.write_json(file.with_suffix('.json'), about)
            except UserError as error:
                warn(f'cannot save translations and scores: {error}')
        return self._evaluated[key]

    def _evaluate(self, variables: Any, name: str, pairs: Pairs) -> Evaluation:
        documents = self._data.documents(name)
        sizes = list(itertools.chain(*documents))
        examples = sets.joined_blocks(pairs, sizes) if documents else pairs
        lines, _ = sets.to_lines(examples)

        def on_progress(done: int) -> None:
            self._on_progress(done, len(lines), f'sentences of {name}')

        hypotheses = self._translate(variables, lines, on_progress=on_progress)
        outputs = [best_first[0].text for best_first in hypotheses]
        if documents:
            aligned = map(separated, outputs, sizes)
            outputs = list(itertools.chain.from_iterable(aligned))
        sources, references = sets.to_lines(pairs)
        direction = self._data.direction(name)
        _, target = direction
        metrics = [scores.in_language(x, target, references) for x in self._metrics]
        found = {
            'direction': '-'.join(direction),
            'target': target,
            'sentences': len(pairs),
            'text_sha256': sets.digest(pairs, documents),
            **self.loss(variables, examples),
            **scores.score_translations(metrics, outputs, references, sources),
        }
        if documents:
            found |= scores.score_documents(metrics, outputs, references, documents)
        return Evaluation(found, outputs)

    def loss(self, variables: Any, pairs: Pairs) -> dict[str, float]:
        """Returns loss (nats per token), perplexity and token accuracy.

        They are for first references, without label smoothing. An objective makes the
        same examples each time.
        """
        tokens = corpus.tokenize(sets.first_references(pairs), self._tokenizer)
        if self._objective:
            numbers = np.arange(len(tokens))
            tokens = corpus.examples(tokens, numbers, self._objective, seeds=numbers)
        batches = self._scorer.batches(tokens)
        sums = [self._loss_sums(variables, batch) for _, batch in batches]
        total = jax.tree.map(
            lambda *values: np.sum(values, dtype=np.float64), *jax.device_get(sums)
        )
        loss = total.nll / total.tokens
        return {
            'loss': float(loss),
            'perplexity': scores.perplexity(loss),
            'accuracy': float(total.correct / total.tokens),
        }


def _loss_sums(model: Model, devices: DeviceMesh) -> Program:
    sums = functools.partial(
        loss_sums, model, loss=fl.losses.CrossEntropy(label_smoothing=0)
    )
    jitted = jax.jit(sums, out_shardings=devices.everywhere())
    return Program(jitted)


def _write_translations(
    file: Path, name: str, pairs: Pairs, outputs: Sequence[str]
) -> None:
    """Writes files for sacreBLEU and COMET; a missing reference is a blank line."""
    sources, references = sets.to_lines(pairs)
    by_number = list(itertools.zip_longest(*references, fillvalue=''))
    paths = pair_paths(file.parent, name, len(by_number))
    columns = [sources, *by_number, outputs]
    for path, lines in zip([*paths, file], columns, strict=True):
        text = ''.join(f'{line}\n' for line in lines)
        storage.write(path, text)


def examples(pairs: Pairs, outputs: Sequence[str]) -> str:
    every = max(1, len(pairs) // _EXAMPLES)
    lines = []
    for i in range(0, len(pairs), every)[:_EXAMPLES]:
        source, references = pairs[i]
        lines += [
            f'  source      {source}',
            f'  reference   {references[0]}',
            f'  translation {outputs[i]}',
        ]
    return '\n'.join(lines)
