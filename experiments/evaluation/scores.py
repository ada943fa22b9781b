"""Scores of translations, and their display."""

import collections
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.command_line import console
from experiments.data.documents import Documents, grouped
from experiments.metrics.base import MODEL_SCORES, Metric, References, score_decimals
from experiments.metrics.bleu import Bleu
from experiments.runs.reading import metric_names

Scores = dict[str, Any]  # scores and signatures of a set, by name
_MAX_EXPONENT = 700  # exp of more overflows a float


def perplexity(nll: float) -> float:
    """Returns exp(nll), given the mean over tokens, in nats; at most e⁷⁰⁰."""
    return math.exp(min(nll, _MAX_EXPONENT))


def installed_metrics(
    metrics: Mapping[str, Metric], language: str, *others: str
) -> list[Metric]:
    """Returns metrics for a target language; UserError if a package is missing.

    Args:
      others: Further languages, of single sets.
    """
    for code in {language, *others}:
        for metric in metrics.values():
            dataclasses.replace(metric, language=code).check_installed()
    return [dataclasses.replace(x, language=language) for x in metrics.values()]


def in_language(metric: Metric, language: str, references: References) -> Metric:
    """Returns a metric for a language, the same one if that changes nothing."""
    other = dataclasses.replace(metric, language=language)
    is_same = other.signature(references) == metric.signature(references)
    return metric if is_same else other


def score_translations(
    scored_by: Sequence[Metric],
    outputs: Sequence[str],
    references: References,
    sources: Sequence[str],
) -> Scores:
    """Returns each metric's score and signature by name.

    The key `lower_is_better` lists metrics for which lower is better.
    """
    result: Scores = {}
    lower = []
    for metric in scored_by:
        result[metric.name] = metric.score(outputs, references, sources)
        result[f'{metric.name}_signature'] = metric.signature(references)
        if not metric.higher_is_better:
            lower.append(metric.name)
    result['lower_is_better'] = lower
    return result


def score_documents(
    scored_by: Sequence[Metric],
    outputs: Sequence[str],
    references: References,
    documents: Documents,
) -> Scores:
    """Returns d-BLEU (Liu et al. 2020), as `document_bleu` for the metric `bleu`.

    A document is one text, so n-grams may cross sentences.
    """
    sizes = list(map(sum, documents))
    texts = list(map(' '.join, grouped(outputs, sizes)))
    known = [
        tuple(map(' '.join, zip(*of_sentences, strict=False)))
        for of_sentences in grouped(references, sizes)
    ]
    metrics = [x for x in scored_by if isinstance(x, Bleu)]
    named = [dataclasses.replace(x, name=f'document_{x.name}') for x in metrics]
    found = score_translations(named, texts, known, texts)
    del found['lower_is_better']
    return found


def summary(name: str, step: int, result: Scores) -> str:
    """Formats a set's scores, with the first metric's signature on a second line."""
    names = metric_names(result)
    entries = score_decimals(*names, 'loss', 'perplexity')
    shown = [f'{entry} {result[entry]:.{n}f}' for entry, n in entries.items()]
    line = '  '.join(shown)
    signature = result[f'{names[0]}_signature']
    return f'{name} ({result["direction"]}) at step {step:,}: {line}\n  {signature}'


def table(results: dict[str, Scores]) -> str:
    """Formats the scores of sets, and each signature with its sets if they differ."""
    sets_by_signature = collections.defaultdict(lambda: collections.defaultdict(list))
    for name, result in results.items():
        for metric in metric_names(result):
            sets_by_signature[metric][result[f'{metric}_signature']].append(name)
    entries = (*MODEL_SCORES, *sets_by_signature)
    columns = ('sentences', *entries, 'direction')
    rows = [[name, *map(result.get, columns)] for name, result in results.items()]
    lines = [console.table(['set', *columns], rows, score_decimals(*entries))]
    for metric, signatures in sets_by_signature.items():
        for signature, names in signatures.items():
            of_sets = f' ({", ".join(names)})' if len(signatures) > 1 else ''
            lines.append(f'{metric}{of_sets}: {signature}')
    return '\n'.join(lines)
