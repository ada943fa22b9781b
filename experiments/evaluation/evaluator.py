"""Scores a model on whole sets: loss, BLEU and chrF of its translations, which are kept."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments.command_line import console
from experiments.command_line.errors import UserError
from experiments.config.schema import ExperimentConfig
from experiments.data import batches as batching
from experiments.data import corpus, set_names
from experiments.data.tokenizer import Tokenizer
from experiments.evaluation import translator
from experiments.runtime import devices
from experiments.storage import files
from flaxformer_lite.models.base import Model
from flaxformer_lite.training.loss import loss_sums

Pairs = Sequence[tuple[str, str]]
# Told the set's name, how many of its sentences are translated, and how many it has; what
# it raises ends the evaluation.
Tell = Callable[[str, int, int], None]


class Evaluator:
    """Scores parameters of one model on named sets.

    Args:
      model: the Transformer.
      tokenizer: of both languages.
      config: the run's.
      path: the run's directory; translations are saved there.
      direction: the languages, such as 'en-de'.
      warn: is told where translations cannot be saved; without it, that is an error.
      tell: of progress.
    """

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        config: ExperimentConfig,
        path: Path,
        direction: str,
        warn: Callable[[str], None] | None = None,
        tell: Tell = lambda name, done, total: None,
    ):
        self._warn = warn
        self._model, self._tokenizer, self._path = model, tokenizer, path
        self._tell = tell
        # A step's parameters are always the same in a run, and so are their scores.
        self._known: dict[tuple[str, int], dict[str, Any]] = {}
        self._direction, self._tokens = direction, config.evaluation.batch_tokens
        self._translate = translator.Translator(model, tokenizer, config.evaluation)
        self._sums = jax.jit(
            lambda variables, batch: loss_sums(model, variables, batch),
            out_shardings=devices.everywhere(),
        )

    def every(
        self, variables: Any, sets: dict[str, Pairs], steps: Sequence[int]
    ) -> dict[str, dict[str, Any]]:
        """The scores of each set by the mean of some checkpoints."""
        step, mean_of = max(steps), len(steps)
        results = {}
        for name, pairs in sets.items():
            known = self._known.get((name, step)) if mean_of == 1 else None
            results[name] = known or self(variables, name, pairs, step, mean_of)
        return results

    def loss(self, variables: Any, pairs: Pairs) -> dict[str, float]:
        """Loss (nats a token, without smoothing), perplexity and token accuracy over all pairs."""
        tokens = corpus.tokenize(list(pairs), self._tokenizer)
        translator.check_lengths(
            self._model,
            (int(side.lengths().max()) + 1 for side in (tokens.source, tokens.target)),
        )
        batches = batching.evaluation_batches(tokens, self._tokens, jax.device_count())
        sums = [
            self._sums(variables, jax.device_put(b, devices.rows())) for b, _ in batches
        ]
        total = jax.tree.map(
            lambda *x: np.sum(x, dtype=np.float64), *jax.device_get(sums)
        )
        loss = total.nll / total.tokens
        return {
            'loss': float(loss),
            'perplexity': math.exp(min(loss, 700)),
            'accuracy': float(total.correct / total.tokens),
        }

    def __call__(
        self, variables: Any, name: str, pairs: Pairs, step: int, mean_of: int = 1
    ) -> dict[str, Any]:
        """All of a set's scores, and its translations, both saved where `translations` says.

        Beside them are its sources and references, `val.source.txt` and
        `val.reference.txt`: a line a sentence, as sacrebleu's and COMET's own commands
        read them.
        """
        sources, references = lines_of(pairs)
        translated = self._translate(
            variables, sources, tell=lambda done: self._tell(name, done, len(pairs))
        )
        outputs = [best[0].text for best in translated]
        result = {
            'direction': self._direction,
            'sentences': len(pairs),
            **self.loss(variables, pairs),
            **score(outputs, references),
        }
        file = translations(self._path, name, step, mean_of)
        texts = {
            file.with_name(f'{name}.source.txt'): sources,
            file.with_name(f'{name}.reference.txt'): references,
            file: outputs,
        }
        self._save(texts, file, result | {'set': name, 'step': step})
        if mean_of == 1:
            self._known[name, step] = result
        return result

    def _save(
        self, texts: dict[Path, Sequence[str]], file: Path, scores: dict[str, Any]
    ) -> None:
        try:
            for path, lines in texts.items():
                files.write(path, ''.join(f'{line}\n' for line in lines))
            files.write_json(file.with_suffix('.json'), scores)
        except UserError as error:
            if self._warn is None:
                raise
            self._warn(f'translations and scores are not saved: {error}')


def lines_of(pairs: Pairs) -> tuple[list[str], list[str]]:
    """The sources and the references, a line each.

    Line ends of any kind within a sentence become spaces: they would part it in a file.
    """
    sources = [' '.join(source.splitlines()) for source, _ in pairs]
    references = [' '.join(reference.splitlines()) for _, reference in pairs]
    return sources, references


def translations(path: Path, name: str, step: int, mean_of: int = 1) -> Path:
    """Where a run keeps a set's translations; their scores are beside it, as `.json`.

    Those by the mean of several checkpoints, of which a step is the last, are others than those by
    the step's own.
    """
    mean = f',mean_of={mean_of}' if mean_of > 1 else ''
    return path / 'translations' / f'{name}.step={step}{mean}.txt'


def score(outputs: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """Corpus BLEU (cased, 13a) and chrF of sacreBLEU (Post 2018), each with its signature."""
    from sacrebleu.metrics import (
        BLEU,
        CHRF,
    )  # half a second, which a run's start need not pay

    result = {}
    for name, metric in (('bleu', BLEU()), ('chrf', CHRF())):
        result[name] = metric.corpus_score(list(outputs), [list(references)]).score
        result[f'{name}_signature'] = str(metric.get_signature())
    return result


def chosen(sets: dict[str, Pairs], names: str, field: str) -> dict[str, Pairs]:
    """The sets with these comma-separated names; all, if none is named.

    Raises:
      UserError: a named set is not there; or a set is empty, or can have no file of its name.
    """
    wanted = [name.strip() for name in names.split(',') if name.strip()] or list(sets)
    missing = [name for name in wanted if name not in sets]
    if missing:
        raise UserError(
            f'{field}: there is no set {missing[0]!r}; there is {", ".join(sets)}'
        )
    empty = [name for name in wanted if not len(sets[name])]
    if empty:
        raise UserError(f'{field}: the set {empty[0]!r} holds no sentences')
    set_names.check(wanted)
    return {name: sets[name] for name in wanted}


def summary(name: str, step: int, result: dict[str, Any]) -> str:
    """A set's scores in two lines, the second the signature that its BLEU is by."""
    return (
        f'{name} ({result["direction"]}) at step {step:,}: BLEU {result["bleu"]:.2f}  chrF '
        f'{result["chrf"]:.2f}  loss {result["loss"]:.4f}  perplexity {result["perplexity"]:.2f}\n'
        f'  {result["bleu_signature"]}'
    )


def examples(path: Path, name: str, step: int, pairs: Pairs, number: int = 3) -> str:
    """Some of a set's translations beside source and reference, spread over the set."""
    outputs = translations(path, name, step).read_text(encoding='utf-8').split('\n')
    chosen = range(0, len(pairs), max(1, len(pairs) // number))[:number]
    return '\n'.join(
        f'  source      {pairs[i][0]}\n  reference   {pairs[i][1]}\n  translation {outputs[i]}'
        for i in chosen
    )


def table(results: dict[str, dict[str, Any]]) -> str:
    """Each set's scores in a row, and the signatures that they are by."""
    columns = ('sentences', 'loss', 'perplexity', 'accuracy', 'bleu', 'chrf')
    rows = [
        [name, *(r[c] for c in columns), r['direction']] for name, r in results.items()
    ]
    signatures = {
        r[f'{m}_signature']: m for r in results.values() for m in ('bleu', 'chrf')
    }
    lines = [f'{metric}: {signature}' for signature, metric in signatures.items()]
    table = console.table(['set', *columns, 'direction'], rows, ('bleu', 'chrf'))
    return '\n'.join([table, *lines])
