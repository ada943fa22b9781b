"""Mixtures of sources."""

import dataclasses
import functools
import itertools
import re
from collections.abc import Iterator
from typing import Annotated, Any

from experiments.data import sources as folder
from experiments.data.digest import hex_digest
from experiments.data.sources.base import Pair, Source, check_disjoint
from flaxformer_lite.validation import Checked, Range


@dataclasses.dataclass(frozen=True)
class Mix(Source, Checked):
    """`mix(sources=["text(path='a', source='en', target='de')", "…"], temperature=5)`.

    Smaller sources are upsampled. An epoch has each pair of source i, which has nᵢ
    pairs,

        cᵢ = (nᵢ / max n)^(1/T) · max n / nᵢ ≥ 1

    times on average, so the sources' shares are ∝ nᵢ^(1/T) (Arivazhagan et al.,
    Massively Multilingual NMT in the Wild, 2019: T = 5). If cᵢ is fractional, evenly
    spaced pairs occur once more than others.

    `'val'` joins the dev sets of all sources. Each source's sets are also scored, as
    `en-de.test`, or `1.en-de.test` for the second source with the same languages.

    Attributes:
      temperature: The sampling temperature T. 1 disables upsampling.
      tags: Whether each source text begins with a tag of the target language, such as
        `<2de>` (Johnson et al., Multilingual NMT System, 2017), or of `'both'`
        languages, `<en2de>`. The tokenizer's `user_defined_symbols=["<2de>"]` makes a
        tag one piece. Published multilingual tokenizers replace a tag of both.
    """

    sources: list | tuple
    temperature: Annotated[float, Range(at_least=1)] = 1.0
    tags: bool | str = False

    def __post_init__(self):
        super().__post_init__()
        if not self.sources:
            raise ValueError('sources=[] is empty. Give at least one source.')
        if self.tags not in (True, False, 'both'):
            raise ValueError(f"tags must be True, False or 'both', not {self.tags!r}")
        if any(part.window > 1 for part in self._parts):
            raise ValueError(
                'a source has a window of sentences, which mix does not support. Leave '
                'its window out.'
            )
        inside = [x for x in self._parts if isinstance(x, Mix)]
        if self.tags and any(x.tags != self.tags for x in inside):
            raise ValueError(f'a mix inside needs the same tags={self.tags!r}')

    @functools.cached_property
    def _parts(self) -> list[Source]:
        return [folder.load(spec) for spec in self.sources]

    @property
    def source(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return '+'.join(dict.fromkeys(part.source for part in self._parts))

    @property
    def target(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return '+'.join(dict.fromkeys(part.target for part in self._parts))

    @property
    def _leaves(self) -> list[Source]:
        leaves = []
        for part in self._parts:
            leaves += part._leaves if isinstance(part, Mix) else [part]
        return leaves

    @property
    def may_download(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return any(part.may_download for part in self._parts)

    def train(self):
        check_disjoint(self._leaves)
        return self._mixed()

    def _mixed(self) -> Iterator[Pair]:
        largest = max(self._sizes)
        for part, size in zip(self._parts, self._sizes, strict=True):
            share = (size / largest) ** (1 / self.temperature)
            copies = share * largest / size
            given = 0
            for i, pair in enumerate(part.train(), 1):
                required = int(i * copies)
                yield from itertools.repeat(self._tagged(part, pair), required - given)
                given = required

    @functools.cached_property
    def _sizes(self) -> list[int]:
        return [sum(1 for _ in part.train()) for part in self._parts]

    def evaluation(self):
        check_disjoint(self._leaves)
        found = {'val': []}
        for i, part in enumerate(self._parts):
            sets = part.evaluation()
            dev_set = next(iter(sets))
            for name, pairs in sets.items():
                tagged = [self._tagged(part, pair) for pair in pairs]
                if name == dev_set:
                    found['val'] += tagged
                full = f'{part.source}-{part.target}.{name}'
                if full in found:
                    full = f'{i}.{full}'
                found[full] = tagged
        return found

    def directions(self):
        found = [x for part in self._parts for x in part.directions()]
        return list(dict.fromkeys(found))

    def direction(self, name):
        for part in self._parts:
            pattern = rf'([0-9]+\.)?{re.escape(f"{part.source}-{part.target}.")}(.+)'
            match = re.fullmatch(pattern, name)
            if match:
                return part.direction(match[2])
        return super().direction(name)

    def digest(self):
        parts = [part.digest() for part in self._parts]
        tagged = [part.target for part in self._parts] if self.tags else []
        if self.tags == 'both':
            tagged = [part.directions() for part in self._parts]
        return hex_digest(repr((parts, self.temperature, tagged)))

    def _tagged(self, part: Source, pair: tuple[str, Any]) -> tuple[str, Any]:
        source, target = pair
        if self.tags and source.strip() and not isinstance(part, Mix):
            language = part.source if self.tags == 'both' else ''
            source = f'<{language}2{part.target}> {source}'
        return source, target
