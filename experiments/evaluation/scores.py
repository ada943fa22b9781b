"""Scores of translations, and how they are shown."""

from collections.abc import Sequence
from typing import Any

from experiments import metrics
from experiments.command_line import console
from experiments.metrics.base import OF_MODELS, Metric, References
from experiments.runs.reading import metric_names
from flaxformer_lite.config.spec import Spec

Scores = dict[str, Any]  # of a set, with their signatures, by name


def installed_metrics(text: Spec, language: str) -> list[Metric]:
    """The metrics of `evaluation.metrics`, where all that they need is here.

    Args:
      text: the field.
      language: the code of the target's.

    Raises:
      UserError: the text is no list of metrics; or what is to be installed.
    """
    found = list(metrics.make(text, language).values())
    for metric in found:
        metric.check_installed()
    return found


def of_translations(
    scored_by: Sequence[Metric],
    outputs: Sequence[str],
    references: References,
    sources: Sequence[str],
) -> Scores:
    """Each metric's score and signature by its name, and of which less is better."""
    result: Scores = {}
    lower = []
    for metric in scored_by:
        result[metric.name] = metric.score(outputs, references, sources)
        result[f'{metric.name}_signature'] = metric.signature(references)
        if not metric.higher_is_better:
            lower.append(metric.name)
    result['lower_is_better'] = lower
    return result


def summary(name: str, step: int, result: Scores) -> str:
    """A set's scores on one line, and the signature of the first on a second."""
    names = metric_names(result)
    decimals = {**dict.fromkeys(names, 2), 'loss': 4, 'perplexity': 2}
    shown = [f'{entry} {result[entry]:.{n}f}' for entry, n in decimals.items()]
    line = '  '.join(shown)
    signature = result[f'{names[0]}_signature']
    return f'{name} ({result["direction"]}) at step {step:,}: {line}\n  {signature}'


def table(results: dict[str, Scores]) -> str:
    """A row of scores for each set, and below the signatures of the metrics."""
    signatures = {}
    for result in results.values():
        for name in metric_names(result):
            signatures[name] = result[f'{name}_signature']
    columns = ('sentences', *OF_MODELS, *signatures, 'direction')
    rows = []
    for name, result in results.items():
        cells = [result.get(column) for column in columns]
        rows.append([name, *cells])
    lines = [console.table(['set', *columns], rows, scores=signatures)]
    lines += [f'{metric}: {signature}' for metric, signature in signatures.items()]
    return '\n'.join(lines)
