"""Scores of translations, and how they are shown."""

from collections.abc import Sequence
from typing import Any

from experiments import metrics
from experiments.command_line import console
from experiments.metrics.base import OF_MODELS, Metric, References
from experiments.runs.reading import metric_names
from flaxformer_lite.config.spec import Spec


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
) -> dict[str, Any]:
    """Each metric's score and signature by its name, and of which less is better."""
    result: dict[str, Any] = {}
    for metric in scored_by:
        result[metric.name] = metric.score(outputs, references, sources)
        result[f'{metric.name}_signature'] = metric.signature(references)
    lower = [metric.name for metric in scored_by if not metric.higher_is_better]
    return result | {'lower_is_better': lower}


def summary(name: str, step: int, result: dict[str, Any]) -> str:
    """A set's scores on one line, and the signature of the first on a second."""
    names = metric_names(result)
    shown = [f'{metric} {result[metric]:.2f}' for metric in names]
    return (
        f'{name} ({result["direction"]}) at step {step:,}: {"  ".join(shown)}  '
        f'loss {result["loss"]:.4f}  perplexity {result["perplexity"]:.2f}\n'
        f'  {result[f"{names[0]}_signature"]}'
    )


def table(results: dict[str, dict[str, Any]]) -> str:
    """A row of scores for each set, and below the signatures of the metrics."""
    signatures = {}
    for result in results.values():
        for name in metric_names(result):
            signatures[name] = result[f'{name}_signature']
    columns = ('sentences', *OF_MODELS, *signatures, 'direction')
    rows = []
    for name, result in results.items():
        rows.append([name, *(result[column] for column in columns)])
    lines = [console.table(['set', *columns], rows, scores=signatures)]
    lines += [f'{metric}: {signature}' for metric, signature in signatures.items()]
    return '\n'.join(lines)
