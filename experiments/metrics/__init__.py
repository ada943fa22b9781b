"""How translations are scored: one file a metric, chosen by a spec string.

The field `evaluation.metrics` is a list of specs: `[bleu, chrf(word_order=2)]`.
"""

from experiments.errors import UserError, user_errors
from experiments.kinds import METRICS
from experiments.metrics.base import OF_MODELS, Metric
from flaxformer_lite.config import spec as specs
from flaxformer_lite.config.spec import Spec


def by_name(text: Spec) -> dict[str, str]:
    """The specs of a list by what results call their metrics: `bleu`, `chrf`.

    Where several are of one kind, these are called by their whole specs, without
    spaces: of `[bleu, bleu(tokenize='char')]` the second is `bleu(tokenize='char')`.

    Raises:
      UserError: the text is not a list of specs, or two would be called the same.
    """
    with user_errors('evaluation.metrics: '):
        entries = list(map(specs.text, specs.entries(text)))
        kinds = []
        for entry in entries:
            name, _ = specs.parse(entry)
            kinds.append(name.rpartition('.')[2])
    found = {}
    for entry, kind in zip(entries, kinds, strict=True):
        is_alone = kinds.count(kind) == 1
        name = kind if is_alone else ''.join(entry.split())
        if name in (*found, *OF_MODELS):
            raise UserError(f'evaluation.metrics={text}: there is a {name} already')
        found[name] = entry
    return found


def make(text: Spec, language: str = '') -> dict[str, Metric]:
    """The metrics of a list by their names, in its order.

    Args:
      text: the list.
      language: the code of the target's language.

    Raises:
      UserError: the text is no list of metrics.
    """
    with user_errors('evaluation.metrics: '):
        return {
            name: METRICS.make(entry, name=name, language=language)
            for name, entry in by_name(text).items()
        }


def deciding(text: Spec, best: str) -> Metric:
    """The metric of a list that says which checkpoints are best.

    Args:
      text: the list.
      best: its name, of `evaluation.best`; '' is the first.

    Raises:
      UserError: there is none, or the text is no list of metrics.
    """
    found = make(text)
    name = best or next(iter(found))
    if name not in found:
        raise UserError(
            f'evaluation.best={best} is not one of evaluation.metrics: '
            f'{", ".join(found)}'
        )
    return found[name]
