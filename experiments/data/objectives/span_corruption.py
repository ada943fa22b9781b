"""T5's objective (Raffel et al., Exploring the Limits of Transfer Learning, 2020)."""

import itertools
from typing import Annotated, ClassVar

import numpy as np

from experiments.data.objectives.base import Objective
from flaxformer_lite.validation import Range


class SpanCorruption(Objective):
    """Replaces spans by `<extra_id_0>`, …; the target is the spans (§3.1.4).

        Thank you <extra_id_0> me to your party <extra_id_1> week.
        <extra_id_0> for inviting <extra_id_1> last

    Spans cover r = round(density · n) of n ids, at least 1 and at most n − 1. There are
    round(r / mean_span) spans, at least 1 and at most the number of sentinels. All
    placements of spans that don't touch are equally likely, whereas T5's own code
    always ends a text with a span.
    """

    needs: ClassVar[str] = r'<extra_id_\d+>'
    density: Annotated[float, Range(above=0, below=1)] = 0.15
    mean_span: Annotated[float, Range(at_least=1)] = 3.0

    def example(self, row, rng):
        noise = max(1, round(self.density * len(row)))
        noise = min(noise, len(row) - 1)
        if not noise:
            return row, []
        num_kept = len(row) - noise
        count = max(1, round(noise / self.mean_span))
        # At most the number of remaining ids, so the target isn't longer than the text.
        count = min(count, num_kept, len(self.marks))
        spans = _parts(noise, count, rng)
        gaps = _parts(num_kept + 2, count + 1, rng)
        gaps[0] -= 1  # the first gap may be empty, and so may the last
        rest = iter(row)
        source = []
        target = []
        for mark, gap, span in zip(self.marks, gaps, spans, strict=False):
            source += itertools.islice(rest, gap)
            source.append(mark)
            target.append(mark)
            target += itertools.islice(rest, span)
        return [*source, *rest], target


def _parts(total: int, count: int, rng: np.random.Generator) -> list[int]:
    inner = 1 + rng.permutation(total - 1)[: count - 1]
    return np.diff(np.sort(inner), prepend=0, append=total).tolist()
