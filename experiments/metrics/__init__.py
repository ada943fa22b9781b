"""Metrics of translations, one per module."""

from collections.abc import Mapping

from experiments import registries
from experiments.errors import UserError, user_errors
from experiments.metrics.base import MODEL_SCORES, Metric
from flaxformer_lite.config.spec import Component, Spec
from flaxformer_lite.validation import quote


def by_name(spec: Spec) -> dict[str, Component]:
    """Returns the components of a list by their names in results: `bleu`, `chrf`.

    Several metrics of one kind are named by their whole specs, without spaces, such as
    `bleu(tokenize='char')`.
    """
    entries = registries.entries('evaluation.metrics', spec)
    kinds = [entry.name.rpartition('.')[2] for entry in entries]
    found = {}
    for entry, kind in zip(entries, kinds, strict=True):
        is_alone = kinds.count(kind) == 1
        name = kind if is_alone else ''.join(entry.text.split())
        if name in (*found, *MODEL_SCORES):
            raise UserError(
                f'evaluation.metrics={spec}: there is a metric {name} already. '
                'Remove it.'
            )
        found[name] = entry
    return found


def make(spec: Spec, language: str = '') -> dict[str, Metric]:
    with user_errors('evaluation.metrics: '):
        return {
            name: entry.make(name=name, language=language)
            for name, entry in by_name(spec).items()
        }


def deciding(found: Mapping[str, Metric], best: str) -> Metric:
    """Returns the metric that selects the best checkpoints: `best`, or the first."""
    name = best or next(iter(found))
    if name not in found:
        raise UserError(
            f'evaluation.best: {quote(best)} is not in evaluation.metrics. Choose from '
            f'{", ".join(found)}.'
        )
    return found[name]
