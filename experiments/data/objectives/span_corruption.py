"""T5's objective (Raffel et al., Exploring the Limits of Transfer Learning, 2020)."""

import dataclasses
from typing import Annotated, ClassVar

import numpy as np

from experiments.data.objectives.base import Objective
from flaxformer_lite.ranges import Range


@dataclasses.dataclass(frozen=True)
class SpanCorruption(Objective):
    """`<extra_id_0>` stands for the first span, …; the target is the spans (§3.1.4).

        Thank you <extra_id_0> me to your party <extra_id_1> week.
        <extra_id_0> for inviting <extra_id_1> last

    Of n ids r = round(density · n) are in spans, at least 1 and at most n − 1, and
    there are round(r / mean_span) spans, at least 1 and at most as many as sentinels;
    all such places of spans that do not touch are equally likely. (T5's own code has
    the last span at the end of a text, which for a short text is always the same one.)

    Attributes:
      density: the share of a text's ids in spans.
      mean_span: the mean number of ids of a span.
    """

    needs: ClassVar[str] = r'<extra_id_\d+>'
    density: Annotated[float, Range(above=0, below=1)] = 0.15
    mean_span: Annotated[float, Range(at_least=1)] = 3.0

    def example(self, row, rng):
        noise = min(max(round(self.density * len(row)), 1), len(row) - 1)
        if not noise:
            return row, row[:0]
        kept = len(row) - noise
        # As many as are kept at most: then the target is no longer than the text.
        most = min(kept, len(self.marks))
        count = min(max(round(noise / self.mean_span), 1), most)
        lengths = np.zeros(2 * count + 1, int)  # kept, span, kept, …, span, kept
        lengths[1::2] = _parts(noise, count, rng)
        lengths[::2] = _parts(kept + 2, count + 1, rng)
        lengths[[0, -1]] -= 1  # these may be empty
        is_noise = np.repeat(np.arange(len(lengths)) % 2 == 1, lengths)
        begins = lengths.cumsum()[:-1:2]
        marked = np.insert(row, begins, self.marks[:count])
        source = marked[~np.insert(is_noise, begins, False)]
        return source, marked[np.insert(is_noise, begins, True)]


def _parts(total: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """The sizes, at least 1, of so many parts of a whole; all are equally likely."""
    cuts = 1 + np.sort(rng.choice(total - 1, count - 1, replace=False))
    return np.diff(cuts, prepend=0, append=total)
