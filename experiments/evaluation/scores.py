"""Scores of translations, and how they are shown."""

from collections.abc import Sequence
from typing import Any

from experiments.command_line import console

_METRICS = ('bleu', 'chrf')
_COLUMNS = ('sentences', 'loss', 'perplexity', 'accuracy', *_METRICS, 'direction')


def bleu_and_chrf(outputs: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """sacreBLEU's corpus BLEU (cased, 13a) and chrF (Post 2018), with signatures."""
    # The import takes half a second, which the start of a run need not pay.
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    result = {}
    for name, metric in (('bleu', BLEU()), ('chrf', CHRF())):
        result[name] = metric.corpus_score(list(outputs), [list(references)]).score
        result[f'{name}_signature'] = str(metric.get_signature())
    return result


def summary(name: str, step: int, result: dict[str, Any]) -> str:
    """A set's scores on one line, and the signature of its BLEU on a second."""
    return (
        f'{name} ({result["direction"]}) at step {step:,}: '
        f'BLEU {result["bleu"]:.2f}  chrF {result["chrf"]:.2f}  '
        f'loss {result["loss"]:.4f}  perplexity {result["perplexity"]:.2f}\n'
        f'  {result["bleu_signature"]}'
    )


def table(results: dict[str, dict[str, Any]]) -> str:
    """A row of scores for each set, and below the signatures of BLEU and chrF."""
    rows = []
    signatures = {}
    for name, result in results.items():
        rows.append([name, *(result[column] for column in _COLUMNS)])
        signatures = {metric: result[f'{metric}_signature'] for metric in _METRICS}
    lines = [console.table(['set', *_COLUMNS], rows, scores=_METRICS)]
    lines += [f'{metric}: {signature}' for metric, signature in signatures.items()]
    return '\n'.join(lines)
